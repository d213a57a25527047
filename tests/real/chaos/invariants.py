"""What must hold of a cluster whatever happens to its programs, read from the cluster alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.koordinator.protocol import (
    A_DEVICE_ALLOCATED,
    A_GANG_MIN_AVAILABLE,
    A_GANG_NAME,
    A_RESOURCE_STATUS,
    L_QUOTA_NAME,
)
from koord.values.cpuset import CPUSet
from koord.values.quantity import Quantity

Json = dict[str, Any]
PERCENT_OF_A_CARD = "koordinator.sh/gpu-core"


def pod_requests(pod: Json) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {"pods": Quantity.parse("1")}
    for container in pod["spec"]["containers"]:
        for name, amount in (container.get("resources", {}).get("requests") or {}).items():
            total[name] = total.get(name, Quantity.parse("0")) + Quantity.parse(amount)
    return total


def node_name(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _annotation(pod: Json, key: str) -> Any:
    text = (pod["metadata"].get("annotations") or {}).get(key)
    return json.loads(text) if text else {}


def overcommitted_nodes(pods: Iterable[Json], nodes: Iterable[Json]) -> list[str]:
    used: dict[str, dict[str, Quantity]] = defaultdict(dict)
    for pod in pods:
        for name, amount in pod_requests(pod).items():
            at = used[node_name(pod)]
            at[name] = at.get(name, Quantity.parse("0")) + amount
    return [
        f"node {node['metadata']['name']}: {amount} of {name} are more than it has"
        for node in nodes
        for name, amount in used.get(node["metadata"]["name"], {}).items()
        if amount > Quantity.parse(node["status"]["allocatable"].get(name, "0"))
    ]


def cpus_given_twice(pods: Iterable[Json]) -> list[str]:
    holders: dict[tuple[str, int], list[str]] = defaultdict(list)
    for pod in pods:
        text = _annotation(pod, A_RESOURCE_STATUS).get("cpuset", "")
        for cpu in CPUSet.parse(text) if node_name(pod) and text else ():
            holders[node_name(pod), cpu].append(pod["metadata"]["name"])
    return [f"CPU {cpu} of {node}: {names}" for (node, cpu), names in holders.items() if len(names) > 1]


def cards_given_twice(pods: Iterable[Json]) -> list[str]:
    percent: Counter[tuple[str, int]] = Counter()
    for pod in pods:
        for card in _annotation(pod, A_DEVICE_ALLOCATED).get("gpu", ()) if node_name(pod) else ():
            percent[node_name(pod), card["minor"]] += int(card["resources"].get(PERCENT_OF_A_CARD, 0))
    return [f"card {minor} of {node}: {total} percent" for (node, minor), total in percent.items() if total > 100]


def quotas_exceeded(pods: Iterable[Json], limits: Mapping[str, Mapping[str, str]]) -> list[str]:
    used: dict[str, dict[str, Quantity]] = defaultdict(dict)
    for pod in pods:
        quota = (pod["metadata"].get("labels") or {}).get(L_QUOTA_NAME)
        if quota and node_name(pod):
            for name, amount in pod_requests(pod).items():
                used[quota][name] = used[quota].get(name, Quantity.parse("0")) + amount
    return [
        f"quota {quota}: {used[quota][name]} of {name}, {limit} allowed"
        for quota, each in limits.items()
        for name, limit in each.items()
        if name in used[quota] and used[quota][name] > Quantity.parse(limit)
    ]


def partial_gangs(pods: Iterable[Json]) -> list[str]:
    bound: Counter[str] = Counter()
    wanted: dict[str, int] = {}
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        if gang := annotations.get(A_GANG_NAME):
            wanted[gang] = int(annotations[A_GANG_MIN_AVAILABLE])
            bound[gang] += bool(node_name(pod))
    return [gang for gang, least in wanted.items() if 0 < bound[gang] < least]


def refused_though_bound(pods: Iterable[Json]) -> list[str]:
    return [
        f"pod {pod['metadata']['name']} is bound and has PodScheduled=False"
        for pod in pods
        if node_name(pod)
        for condition in pod.get("status", {}).get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def bound_twice(audit_lines: Iterable[Json]) -> list[str]:
    """Names are never used again here, so a second accepted binding of one name is a second binding of one pod."""
    accepted = Counter(
        f"{each['objectRef']['namespace']}/{each['objectRef']['name']}"
        for each in audit_lines
        if each["objectRef"].get("subresource") == "binding" and each["responseStatus"]["code"] == 201
    )
    return [f"pod {name} was bound {count} times" for name, count in accepted.items() if count > 1]
