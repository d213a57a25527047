"""The contexts of hooks: from a PodMeta for the reconciler, and from what a runtime tells for NRI and the proxy.

The reconciler knows the pod's spec, the runtime does not: there batch resources come from the annotation that the
webhook writes for it, and Kubernetes' QoS class from the name of the cgroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.pod_codecs import ExtendedResources, parse_extended_resource_spec
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.host.cgroup.codec import MAX_INT64, UNLIMITED, cfs_quota_of_milli, shares_of_milli
from koord.host.cgroup.layout import CgroupLayout, kube_qos_of_path
from koord.koordlet.hooks.hook import CgroupResources, ContainerContext, ExtendedAmounts, PodContext
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta

_DOCKER_SHIM = "io.kubernetes.docker.type"  # an annotation of sandboxes that docker runs
_Extended = tuple[Mapping[str, ExtendedAmounts] | None, str]


def pod_context_of_meta(meta: PodMeta) -> PodContext:
    """Build the context of a pod whose spec is known."""
    extended, problem = _extended_of_spec(meta.containers), ""
    if extended is None:
        extended, problem = _extended_of_annotation(meta.annotations)
    return PodContext(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        group=meta.group,
        kube_qos=meta.kube_qos,
        labels=meta.labels,
        annotations=meta.annotations,
        runtime_class=meta.runtime_class,
        host_network=meta.host_network,
        ip=meta.ip,
        created_s=meta.created_s,
        extended=extended,
        extended_problem=problem,
        resources=_pod_resources(meta),
    )


def container_contexts_of_meta(pod: PodContext, meta: PodMeta) -> tuple[ContainerContext, ...]:
    """Build the contexts of all containers, init containers included; those not made yet have no id and no group."""
    return tuple(
        ContainerContext(
            pod=pod,
            name=one.name,
            id=one.id.partition("://")[2],
            group=one.group,
            resources=_resources(one.requests, one.limits, one.limits.keys()),
        )
        for one in (*meta.containers, *meta.init_containers)
    )


def sandbox_context(pod: PodContext, group: str) -> ContainerContext:
    """Build the context of the container that holds the pod's namespaces; it is in no spec and has no name there."""
    return ContainerContext(pod=pod, name="", group=group, is_sandbox=True)


def pod_context(
    *,
    uid: str,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
    layout: CgroupLayout,
    runtime_handler: str = "",
) -> PodContext:
    """Build the context of a pod from what CRI tells of its sandbox."""
    group = layout.group_of_parent(cgroup_parent)
    extended, problem = _extended_of_annotation(annotations)
    return PodContext(
        uid=uid,
        namespace=namespace,
        name=name,
        group=group,
        kube_qos=kube_qos_of_path(group) if group else "",
        labels=labels,
        annotations=annotations,
        runtime_class=runtime_handler,
        extended=extended,
        extended_problem=problem,
    )


def container_context(
    *,
    pod: PodContext,
    name: str,
    layout: CgroupLayout,
    id: str = "",
    resources: CgroupResources = CgroupResources(),  # noqa: B008 - a frozen value
    env: Mapping[str, str] | None = None,
    runtime: str = "containerd",
) -> ContainerContext:
    """Build the context of a container from what a runtime tells of it. `id` is empty while it is being made."""
    runtime = "docker" if _DOCKER_SHIM in pod.annotations else runtime
    group = layout.container_dir(pod.group, f"{runtime}://{id}") if pod.group else None
    return ContainerContext(pod=pod, name=name, id=id, group=group or "", resources=resources, env=env or {})


def cgroup_resources(*, shares: int = 0, quota_us: int = 0, memory_bytes: int = 0, cpus: str = "") -> CgroupResources:
    """Return the resources of a CRI or NRI message, in which 0 and "" stand for what is not set."""
    return CgroupResources(
        shares=shares or None,
        quota_us=quota_us or None,
        memory_bytes=UNLIMITED if memory_bytes < 0 else memory_bytes or None,
        cpus=cpus or None,
    )


def environment(entries: Iterable[str]) -> dict[str, str]:
    """Return the environment of NAME=VALUE entries; an entry without a name or a value counts for nothing."""
    split = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in split if name and value}


def _extended_of_spec(containers: Iterable[ContainerMeta]) -> Mapping[str, ExtendedAmounts] | None:
    """Return the batch resources of containers that have any. An init container that ends counts for nothing."""
    found = {
        one.name: ExtendedAmounts(requests=_batch(one.requests), limits=_batch(one.limits))
        for one in containers
        if _batch(one.requests) or _batch(one.limits)
    }
    return found or None


def _extended_of_annotation(annotations: Mapping[str, str]) -> _Extended:
    """Return the batch resources of the annotation, and what is wrong with it."""
    found = parse_extended_resource_spec(annotations)
    if isinstance(found, MalformedAnnotation):
        return None, str(found)
    if found is None or not found.containers:
        return None, ""
    return {name: _amounts(one) for name, one in found.containers.items()}, ""


def _amounts(one: ExtendedResources) -> ExtendedAmounts:
    return ExtendedAmounts(requests=_batch(resource_amounts(one.requests)), limits=_batch(resource_amounts(one.limits)))


def _batch(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amounts[name] for name in (BATCH_CPU, BATCH_MEMORY) if name in amounts}


def _pod_resources(meta: PodMeta) -> CgroupResources:
    """Return what the kubelet gives the pod's cgroup: a limit only where every container or the pod itself has one."""
    everyone = (*meta.containers, *meta.init_containers)
    limited = [
        name
        for name in (CPU, MEMORY)
        if name in meta.pod_limits or (everyone and all(one.limits.get(name, 0) > 0 for one in everyone))
    ]
    return _resources(meta.requests, meta.limits, limited)


def _resources(requests: Mapping[str, int], limits: Mapping[str, int], limited: Iterable[str]) -> CgroupResources:
    limited = frozenset(limited)
    memory = limits.get(MEMORY, 0) if MEMORY in limited else 0
    return CgroupResources(
        shares=shares_of_milli(requests.get(CPU, limits.get(CPU, 0))),
        quota_us=cfs_quota_of_milli(limits.get(CPU, 0)) if CPU in limited else UNLIMITED,
        memory_bytes=min(memory, MAX_INT64) if memory > 0 else UNLIMITED,
    )
