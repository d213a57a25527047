"""Slim models of pods and nodes with only what simulated kubelets read, in about a tenth of the memory of
whole pods.

Pods of one template share one SharedPodTemplate; the informer keeps only what is a pod's own.
"""

from __future__ import annotations

import functools
import re
import sys

import msgspec
from msgspec.structs import replace

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import (
    Container,
    ContainerPort,
    PodReadinessGate,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
    Probe,
    ResourceRequirements,
)
from koord.api.kubernetes.pod_resources import KubernetesQosClass, compute_qos_class, pod_limits, pod_requests
from koord.api.model import ResourceList, Submodel, decode, encode
from koord.embedded.kubelet.container_command import depends_on_pod
from koord.policy.qos import priority_class_with_default, qos_with_default

ANNOTATION_PREFIX = "sim.koord.sh/"


class SleepAction(Submodel, frozen=True, kw_only=True):
    seconds: int = 0


class ExecAction(Submodel, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()


class SlimLifecycleHandler(Submodel, frozen=True, kw_only=True):
    sleep: SleepAction | None = None
    exec: ExecAction | None = None


class SlimLifecycle(Submodel, frozen=True, kw_only=True):
    pre_stop: SlimLifecycleHandler | None = None


class SlimFieldRef(Submodel, frozen=True, kw_only=True):
    field_path: str = ""


class SlimEnvVarSource(Submodel, frozen=True, kw_only=True):
    field_ref: SlimFieldRef | None = None


class SlimEnvVar(Submodel, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""
    value_from: SlimEnvVarSource | None = None


class SlimVolumeMount(Submodel, frozen=True, kw_only=True):
    name: str = ""
    mount_path: str = ""


class SlimHostPath(Submodel, frozen=True, kw_only=True):
    path: str = ""


class SlimVolume(Submodel, frozen=True, kw_only=True):
    name: str = ""
    host_path: SlimHostPath | None = None


class SlimContainer(Submodel, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None  # Always on an init container makes it a sidecar
    ports: tuple[ContainerPort, ...] = ()
    readiness_probe: Probe | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    lifecycle: SlimLifecycle | None = None
    env: tuple[SlimEnvVar, ...] = ()  # kept with `volume_mounts` only where a script reads them
    volume_mounts: tuple[SlimVolumeMount, ...] = ()

    @property
    def is_scripted(self) -> bool:
        return depends_on_pod(self.command, self.args)

    def without_environment(self) -> SlimContainer:
        return self if not (self.env or self.volume_mounts) else replace(self, env=(), volume_mounts=())


class TemplatePart(Submodel, frozen=True, kw_only=True):
    """The part of a pod's spec that its template decides."""

    containers: tuple[SlimContainer, ...] = ()
    init_containers: tuple[SlimContainer, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    node_selector: dict[str, str] = {}
    volumes: tuple[SlimVolume, ...] = ()  # kept only where a script reads them


class SlimPodSpec(TemplatePart, frozen=True, kw_only=True):
    node_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    host_network: bool = False
    priority: int | None = None  # read by `slim_pod` and not kept, as is the next
    resource_claims: tuple[PodResourceClaim, ...] = ()


class SlimCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class SlimPodStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    start_time: str = ""  # only whether it is there matters
    conditions: tuple[SlimCondition, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()  # read by `slim_pod` and not kept

    def condition(self, type: str) -> str:
        return next((c.status for c in self.conditions if c.type == type), "")


class SharedPodTemplate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Holds what pods of one template have in common, computed once."""

    containers: tuple[SlimContainer, ...]
    init_containers: tuple[SlimContainer, ...]
    gates: tuple[str, ...]
    node_selector: dict[str, str]
    host_paths: dict[str, str] = {}  # of volumes, by name; only where a script reads them
    requests: dict[str, int]  # cpu in milli-units, all else in units
    limits: dict[str, int]
    qos: KubernetesQosClass
    host_ports: tuple[tuple[str, str, int], ...]  # address, protocol, port


class SlimPod(Object, frozen=True, kw_only=True):
    spec: SlimPodSpec = SlimPodSpec()
    status: SlimPodStatus = SlimPodStatus()
    # Not on the wire: `slim_pod` puts these in the place of containers, labels and priority.
    template: SharedPodTemplate | None = None
    priority_class: str = ""  # with default, as is the next
    qos: str = ""
    environment: dict[str, dict[str, str]] = {}  # variables of containers with a script, by container
    claims: tuple[str, ...] = ()  # names of ResourceClaims; empty for one that is not made yet


class SlimNodeSpec(Submodel, frozen=True, kw_only=True):
    pod_cidr: str = msgspec.field(default="", name="podCIDR")


class SlimNodeStatus(Submodel, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}


class SlimNode(Object, frozen=True, kw_only=True):
    spec: SlimNodeSpec = SlimNodeSpec()
    status: SlimNodeStatus = SlimNodeStatus()


PODS = builtin_kinds.PODS.with_model(SlimPod)
NODES = builtin_kinds.NODES.with_model(SlimNode)


def slim_pod(pod: SlimPod) -> SlimPod | None:
    """Return a bound pod without its bulk; None for pods that no kubelet would see."""
    spec = pod.spec
    if not spec.node_name:
        return None
    all_containers = (*spec.containers, *spec.init_containers)
    is_scripted = any(container.is_scripted for container in all_containers)
    wanted = TemplatePart(
        containers=spec.containers if is_scripted else tuple(c.without_environment() for c in spec.containers),
        init_containers=(
            spec.init_containers if is_scripted else tuple(c.without_environment() for c in spec.init_containers)
        ),
        volumes=spec.volumes if is_scripted else (),
        resources=spec.resources,
        overhead=spec.overhead,
        readiness_gates=spec.readiness_gates,
        node_selector=spec.node_selector,
    )
    meta, status = pod.metadata, pod.status
    template = decode_template(encode(wanted))
    own = {key: value for key, value in meta.annotations.items() if key.startswith(ANNOTATION_PREFIX)}
    watched = ("Ready", *template.gates)
    return SlimPod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            deletion_timestamp=meta.deletion_timestamp,
            deletion_grace_period_seconds=meta.deletion_grace_period_seconds,
            annotations=own or _NO_ANNOTATIONS,
        ),
        spec=SlimPodSpec(
            node_name=sys.intern(spec.node_name),
            restart_policy=sys.intern(spec.restart_policy),
            termination_grace_period_seconds=spec.termination_grace_period_seconds,
            active_deadline_seconds=spec.active_deadline_seconds,
            host_network=spec.host_network,
        ),
        status=SlimPodStatus(
            phase=sys.intern(status.phase),
            start_time="known" if status.start_time else "",
            conditions=tuple(_shared_condition(c.type, c.status) for c in status.conditions if c.type in watched),
        ),
        template=template,
        priority_class=priority_class_with_default(meta.labels, spec.priority, template.qos),
        qos=qos_with_default(meta.labels, template.qos),
        environment=(
            {one.name: container_environment(one, pod) for one in all_containers if one.is_scripted}
            if is_scripted
            else _NO_ENVIRONMENT
        ),
        claims=_claim_names(pod) if spec.resource_claims else (),
    )


def _claim_names(pod: SlimPod) -> tuple[str, ...]:
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    return tuple(
        wanted.resource_claim_name or made.get(wanted.name) or ""
        for wanted in pod.spec.resource_claims
        if wanted.resource_claim_name is not None or made.get(wanted.name, "") is not None
    )


_LABEL_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def container_environment(container: SlimContainer, pod: SlimPod) -> dict[str, str]:
    """Return the variables whose values the pod itself tells: stated ones, and those of its fields."""
    meta = pod.metadata
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
    }
    found: dict[str, str] = {}
    for variable in container.env:
        if variable.value_from is None:
            found[variable.name] = variable.value
            continue
        path = variable.value_from.field_ref.field_path if variable.value_from.field_ref is not None else ""
        if labelled := _LABEL_FIELD.fullmatch(path):
            source = meta.labels if labelled[1] == "labels" else meta.annotations
            found[variable.name] = source.get(labelled[2], "")
        elif path in fields:
            found[variable.name] = fields[path]
    return found


_NO_ANNOTATIONS: dict[str, str] = {}
_NO_ENVIRONMENT: dict[str, dict[str, str]] = {}


@functools.lru_cache(maxsize=1024)
def _shared_condition(type: str, status: str) -> SlimCondition:
    return SlimCondition(type=type, status=status)


@functools.lru_cache(maxsize=8192)
def decode_template(raw: bytes) -> SharedPodTemplate:
    """Decode a template from `raw`, an encoded TemplatePart."""
    wanted = decode(raw, TemplatePart)
    spec = PodSpec(
        containers=tuple(_with_default_requests(c) for c in wanted.containers),
        init_containers=tuple(_with_default_requests(c) for c in wanted.init_containers),
        resources=wanted.resources,
        overhead=wanted.overhead,
    )
    return SharedPodTemplate(
        containers=wanted.containers,
        init_containers=wanted.init_containers,
        gates=tuple(gate.condition_type for gate in wanted.readiness_gates),
        node_selector=wanted.node_selector,
        host_paths={one.name: one.host_path.path for one in wanted.volumes if one.host_path is not None},
        requests=pod_requests(spec),
        limits=pod_limits(spec),
        qos=compute_qos_class(spec),
        host_ports=tuple(
            (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
            for container in (*wanted.containers, *wanted.init_containers)
            for port in container.ports
            if port.host_port
        ),
    )


def _with_default_requests(view: SlimContainer) -> Container:
    """Return the container with the server's default applied: a limit without a request is also the request."""
    asked = view.resources
    if asked.limits.keys() - asked.requests.keys():
        asked = msgspec.structs.replace(asked, requests={**asked.limits, **asked.requests})
    return Container(name=view.name, resources=asked, restart_policy=view.restart_policy)
