"""Serve the requests and limits of every pod at /metrics/resources as kube-scheduler does: two gauges, a line per
amount.

A cluster has many pods, so the page is rendered in pieces and the event loop runs in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.pod_resources import pod_limits, pod_requests
from koord.scheduler.cache.pod_model import Pod, is_terminal
from koord.telemetry.metrics import MetricDeclaration, format_number, format_sample

_LABELS = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")
REQUEST = MetricDeclaration(
    "kube_pod_resource_request",
    "What a pod requests by resource, as schedulers and kubelets count it.",
    "gauge",
    _LABELS,
)
LIMIT = MetricDeclaration("kube_pod_resource_limit", "What a pod may use at most, by resource.", "gauge", _LABELS)
_BYTES = ("memory", "storage", "ephemeral-storage")
_PODS_PER_YIELD = 256  # pods between two looks at the rest of the program

_Amounts = tuple[dict[str, int], dict[str, int]]


async def render_resource_metrics(pods: Iterable[Pod]) -> bytes:
    lines: dict[MetricDeclaration, list[str]] = {LIMIT: [], REQUEST: []}
    known: dict[int, _Amounts] = {}
    for count, pod in enumerate(pods, 1):
        if not (pod.spec.node_name and is_terminal(pod)):
            requests, limits = _amounts(pod, known)
            lines[REQUEST] += _lines(REQUEST.name, pod, requests)
            lines[LIMIT] += _lines(LIMIT.name, pod, limits)
        if count % _PODS_PER_YIELD == 0:
            await asyncio.sleep(0)
    parts = [
        f"# HELP {one.name} {one.help}\n# TYPE {one.name} {one.kind}\n" + "\n".join(found) + "\n"
        for one, found in lines.items()
        if found
    ]
    return "".join(parts).encode()


def _amounts(pod: Pod, known: dict[int, _Amounts]) -> _Amounts:
    """Return the requests and limits of a pod; pods of one shape share them unless one is being resized."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    alike = pod.shape is not None and all(status.resources is None for status in statuses)
    found = known.get(id(pod.shape)) if alike else None
    if found is None:
        spec, status = cast(api_pod.PodSpec, pod.spec), cast(api_pod.PodStatus, pod.status)
        found = pod_requests(spec, status), pod_limits(spec, status)
        if alike:
            known[id(pod.shape)] = found
    return found


def _lines(name: str, pod: Pod, amounts: dict[str, int]) -> list[str]:
    meta, spec = pod.metadata, pod.spec
    priority = "" if spec.priority is None else str(spec.priority)
    shared = (meta.namespace, meta.name, spec.node_name, spec.scheduler_name, priority)
    return [
        format_sample(name, _LABELS, (*shared, resource, _unit(resource)), format_number(_amount(resource, amount)))
        for resource, amount in sorted(amounts.items())
        if amount
    ]


def _amount(resource: str, amount: Any) -> float:
    return amount / 1000 if resource == "cpu" else float(amount)


def _unit(resource: str) -> str:
    if resource == "cpu":
        return "cores"
    if resource in _BYTES or resource.startswith("hugepages-"):
        return "bytes"
    return "integer" if resource.startswith("attachable-volumes-") else ""
