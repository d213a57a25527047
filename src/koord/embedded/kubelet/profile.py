"""Parse and validate node profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from koord.api.affinity import Taint
from koord.api.config.field_error import FieldError, one_of, unique, within
from koord.embedded.kubelet.shape import GpuLayout, NodeShape, RdmaLayout, gpus, nics
from koord.embedded.kubelet.usage import BadUsage, Constant, Model, Trace, load_of, nonsense
from koord.values.names import dns1123_subdomain, label_value, qualified_name
from koord.values.quantity import Quantity, QuantityError

Amount = str | int | float
MAX_GPUS = 64
# A kubelet's default hard eviction threshold for memory.available is kept out of allocatable.
EVICTION_MEMORY_BYTES = 100 << 20
_SNAKE = {"sockets": "sockets", "numaNodes": "numa_nodes", "threadsPerCore": "threads_per_core"}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Reserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that a kubelet reserves from pods: kubeReserved and systemReserved together."""

    cpu: Amount = 0
    memory: Amount = 0
    ephemeral_storage: Amount = msgspec.field(default=0, name="ephemeral-storage")


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that the operating system and the daemons of a node use all the time."""

    cpu: Amount = "200m"
    memory: Amount = "1Gi"


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
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
    reserved: Reserved = Reserved()
    system: System = System()
    usage: Model = Constant()  # of pods that say nothing of theirs

    def node_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def shape(self, node: str) -> NodeShape:
        """Return the hardware of the node of this name."""
        cpus, memory_bytes = units(self.cpu), units(self.memory)
        gpu_bytes = units(self.gpus.memory) if self.gpus else 0
        return NodeShape(
            sockets=self.sockets,
            numa_nodes=self.numa_nodes,
            cores=cpus // self.threads_per_core,
            threads_per_core=self.threads_per_core,
            memory_bytes=memory_bytes,
            gpus=gpus(self.gpus, gpu_bytes, node, self.numa_nodes, self.sockets) if self.gpus else (),
            nics=nics(self.rdma, self.numa_nodes, self.sockets) if self.rdma else (),
        )


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pools: tuple[Pool, ...]


class BadProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why a profile cannot be used; every error names its field."""

    source: str
    errors: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {error}" for error in self.errors)


def units(amount: Amount) -> int:
    return Quantity.parse(amount).value()


def default_pools(count: int) -> tuple[Pool, ...]:
    """Return a pool of `count` plain nodes of 32 CPUs and 128 GiB, spread over three zones."""
    return (Pool(name="node", count=count, zones=("zone-a", "zone-b", "zone-c"), region="local"),) if count else ()


def load(path: Path) -> tuple[Pool, ...] | BadProfile:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return BadProfile(source=str(path), errors=(f"cannot be read: {error}",))
    return parse(text, str(path))


def parse(text: str, source: str = "profile") -> tuple[Pool, ...] | BadProfile:
    """Parse a profile, a document with `pools`, and return its pools."""
    try:
        plain: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return BadProfile(source=source, errors=(f"is not YAML: {error}",))
    try:
        profile = msgspec.convert(plain, Profile)
    except msgspec.ValidationError as error:
        return BadProfile(source=source, errors=(_placed(error),))
    errors = check(profile.pools)
    return BadProfile(source=source, errors=tuple(str(error) for error in errors)) if errors else profile.pools


def _placed(error: msgspec.ValidationError) -> str:
    """Put the field first: msgspec says "Expected X, got Y - at `$.pools[0].cpu`"."""
    what, at, where = str(error).rpartition(" - at `$.")
    return f"{where.rstrip('`')}: {what}" if at else str(error)


def check(pools: tuple[Pool, ...]) -> list[FieldError]:
    errors = unique("pools.name", [pool.name for pool in pools])
    for index, pool in enumerate(pools):
        errors += _pool_errors(f"pools[{index}]", pool)
    return errors


def _pool_errors(at: str, pool: Pool) -> list[FieldError]:
    errors = [FieldError(f"{at}.name", pool.name, rule) for rule in dns1123_subdomain(f"{pool.name}-0")]
    errors += within(f"{at}.count", pool.count, low=0, high=100_000)
    errors += within(f"{at}.pods", pool.pods, low=1, high=4096)
    for name in ("sockets", "numaNodes", "threadsPerCore"):
        errors += within(f"{at}.{name}", getattr(pool, _SNAKE[name]), low=1)
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
    for index, taint in enumerate(pool.taints):
        errors += [FieldError(f"{at}.taints[{index}].key", taint.key, rule) for rule in qualified_name(taint.key)]
        errors += one_of(f"{at}.taints[{index}].effect", taint.effect, _EFFECTS)
    errors += _usage_errors(f"{at}.usage", pool.usage)
    # Sizes are compared only when each of them is sane on its own.
    return errors or _shape_errors(at, pool)


def _shape_errors(at: str, pool: Pool) -> list[FieldError]:
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
    if units(pool.reserved.memory) + EVICTION_MEMORY_BYTES >= units(pool.memory):
        rule = f"must leave more than 100Mi of memory ({pool.memory})"
        errors.append(FieldError(f"{at}.reserved.memory", pool.reserved.memory, rule))
    for name, layout in (("gpus", pool.gpus), ("rdma", pool.rdma)):
        if layout is not None:
            errors += within(f"{at}.{name}.count", layout.count, low=1, high=MAX_GPUS)
            errors += within(f"{at}.{name}.perPcie", layout.per_pcie, low=1)
    return errors


def _usage_errors(field: str, model: Model) -> list[FieldError]:
    wrong = nonsense(model)
    if wrong is None and not isinstance(model, Trace):  # whether a trace exists is known when the fleet is made
        tried = load_of(model, {}, {}, {})
        wrong = tried if isinstance(tried, BadUsage) else None
    return [] if wrong is None else [FieldError(field, type(model).__name__.lower(), wrong.rule)]


def _amount_errors(field: str, amount: Amount) -> list[FieldError]:
    try:
        parsed = Quantity.parse(amount)
    except QuantityError as error:
        return [FieldError(field, amount, str(error))]
    return [] if parsed.sign() >= 0 else [FieldError(field, amount, "must not be negative")]
