"""What must hold of a cluster whatever happens to its programs: pure functions over objects as the API server has them.

Each takes objects and returns a sentence for every violation. The chaos runs on a real control plane and the simulated
one judge by these. Pods that hold room are those that have a node and have not ended.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, DESCHEDULER_NAME, L_QUOTA_NAME
from koord.values import duration
from koord.values.cpuset import CPUSet
from koord.values.quantity import Quantity

Json = dict[str, Any]
PERCENT_OF_A_CARD = "koordinator.sh/gpu-core"
# Annotations of audit events of kube-apiserver, each for one call of a mutating webhook.
CALLED, FAILED_OPEN = "mutation.webhook.admission.k8s.io/", "failed-open.mutation.webhook.admission.k8s.io/"

amount_of = lru_cache(maxsize=4096)(Quantity.parse)  # the same few texts come again and again
_NONE, _ONE, _WHOLE_CARD = amount_of("0"), amount_of("1"), amount_of("100")


def node_name(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")


def pod_requests(pod: Json) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {"pods": _ONE}
    for container in pod["spec"]["containers"]:
        for name, text in (container.get("resources", {}).get("requests") or {}).items():
            total[name] = total.get(name, _NONE) + amount_of(text)
    return total


def overcommitted_nodes(
    holding: Iterable[Json], nodes: Iterable[Json], resources: Collection[str] | None = None
) -> list[str]:
    """Pods request more of a node than it has, of these resources or of any."""
    used = _sums(holding, node_name)
    return [
        f"node {node['metadata']['name']}: {amount} of {name} are more than it has"
        for node in nodes
        for name, amount in used.get(node["metadata"]["name"], {}).items()
        if (resources is None or name in resources) and amount > amount_of(node["status"]["allocatable"].get(name, "0"))
    ]


def cpus_given_twice(holding: Iterable[Json]) -> list[str]:
    """Two pods have one CPU of a node for themselves."""
    holders: dict[tuple[str, int], list[str]] = defaultdict(list)
    for pod in holding:
        text = _annotation(pod, A_RESOURCE_STATUS).get("cpuset", "")
        for cpu in CPUSet.parse(text) if node_name(pod) and text else ():
            holders[node_name(pod), cpu].append(pod["metadata"]["name"])
    return [f"CPU {cpu} of {node}: {names}" for (node, cpu), names in holders.items() if len(names) > 1]


def cards_given_twice(holding: Iterable[Json]) -> list[str]:
    """Pods have more than the whole of a card."""
    percent: dict[tuple[str, int], Quantity] = defaultdict(lambda: _NONE)
    for pod in holding:
        for card in _annotation(pod, A_DEVICE_ALLOCATED).get("gpu", ()) if node_name(pod) else ():
            percent[node_name(pod), card["minor"]] += amount_of(str(card["resources"].get(PERCENT_OF_A_CARD, "0")))
    return [
        f"card {minor} of {node}: {total} percent" for (node, minor), total in percent.items() if total > _WHOLE_CARD
    ]


def quotas_exceeded(holding: Iterable[Json], limits: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Pods of a quota that have a node request more than its limits, which are by quota and resource."""
    used = _sums((pod for pod in holding if node_name(pod)), quota_name)
    return [
        f"quota {quota}: {used[quota][name]} of {name}, {limit} allowed"
        for quota, each in limits.items()
        for name, limit in each.items()
        if quota in used and name in used[quota] and used[quota][name] > amount_of(limit)
    ]


def quota_name(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(L_QUOTA_NAME) or "")


def partial_gangs(pods: Iterable[Json], gang_of: Callable[[Json], tuple[str, int] | None]) -> list[str]:
    """Return the gangs of which some members have a node, and fewer than it needs.

    `gang_of` tells a pod's gang and how many members that needs.
    """
    bound: Counter[str] = Counter()
    wanted: dict[str, int] = {}
    for pod in pods:
        if (found := gang_of(pod)) is not None:
            gang, wanted[gang] = found[0], found[1]
            bound[gang] += bool(node_name(pod))
    return [gang for gang, least in wanted.items() if 0 < bound[gang] < least]


