"""Node profiles: the parsed and validated file that says how many nodes of which hardware exist."""

from __future__ import annotations

import hashlib
import math
import uuid
from pathlib import Path

import msgspec

from koord.api.config.field_error import FieldError, duplicate_errors, enum_errors, range_errors
from koord.api.kubernetes.affinity import Taint
from koord.embedded.kubelet import usage_model
from koord.embedded.kubelet.pod_behaviour import DEFAULT_JOB_S
from koord.values.json_text import MalformedText
from koord.values.names import dns1123_subdomain, label_value, qualified_name
from koord.values.quantity import Quantity, QuantityError
from koord.values.yaml_text import load_yaml


class LogicalCpu(msgspec.Struct, frozen=True, kw_only=True):
    """One logical CPU and its place in the topology that Linux would report."""

    cpu: int
    core: int
    numa: int
    socket: int


class SimulatedGpu(msgspec.Struct, frozen=True, kw_only=True):
    minor: int
    uuid: str
    model: str
    memory_bytes: int
    numa: int
    socket: int
    pcie: str
    bus_id: str


class RdmaNic(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA network card."""

    minor: int
    bus_id: str
    numa: int
    socket: int
    pcie: str
    virtual_functions: int

    def virtual_function_addresses(self) -> tuple[str, ...]:
        """Return the PCI addresses of the virtual functions: those that follow the card's own, eight to a device."""
        bus = self.bus_id.rpartition(":")[0]
        return tuple(f"{bus}:{number // 8:02x}.{number % 8}" for number in range(1, self.virtual_functions + 1))


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of one node."""

    sockets: int
    numa_nodes: int  # in all, a multiple of `sockets`
    cores: int  # in all, a multiple of `numa_nodes`
    threads_per_core: int
    memory_bytes: int
    gpus: tuple[SimulatedGpu, ...] = ()
    nics: tuple[RdmaNic, ...] = ()

    @property
    def cpus(self) -> int:
        return self.cores * self.threads_per_core

    def logical_cpus(self) -> tuple[LogicalCpu, ...]:
        """Return the CPUs numbered as Linux does on x86: first every core's first thread, then every second one."""
        per_numa, per_socket = self.cores // self.numa_nodes, self.cores // self.sockets
        return tuple(
            LogicalCpu(cpu=cpu, core=core, numa=core // per_numa, socket=core // per_socket)
            for cpu in range(self.cpus)
            for core in (cpu % self.cores,)
        )


class GpuLayout(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Describes the wiring of the GPUs of a pool's nodes; they are spread evenly over the NUMA nodes."""

    count: int
    model: str = "A100-SXM4-80GB"
    memory: str | int = "80Gi"
    per_pcie: int = 2  # cards behind one PCIe switch
    resource: str = "nvidia.com/gpu"
    driver: str = ""  # of dynamic resource allocation: the cards are offered in a ResourceSlice, not as `resource`


class RdmaLayout(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    count: int
    per_pcie: int = 1
    virtual_functions: int = 0


def stable_uuid(kind: str, node: str, number: int = 0) -> str:
    """Return a UUID that is the same in every run for the same part of the same node."""
    digest = hashlib.blake2b(f"{kind}/{node}/{number}".encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


def lay_out_gpus(
    layout: GpuLayout, memory_bytes: int, node: str, numa_nodes: int, sockets: int
) -> tuple[SimulatedGpu, ...]:
    return tuple(
        SimulatedGpu(
            minor=minor,
            uuid=f"GPU-{stable_uuid('gpu', node, minor)}",
            model=layout.model,
            memory_bytes=memory_bytes,
            numa=numa,
            socket=numa * sockets // numa_nodes,
            pcie=_pcie_switch(minor // layout.per_pcie),
            bus_id=f"0000:{0x10 + minor:02x}:00.0",
        )
        for minor in range(layout.count)
        for numa in (minor * numa_nodes // layout.count,)
    )


def lay_out_nics(layout: RdmaLayout, numa_nodes: int, sockets: int) -> tuple[RdmaNic, ...]:
    return tuple(
        RdmaNic(
            minor=minor,
            bus_id=f"0000:{0x90 + minor:02x}:00.0",
            numa=numa,
            socket=numa * sockets // numa_nodes,
            pcie=_pcie_switch(minor // layout.per_pcie),
            virtual_functions=layout.virtual_functions,
        )
        for minor in range(layout.count)
        for numa in (minor * numa_nodes // layout.count,)
    )


def _pcie_switch(number: int) -> str:
    return f"pci0000:{number:02x}"


Amount = str | int | float
MAX_GPUS = 64
MAX_DRIVER_BYTES = 63
# A kubelet's default hard eviction threshold for memory.available is kept out of allocatable.
EVICTION_MEMORY_BYTES = 100 << 20
_SNAKE = {"sockets": "sockets", "numaNodes": "numa_nodes", "threadsPerCore": "threads_per_core"}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAINLINE_KERNEL, ANOLIS_KERNEL = "mainline", "anolis"
_KERNELS = (MAINLINE_KERNEL, ANOLIS_KERNEL)


class KubeletReserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that a kubelet reserves from pods: kubeReserved and systemReserved together."""

    cpu: Amount = 0
    memory: Amount = 0
    ephemeral_storage: Amount = msgspec.field(default=0, name="ephemeral-storage")


class SystemDaemonUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that the operating system and the daemons of a node use all the time."""

    cpu: Amount = "200m"
    memory: Amount = "1Gi"


class SimulatedPool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A number of equal nodes, named `<name>-<number>` and counted from 0."""

    name: str
    count: int
    cpu: Amount = 32
    memory: Amount = "128Gi"
    ephemeral_storage: Amount = "200Gi"
    pods: int = 110
    resources: dict[str, Amount] = {}  # extended resources and huge pages
    sockets: int = 1
    numa_nodes: int = 1  # in all
    threads_per_core: int = 2
    gpus: GpuLayout | None = None
    rdma: RdmaLayout | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zones: tuple[str, ...] = ()  # nodes take turns
    region: str = ""
    instance_type: str = ""
    kernel: str = MAINLINE_KERNEL  # which cgroup files the machines of node agents have
    reserved: KubeletReserved = KubeletReserved()
    system: SystemDaemonUsage = SystemDaemonUsage()
    usage: usage_model.UsageModel = usage_model.Constant()  # of pods that say nothing of theirs
    job_seconds: float = DEFAULT_JOB_S  # how long a container runs that may end and does not say when

    def node_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def hardware(self, node: str) -> NodeHardware:
        """Return the hardware of the node of this name."""
        cpus, memory_bytes = whole_units(self.cpu), whole_units(self.memory)
        gpu_bytes = whole_units(self.gpus.memory) if self.gpus else 0
        return NodeHardware(
            sockets=self.sockets,
            numa_nodes=self.numa_nodes,
            cores=cpus // self.threads_per_core,
            threads_per_core=self.threads_per_core,
            memory_bytes=memory_bytes,
            gpus=lay_out_gpus(self.gpus, gpu_bytes, node, self.numa_nodes, self.sockets) if self.gpus else (),
            nics=lay_out_nics(self.rdma, self.numa_nodes, self.sockets) if self.rdma else (),
        )


class FleetProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pools: tuple[SimulatedPool, ...]


class InvalidProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why a profile cannot be used; every error names its field."""

    source: str
    errors: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {error}" for error in self.errors)


def whole_units(amount: Amount) -> int:
    return Quantity.parse(amount).value()


def default_pools(count: int) -> tuple[SimulatedPool, ...]:
    """Return a pool of `count` plain nodes of 32 CPUs and 128 GiB, spread over three zones."""
    return (
        (SimulatedPool(name="node", count=count, zones=("zone-a", "zone-b", "zone-c"), region="local"),)
        if count
        else ()
    )


def load_profile(path: Path) -> tuple[SimulatedPool, ...] | InvalidProfile:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return InvalidProfile(source=str(path), errors=(f"cannot be read: {error}",))
    return parse_profile(text, str(path))


def parse_profile(text: str, source: str = "profile") -> tuple[SimulatedPool, ...] | InvalidProfile:
    """Parse a profile, a document with `pools`, and return its pools."""
    plain = load_yaml(text)
    if isinstance(plain, MalformedText):
        return InvalidProfile(source=source, errors=(plain.reason,))
    try:
        profile = msgspec.convert(plain, FleetProfile)
    except msgspec.ValidationError as error:
        return InvalidProfile(source=source, errors=(_field_first(error),))
    errors = validate_pools(profile.pools)
    return InvalidProfile(source=source, errors=tuple(str(error) for error in errors)) if errors else profile.pools


def _field_first(error: msgspec.ValidationError) -> str:
    """Put the field first: msgspec says "Expected X, got Y - at `$.pools[0].cpu`"."""
    what, at, where = str(error).rpartition(" - at `$.")
    return f"{where.rstrip('`')}: {what}" if at else str(error)


def validate_pools(pools: tuple[SimulatedPool, ...]) -> list[FieldError]:
    errors = duplicate_errors("pools.name", [pool.name for pool in pools])
    for index, pool in enumerate(pools):
        errors += _pool_errors(f"pools[{index}]", pool)
    return errors


def _pool_errors(at: str, pool: SimulatedPool) -> list[FieldError]:
    errors = [FieldError(f"{at}.name", pool.name, rule) for rule in dns1123_subdomain(f"{pool.name}-0")]
    errors += range_errors(f"{at}.count", pool.count, low=0, high=100_000)
    errors += range_errors(f"{at}.pods", pool.pods, low=1, high=4096)
    errors += enum_errors(f"{at}.kernel", pool.kernel, _KERNELS)
    for name in ("sockets", "numaNodes", "threadsPerCore"):
        errors += range_errors(f"{at}.{name}", getattr(pool, _SNAKE[name]), low=1)
    amounts = {
        "cpu": pool.cpu,
        "memory": pool.memory,
        "ephemeralStorage": pool.ephemeral_storage,
        "reserved.cpu": pool.reserved.cpu,
        "reserved.memory": pool.reserved.memory,
        "reserved.ephemeral-storage": pool.reserved.ephemeral_storage,
        "system.cpu": pool.system.cpu,
        "system.memory": pool.system.memory,
        **{f"resources[{name}]": amount for name, amount in pool.resources.items()},
    }
    if pool.gpus is not None:
        amounts["gpus.memory"] = pool.gpus.memory
    wrong = [error for field, amount in amounts.items() for error in _amount_errors(f"{at}.{field}", amount)]
    errors += wrong
    for key, value in pool.labels.items():
        errors += [FieldError(f"{at}.labels", key, rule) for rule in qualified_name(key)]
        errors += [FieldError(f"{at}.labels[{key}]", value, rule) for rule in label_value(value)]
    for index, zone in enumerate(pool.zones):
        errors += [FieldError(f"{at}.zones[{index}]", zone, rule) for rule in label_value(zone)]
    for name in pool.resources:
        errors += [FieldError(f"{at}.resources", name, rule) for rule in qualified_name(name)]
    if pool.gpus is not None and pool.gpus.driver:
        name = pool.gpus.driver
        errors += [FieldError(f"{at}.gpus.driver", name, rule) for rule in dns1123_subdomain(name)]
        if len(name) > MAX_DRIVER_BYTES:
            errors.append(FieldError(f"{at}.gpus.driver", name, f"must be no more than {MAX_DRIVER_BYTES} bytes"))
    for index, taint in enumerate(pool.taints):
        errors += [FieldError(f"{at}.taints[{index}].key", taint.key, rule) for rule in qualified_name(taint.key)]
        errors += enum_errors(f"{at}.taints[{index}].effect", taint.effect, _EFFECTS)
    errors += _usage_errors(f"{at}.usage", pool.usage)
    if not 0 <= pool.job_seconds < math.inf:
        errors.append(FieldError(f"{at}.jobSeconds", pool.job_seconds, "must be a number of seconds, 0 or more"))
    # Sizes are compared only when each of them is sane on its own.
    return errors or _hardware_errors(at, pool)


def _hardware_errors(at: str, pool: SimulatedPool) -> list[FieldError]:
    errors: list[FieldError] = []
    cpus = Quantity.parse(pool.cpu)
    count = cpus.value()
    if cpus != Quantity.from_value(count) or count < 1:
        errors.append(FieldError(f"{at}.cpu", pool.cpu, "must be a whole number of CPUs, 1 or more"))
    elif count % pool.threads_per_core:
        errors.append(FieldError(f"{at}.threadsPerCore", pool.threads_per_core, f"must divide cpu ({count})"))
    elif (count // pool.threads_per_core) % pool.numa_nodes:
        cores = count // pool.threads_per_core
        errors.append(FieldError(f"{at}.numaNodes", pool.numa_nodes, f"must divide the number of cores ({cores})"))
    if pool.numa_nodes % pool.sockets:
        errors.append(FieldError(f"{at}.sockets", pool.sockets, f"must divide numaNodes ({pool.numa_nodes})"))
    if Quantity.parse(pool.reserved.cpu) >= cpus:
        errors.append(FieldError(f"{at}.reserved.cpu", pool.reserved.cpu, f"must be less than cpu ({pool.cpu})"))
    if whole_units(pool.reserved.memory) + EVICTION_MEMORY_BYTES >= whole_units(pool.memory):
        rule = f"must leave more than 100Mi of memory ({pool.memory})"
        errors.append(FieldError(f"{at}.reserved.memory", pool.reserved.memory, rule))
    for name, layout in (("gpus", pool.gpus), ("rdma", pool.rdma)):
        if layout is not None:
            errors += range_errors(f"{at}.{name}.count", layout.count, low=1, high=MAX_GPUS)
            errors += range_errors(f"{at}.{name}.perPcie", layout.per_pcie, low=1)
    return errors


def _usage_errors(field: str, model: usage_model.UsageModel) -> list[FieldError]:
    wrong = usage_model.usage_model_error(model)
    if wrong is None and not isinstance(
        model, usage_model.Trace
    ):  # whether a trace exists is known when the fleet is made
        tried = usage_model.resolve_load(model, {}, {}, {})
        wrong = tried if isinstance(tried, usage_model.InvalidUsageModel) else None
    return [] if wrong is None else [FieldError(field, type(model).__name__.lower(), wrong.rule)]


def _amount_errors(field: str, amount: Amount) -> list[FieldError]:
    try:
        parsed = Quantity.parse(amount)
    except QuantityError as error:
        return [FieldError(field, amount, str(error))]
    return [] if parsed.sign() >= 0 else [FieldError(field, amount, "must not be negative")]
