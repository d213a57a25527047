"""PodMeta is a pod of this node as decisions see it: its classes, its amounts and its cgroups.

It is built once per change of a pod, from the API object and the node's cgroup layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import BE, BEST_EFFORT
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.pod import Container, Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.host.cgroup.layout import CgroupLayout
from koord.policy import qos
from koord.values.cpuset import EMPTY, CPUSet

ALIVE_PHASES = ("Pending", "Running")


class ContainerMeta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A container and its cgroup. CPU is in milli-cores, all else in units; an absent name is no request or limit."""

    name: str
    id: str = ""  # empty until the runtime has made it
    group: str = ""
    running: bool = False
    requests: Mapping[str, int] = {}
    limits: Mapping[str, int] = {}


class PodMeta(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    uid: str
    namespace: str = "default"
    name: str = ""
    group: str = ""
    phase: str = "Running"
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    priority: int | None = None
    kube_qos: str = "Burstable"
    terminating: bool = False
    created_s: float = 0.0
    requests: Mapping[str, int] = {}
    limits: Mapping[str, int] = {}
    pod_limits: Mapping[str, int] = {}  # stated for the pod as a whole; they count in `limits` too
    containers: tuple[ContainerMeta, ...] = ()  # with those init containers that stay
    init_containers: tuple[ContainerMeta, ...] = ()  # those that end before the others start
    runtime_class: str = ""
    host_network: bool = False
    ip: str = ""
    volumes: Mapping[str, str] = {}  # of a CSI driver: the claim by the volume's name, "" for one without a claim
    third_party: str = ""  # the orchestrator, such as hadoop-yarn, of a container that is in no pod of Kubernetes

    @cached_property
    def qos(self) -> str:
        """Return the QoS class of the label; "" when the label is absent or unknown."""
        return qos.qos_raw(self.labels)

    @cached_property
    def qos_with_default(self) -> str:
        return qos.qos_with_default(self.labels, self.kube_qos)

    @cached_property
    def priority_class(self) -> str:
        return qos.priority_class_with_default(self.labels, self.priority, self.kube_qos)

    @cached_property
    def priority_value(self) -> int:
        return qos.priority_value_with_default(self.labels, self.priority, self.kube_qos)

    @cached_property
    def cpuset(self) -> CPUSet:
        """Return the CPUs that the scheduler assigned; none when the annotation is absent or unreadable."""
        status = cpu_codecs.parse_resource_status(self.annotations)
        if status is None or isinstance(status, MalformedAnnotation):
            return EMPTY
        return CPUSet.parse_or_empty(status.cpuset)

    @cached_property
    def is_pinned(self) -> bool:
        """Return whether the scheduler assigned CPUs or NUMA nodes to the pod."""
        status = cpu_codecs.parse_resource_status(self.annotations)
        if status is None or isinstance(status, MalformedAnnotation):
            return False
        return bool(status.cpuset or status.numa_node_resources)

    @property
    def is_best_effort(self) -> bool:
        """Return whether the pod is BE by its label, or has no request at all."""
        return self.qos == BE or self.kube_qos == BEST_EFFORT

    @property
    def is_alive(self) -> bool:
        return self.phase in ALIVE_PHASES

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def build_pod_meta(pod: Pod, group: str, container_groups: Mapping[str, str]) -> PodMeta:
    """Build the PodMeta of a pod. `container_groups` maps container ids to cgroups; a missing id has none yet."""
    states = {state.name: state for state in (*pod.status.container_statuses, *pod.status.init_container_statuses)}

    def view(container: Container) -> ContainerMeta:
        state = states.get(container.name)
        identity = "" if state is None else state.container_id
        return ContainerMeta(
            name=container.name,
            id=identity,
            group=container_groups.get(identity, ""),
            running=state is not None and state.state.running is not None,
            requests=pod_resources.resource_amounts(container.resources.requests),
            limits=pod_resources.resource_amounts(container.resources.limits),
        )

    meta = pod.metadata
    sidecars = [container for container in pod.spec.init_containers if container.restart_policy == "Always"]
    short_lived = [container for container in pod.spec.init_containers if container.restart_policy != "Always"]
    stated = pod.spec.resources
    return PodMeta(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        group=group,
        phase=pod.status.phase,
        labels=meta.labels,
        annotations=meta.annotations,
        priority=pod.spec.priority,
        kube_qos=recorded_qos_class(pod),
        terminating=meta.deletion_timestamp is not None,
        created_s=0.0 if meta.creation_timestamp is None else meta.creation_timestamp.timestamp(),
        requests=pod_resources.pod_requests(pod.spec, pod.status),
        limits=pod_resources.pod_limits(pod.spec, pod.status),
        pod_limits={} if stated is None else pod_resources.resource_amounts(stated.limits),
        containers=tuple(view(container) for container in (*pod.spec.containers, *sidecars)),
        init_containers=tuple(view(container) for container in short_lived),
        runtime_class=pod.spec.runtime_class_name or "",
        host_network=pod.spec.host_network,
        ip=pod.status.pod_ip,
        volumes=_csi_claims(pod),
    )


def _csi_claims(pod: Pod) -> dict[str, str]:
    found: dict[str, str] = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found[volume.name] = volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            found[volume.name] = f"{pod.metadata.name}-{volume.name}"
        elif volume.csi is not None:
            found[volume.name] = ""
    return found


_MIRROR = "kubernetes.io/config.mirror"
_HASH = "kubernetes.io/config.hash"


def pod_meta_in_layout(pod: Pod, layout: CgroupLayout) -> PodMeta:
    """Build the PodMeta of a pod with the cgroup paths of this node's layout."""
    group = layout.pod_dir(recorded_qos_class(pod), cgroup_uid(pod))
    ids = [one.container_id for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)]
    found = {identity: layout.container_dir(group, identity) for identity in ids if identity}
    return build_pod_meta(pod, group, {identity: folder for identity, folder in found.items() if folder})


def cgroup_uid(pod: Pod) -> str:
    """Return the uid in the name of the pod's cgroup. The API server's copy of a static pod has another uid."""
    annotations = pod.metadata.annotations
    return annotations.get(_HASH, pod.metadata.uid) if _MIRROR in annotations else pod.metadata.uid