def refused_though_bound(pods: Iterable[Json]) -> list[str]:
    """A pod has a node, and its condition says that it found none."""
    return [
        f"pod {pod['metadata']['name']} is bound and has PodScheduled=False: {condition}"
        for pod in pods
        if node_name(pod)
        for condition in pod.get("status", {}).get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def moved_though_bound(pod: Json, before: str) -> list[str]:
    """A pod that had a node has another one, or none."""
    if not before or node_name(pod) == before:
        return []
    return [f"pod {pod['metadata']['name']} went from {before} to {node_name(pod)}"]


def bound_twice(audit_lines: Iterable[Json]) -> list[str]:
    """Names are never used again here, so a second accepted binding of one name is a second binding of one pod."""
    accepted = Counter(
        f"{each['objectRef']['namespace']}/{each['objectRef']['name']}"
        for each in audit_lines
        if each["objectRef"].get("subresource") == "binding" and each["responseStatus"]["code"] == 201
    )
    return [f"pod {name} was bound {count} times" for name, count in accepted.items() if count > 1]


# Migration -----------------------------------------------------------------------------------------------------------


def accepted_evictions(audit_lines: Iterable[Json]) -> set[str]:
    """Return namespace/name of each pod whose eviction the API server accepted."""
    return {
        f"{each['objectRef']['namespace']}/{each['objectRef']['name']}"
        for each in audit_lines
        if each["objectRef"].get("subresource") == "eviction" and each["responseStatus"]["code"] == 201
    }


def failed_though_evicted(jobs: Iterable[Json], evicted: Collection[str]) -> list[str]:
    """A migration job has failed although its pod was evicted; names of pods are never used again here."""
    return [
        f"job {job['metadata']['name']} evicted its pod and failed: {job['status'].get('message')}"
        for job in jobs
        if job.get("status", {}).get("phase") == "Failed"
        and f"{job['spec']['podRef']['namespace']}/{job['spec']['podRef']['name']}" in evicted
    ]


def reservations_left(reservations: Iterable[Json], jobs: Iterable[Json], now_s: float, grace_s: float) -> list[str]:
    """A reservation that was made for a migration job holds room that nobody will use, and will not expire by itself.

    While its job goes on, it may. When the job has failed or is gone, its time to live ends it.
    """
    phases = {job["metadata"]["uid"]: job.get("status", {}).get("phase") or "Pending" for job in jobs}
    found = []
    for reservation in reservations:
        meta, status = reservation["metadata"], reservation.get("status", {})
        ours = (meta.get("labels") or {}).get("app.kubernetes.io/created-by") == DESCHEDULER_NAME
        if not ours or status.get("phase") in ("Succeeded", "Failed"):
            continue
        phase = phases.get(meta["name"], "gone")  # it is named after the uid of its job
        if phase in ("Pending", "Running"):
            continue
        ends_s = _end_of_reservation(reservation)
        if phase == "Succeeded" or ends_s is None or ends_s + grace_s < now_s:
            found.append(f"reservation {meta['name']} is {status.get('phase')}, and its job is {phase}")
    return found


def _end_of_reservation(reservation: Json) -> float | None:
    spec = reservation["spec"]
    if spec.get("expires"):
        return datetime.fromisoformat(spec["expires"]).timestamp()
    ttl_s = duration.parse_seconds(spec["ttl"]) if spec.get("ttl") else 0.0
    began_s = datetime.fromisoformat(reservation["metadata"]["creationTimestamp"]).timestamp()
    return began_s + ttl_s if ttl_s > 0 else None


# Admission -----------------------------------------------------------------------------------------------------------


def admitted_by(audit_lines: Iterable[Json], webhook: str) -> set[str]:
    """Return namespace/name of each pod whose creation was accepted and about which the webhook gave its answer.

    The API server says in the audit event whom it called, and who did not answer and was passed over.
    """
    found = set()
    for each in audit_lines:
        at, notes = each["objectRef"], each.get("annotations") or {}
        if each["verb"] != "create" or at["resource"] != "pods" or at.get("subresource"):
            continue
        called = {json.loads(text)["webhook"] for key, text in notes.items() if key.startswith(CALLED)}
        passed_over = {text for key, text in notes.items() if key.startswith(FAILED_OPEN)}
        if each["responseStatus"]["code"] == 201 and webhook in called - passed_over:
            found.add(f"{at['namespace']}/{at['name']}")
    return found


def not_mutated(pods: Iterable[Json], admitted: Collection[str], selected: Mapping[str, str], mark: str) -> list[str]:
    """A webhook answered for a pod with the selected labels, and the pod has not the label that its profile gives."""
    return [
        f"pod {meta['name']} was admitted by the webhook without its profile: {meta['labels']}"
        for meta in (pod["metadata"] for pod in pods)
        if selected.items() <= (meta.get("labels") or {}).items()
        and mark not in meta["labels"]
        and f"{meta['namespace']}/{meta['name']}" in admitted
    ]


def untrusted_certificate(served: bytes, configurations: Iterable[Json]) -> list[str]:
    """An entry of a webhook configuration trusts no authority that issued the certificate that is served (DER)."""
    leaf = x509.load_der_x509_certificate(served)
    return [
        f"{entry['name']} of {configuration['metadata']['name']} does not trust the certificate {leaf.serial_number:x}"
        for configuration in configurations
        for entry in configuration.get("webhooks") or ()
        if not any(_has_issued(authority, leaf) for authority in _authorities(entry))
    ]


def _authorities(entry: Json) -> list[x509.Certificate]:
    bundle = base64.b64decode(entry["clientConfig"].get("caBundle") or "")
    return x509.load_pem_x509_certificates(bundle) if bundle else []


def _has_issued(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _annotation(pod: Json, key: str) -> Any:
    text = (pod["metadata"].get("annotations") or {}).get(key)
    return json.loads(text) if text else {}


def _sums(pods: Iterable[Json], group: Callable[[Json], str]) -> dict[str, dict[str, Quantity]]:
    """Add up what pods request, by the group that they belong to."""
    sums: dict[str, dict[str, Quantity]] = defaultdict(dict)
    for pod in pods:
        at = sums[group(pod)]
        for name, amount in pod_requests(pod).items():
            at[name] = at.get(name, _NONE) + amount
    return sums
