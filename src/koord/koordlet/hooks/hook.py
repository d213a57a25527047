"""The contract of a runtime hook: the context of a pod or container, the rules of the node, and the plan it decides.

A hook is one module with one or two functions, `decide_pod` and `decide_container`, and one row in
`koord.koordlet.hooks.registry`. The functions are pure and the same for all three ways in: NRI and the runtime proxy
call them while a pod or container is made, the reconciler calls them for those that exist.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import CPUSharedPool, PodResourceStatus
from koord.api.koordinator.slo import NodeSLOSpec
from koord.koordlet.inputs.machine import L3Cache
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.policy import qos


class HookStage(enum.Enum):
    """The moments at which hooks run, under the names that the runtime proxy and its configuration use."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"
    PRE_REMOVE_POD_SANDBOX = "PreRemoveRunPodSandbox"
    RECONCILE = "Reconcile"


class CgroupResources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The resources that the kubelet asks the runtime for, or would ask for by the pod's spec; None is not known.

    A quota of -1 and a memory limit of -1 are no limit. `cpus` is a CPU list, "" for all.
    """

    shares: int | None = None
    quota_us: int | None = None
    memory_bytes: int | None = None
    cpus: str | None = None


class ExtendedAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """The batch resources of one container: batch CPU in milli-cores, batch memory in bytes."""

    requests: Mapping[str, int] = {}
    limits: Mapping[str, int] = {}


class PodContext(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pod as hooks see it.

    `extended` is the batch resources by container; None where the pod has none, and where their annotation cannot be
    read, which `extended_problem` says. `resources` are those of the pod's own cgroup: the reconciler knows them from
    the spec, NRI and the proxy do not.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    group: str = ""  # its cgroup
    kube_qos: str = ""  # Kubernetes' QoS class; "" where the cgroup does not tell it
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    runtime_class: str = ""
    host_network: bool = False
    ip: str = ""
    created_s: float = 0.0
    extended: Mapping[str, ExtendedAmounts] | None = None
    extended_problem: str = ""
    resources: CgroupResources = CgroupResources()

    @cached_property
    def qos(self) -> str:
        """Return the QoS class of the label; "" when the label is absent or unknown."""
        return qos.qos_raw(self.labels)

    @cached_property
    def resource_status(self) -> PodResourceStatus | MalformedAnnotation:
        """Return the CPUs and NUMA nodes that the scheduler assigned; an empty status when there is no annotation."""
        found = cpu_codecs.parse_resource_status(self.annotations)
        return PodResourceStatus() if found is None else found

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


class ContainerContext(msgspec.Struct, frozen=True, kw_only=True):
    """A container as hooks see it. `id` is without the runtime's name, and empty while the container is being made."""

    pod: PodContext
    name: str
    id: str = ""
    group: str = ""  # its cgroup; "" where it is not known yet
    is_sandbox: bool = False  # the container that holds the pod's namespaces
    resources: CgroupResources = CgroupResources()
    env: Mapping[str, str] = {}


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's flags that hooks depend on."""

    unset_cpu_quota: bool = True  # of pods with CPUs of their own
    hami_library: str = "/usr/local/vgpu/libvgpu.so"
    # Of MPS, on the machine: where the daemons' pipes lie, and the shared memory of daemons and clients.
    mps_folder: str = "/var/run/koordlet/mps"
    mps_shared_memory: str = "/dev/shm"
    plugins: tuple[Any, ...] = ()  # the hook entries of other packages, which run after koordlet's own


class NodeRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the node for all its pods. They are rebuilt when the NodeSLO, the Node or the shared pools change.

    `slo` is the effective NodeSLO and None until one was seen; the pools are None until they were computed once.
    """

    gates: frozenset[str] = frozenset()
    slo: NodeSLOSpec | None = None
    ls_pools: tuple[CPUSharedPool, ...] | None = None
    be_pools: tuple[CPUSharedPool, ...] | None = None
    kubelet_static: bool = False  # the kubelet's CPU manager assigns CPUs itself
    system_cpus: str = ""  # of SYSTEM pods, by the node's annotation
    normalization_ratio: float | None = None  # None: the node has no ratio
    cache: L3Cache = L3Cache()
    has_group_identity: bool = False  # whether groups of this kernel have bvt_warp_ns
    mps_daemons: Mapping[int, str] = {}  # what is wrong with a card's MPS daemon, "" for nothing, by minor
    settings: HookSettings = HookSettings()
    throttled: frozenset[str] = frozenset()  # uids of pods whose containers' quotas another strategy lowered
    be_quota_us: int | None = None  # of all BE pods, where the kernel refuses more to one of them


class HookValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One cgroup value. `knob` is its name in the knob table; `value` is in cgroup v1's notation, as the name is."""

    knob: str
    value: str
    why: str  # the field and the numbers that led to it


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = ("rbind",)
    # A directory that belongs to the container alone: made anew on the host, open to all users of the container.
    fresh_directory: bool = False


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A character device that the container gets; its numbers are read from the host's file of this path."""

    path: str
    mode: int = 0o666


class RdmaFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function whose InfiniBand verbs device the container gets; the host's files tell which device that is."""

    pci_address: str


class SchemataLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the schemata file of the pod's resctrl group: the value by cache id, in the order of ids."""

    resource: Literal["L3", "MB"]
    by_cache: tuple[tuple[int, str], ...]
    why: str


class HookPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The wishes of one hook for one pod or container.

    `problem` says what keeps the hook from deciding, such as an unreadable annotation; the rest of the plan is then
    what still holds. `schemata` is of `resctrl_group`. `oom_score_adj` is for all processes of the container.
    `core_sched_group` names the group whose tasks may share a physical core; "" releases the container from its group,
    None leaves it alone.
    """

    values: tuple[HookValue, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    rdma: tuple[RdmaFunction, ...] = ()
    resctrl_group: str | None = None
    schemata: tuple[SchemataLine, ...] = ()
    oom_score_adj: int | None = None
    core_sched_group: str | None = None
    problem: str = ""


NOTHING = HookPlan()


class SharedPools(Protocol):
    """The shared CPUs of LS and BE pods, as `koord.koordlet.inputs.machine` decides them."""

    @property
    def ls_pools(self) -> tuple[CPUSharedPool, ...]: ...

    @property
    def be_pools(self) -> tuple[CPUSharedPool, ...]: ...


def build_node_rules(
    gates: frozenset[str],
    settings: HookSettings,
    inputs: NodeInputs,
    pools: SharedPools | None,
    cache: L3Cache,
    *,
    has_group_identity: bool = False,
    throttled: frozenset[str] = frozenset(),
    be_quota_us: int | None = None,
) -> NodeRules:
    """Build the rules. `pools` is None until they were decided once; equal inputs give equal rules."""
    rules = NodeRules(
        gates=gates,
        slo=inputs.slo,
        ls_pools=None if pools is None else pools.ls_pools,
        be_pools=None if pools is None else pools.be_pools,
        kubelet_static=inputs.kubelet.is_static,
        cache=cache,
        has_group_identity=has_group_identity,
        settings=settings,
        throttled=throttled,
        mps_daemons=inputs.mps_daemons,
        be_quota_us=be_quota_us,
    )
    return with_node(rules, inputs.node)


def with_node(rules: NodeRules, node: NodeProperties | None) -> NodeRules:
    """Return the rules with what the Node's annotations say; the same object where that is what they have."""
    system_cpus = "" if node is None else str(node.system_cpus)
    ratio = node.normalization_ratio if node is not None and node.has_normalization_ratio else None
    if (rules.system_cpus, rules.normalization_ratio) == (system_cpus, ratio):
        return rules
    return msgspec.structs.replace(rules, system_cpus=system_cpus, normalization_ratio=ratio)
