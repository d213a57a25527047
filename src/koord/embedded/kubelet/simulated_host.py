"""One simulated host from the inside: its pods, their resources and IP addresses, and whether its kubelet answers."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from koord.api.kubernetes.pod_resources import is_extended_resource, resource_amounts
from koord.api.model import QuantityText, ResourceList
from koord.embedded.kubelet import node_objects as objects
from koord.embedded.kubelet.node_objects import SimulatedNodeSpec
from koord.embedded.kubelet.pod_behaviour import PodBehaviour
from koord.embedded.kubelet.pod_lifecycle import ContainerRunning, PodDeletion, PodRun
from koord.embedded.kubelet.pod_status import PodStatusFacts
from koord.embedded.kubelet.slim_views import SharedPodTemplate, SlimNode, SlimPod
from koord.embedded.kubelet.usage_model import ZERO_USAGE, PodLoad, SimulatedUsage, max_min_fair_share, usage_at
from koord.values.quantity import Quantity

# machine: it lost power; kubelet: the program is down and containers run on; partition: it cannot reach the server.
Failure: TypeAlias = Literal["machine", "kubelet", "partition"]


class HostUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a host and its pods at a moment. CPU adds up to at most what there is; memory may exceed
    it, and then something is OOM killed.
    """

    system: SimulatedUsage
    pods: dict[str, SimulatedUsage]  # by uid
    total: SimulatedUsage


class SimulatedPod:
    """One pod on a simulated host, with its run and what was last reported of it."""

    __slots__ = (
        "accounted",
        "deletion",
        "host",
        "ip",
        "is_deleted",
        "load",
        "plan",
        "rejected",
        "reported",
        "run",
        "view",
    )

    def __init__(self, view: SlimPod, host: SimulatedHost) -> None:
        self.view = view  # the newest that the server showed
        self.host = host
        self.plan: PodBehaviour | None = None
        self.run: PodRun | None = None  # None until the node looked at it
        self.reported: tuple[PodRun, PodStatusFacts] | None = None  # what was last reported to the server
        self.ip = ""
        self.accounted: SharedPodTemplate | None = None  # what it holds of the node's resources
        self.load: PodLoad | None = None
        self.deletion: PodDeletion | None = None
        self.rejected = False
        self.is_deleted = False  # the server no longer has it

    @property
    def uid(self) -> str:
        return self.view.metadata.uid

    @property
    def template(self) -> SharedPodTemplate:
        assert self.view.template is not None, "only slim views reach a node"
        return self.view.template

    @property
    def is_running(self) -> bool:
        """Return whether one of its main containers runs now."""
        return self.run is not None and any(isinstance(c.state, ContainerRunning) for c in self.run.main)

    def usage(self, t: float, seed: int) -> SimulatedUsage:
        """Return what the pod would use at `t` if it had the host to itself; nothing unless a container runs now."""
        run, load = self.run, self.load
        if run is None or load is None or self.host.failure == "machine":
            return ZERO_USAGE
        since = [c.state.since for c in run.main if isinstance(c.state, ContainerRunning)]
        return usage_at(load, t, started=min(since), seed=seed, pod=self.uid) if since else ZERO_USAGE

    def is_overwritten(self) -> bool:
        """Return whether someone else wrote the pod's phase or readiness, as is done for lost nodes."""
        if self.reported is None:
            return False
        reported, shown = self.reported[0], self.view.status
        return shown.phase != reported.phase or shown.condition("Ready") != (
            "True" if reported.ready.is_true else "False"
        )

    def status_facts(self) -> PodStatusFacts:
        run, generation = self.run, self.view.metadata.generation
        if self.reported is not None and self.deletion is not None and run is not None and not run.is_over:
            generation = self.reported[1].generation  # the last status will carry the deletion's: one write less
        return PodStatusFacts(
            uid=self.uid,
            template=self.template,
            generation=generation,
            host_ip=self.host.machine.address,
            pod_ip=self.ip if run is not None and (run.sandbox.is_true or run.is_over) else "",
        )


class SimulatedHost:
    def __init__(self, machine: SimulatedNodeSpec, now: float) -> None:
        self.machine = machine
        self.pod_cidr = PodCidrAllocator(machine.pod_cidr)
        self.labels: Mapping[str, str] = objects.node_labels(machine)
        self.allocatable: dict[str, int] = resource_amounts(objects.node_allocatable(machine.pool))
        self.used: dict[str, int] = {}
        self.ports: list[tuple[str, str, int]] = []
        self.sim_pods: dict[str, SimulatedPod] = {}
        pool = machine.pool
        self.cpu_milli = Quantity.parse(pool.cpu).milli_value()
        self.system = SimulatedUsage(
            Quantity.parse(pool.system.cpu).milli_value(), Quantity.parse(pool.system.memory).value()
        )
        self.uid = ""  # of its Node; empty while there is none
        self.files: frozenset[str] = frozenset()  # that scripts of pods left in volumes of the type hostPath
        self.kubelet_started_at = now  # when its kubelet came up
        self.failure: Failure | None = None
        self.failed_at = 0.0
        self.pressures: dict[str, tuple[bool, float]] = {}
        self.extended_changes: dict[str, QuantityText | None] = {}  # what the next Node status changes in allocatable
        self.measured: HostUsage | None = None  # by a node agent whose machine knows cgroups

    @property
    def name(self) -> str:
        return self.machine.name

    def observe_node(self, node: SlimNode) -> None:
        """Take over what the Node object says now: pods are judged by it, whoever wrote it."""
        self.labels = node.metadata.labels
        self.allocatable = resource_amounts(node.status.allocatable)
        self.extended_changes = extended_resource_changes(node.status.capacity, node.status.allocatable)

    def demands(self, t: float, seed: int) -> dict[str, SimulatedUsage]:
        """Return what each pod would use at `t` if it had the host to itself."""
        return {uid: sim_pod.usage(t, seed) for uid, sim_pod in self.sim_pods.items()}

    def usage(self, t: float, seed: int) -> HostUsage:
        """Return what a node agent measured last, else the demands of the pods, limited to the CPU that there is."""
        system = ZERO_USAGE if self.failure == "machine" else self.system
        if self.measured is not None and self.failure is None:
            return self.measured
        wanted = self.demands(t, seed)
        pods = max_min_fair_share(wanted, max(0, self.cpu_milli - system.cpu_milli))
        total = system
        for used in pods.values():
            total = total.plus(used)
        return HostUsage(system=system, pods=pods, total=total)

    def account(self, sim_pod: SimulatedPod) -> None:
        """Account the resources and ports of the pod; account them anew after an in-place resize."""
        if sim_pod.accounted is sim_pod.template:
            return
        self._unaccount(sim_pod)
        sim_pod.accounted = sim_pod.template
        self._count(sim_pod.template, 1)
        self.ports += sim_pod.template.host_ports

    def assign_ip(self, sim_pod: SimulatedPod) -> None:
        if sim_pod.view.spec.host_network:
            sim_pod.ip = self.machine.address
        elif not sim_pod.ip:
            sim_pod.ip = self.pod_cidr.allocate() or ""

    def release(self, sim_pod: SimulatedPod) -> None:
        """Release the resources and the address of a pod that no longer runs."""
        if sim_pod.accounted is None:
            return
        self._unaccount(sim_pod)
        if sim_pod.ip and not sim_pod.view.spec.host_network:
            self.pod_cidr.release(sim_pod.ip)

    def _unaccount(self, sim_pod: SimulatedPod) -> None:
        if sim_pod.accounted is not None:
            self._count(sim_pod.accounted, -1)
            for port in sim_pod.accounted.host_ports:
                self.ports.remove(port)
            sim_pod.accounted = None

    def _count(self, template: SharedPodTemplate, sign: int) -> None:
        used = self.used
        for name, amount in template.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        used["pods"] = used.get("pods", 0) + sign


def extended_resource_changes(capacity: ResourceList, allocatable: ResourceList) -> dict[str, QuantityText | None]:
    """Return what a kubelet changes in allocatable: of an extended resource all of the capacity is allocatable,
    whoever wrote it there, and nothing of one that is not in the capacity.
    """
    changes: dict[str, QuantityText | None] = {
        name: amount
        for name, amount in capacity.items()
        if is_extended_resource(name) and allocatable.get(name) != amount
    }
    return changes | {name: None for name in allocatable if name not in capacity and is_extended_resource(name)}


POD_NETWORK = ipaddress.IPv4Network("10.0.0.0/8")
NODE_NETWORK = ipaddress.IPv4Network("172.16.0.0/12")


class NetworkFullError(Exception):
    """Raised when the private networks have no room for another node."""


class PodCidrAllocator:
    """Allocates the addresses of one podCIDR. A released address is reused only after all others had their turn."""

    __slots__ = ("_end", "_next", "_released", "cidr")

    def __init__(self, cidr: str) -> None:
        network = ipaddress.IPv4Network(cidr)
        self.cidr = cidr
        self._next = int(network.network_address) + 2  # .0 is the network, .1 the bridge
        self._end = int(network.broadcast_address)
        self._released: deque[str] = deque()

    def allocate(self) -> str | None:
        """Allocate an address; return None when every address is in use."""
        if self._next < self._end:
            self._next += 1
            return str(ipaddress.IPv4Address(self._next - 1))
        return self._released.popleft() if self._released else None

    def release(self, address: str) -> None:
        self._released.append(address)

    def reserve(self, address: str) -> None:
        """Reserve the address of a pod that ran before this process did."""
        number = int(ipaddress.IPv4Address(address))
        if number >= self._next:
            self._released.extend(str(ipaddress.IPv4Address(n)) for n in range(self._next, number))
            self._next = number + 1
        elif address in self._released:
            self._released.remove(address)


class NodeIpam:
    """Allocates node addresses and podCIDRs in order, so that one profile gets the same ones in every run."""

    def __init__(self) -> None:
        self._nodes = 0
        self._next_block = int(POD_NETWORK.network_address)

    def allocate_node_ip(self) -> str:
        self._nodes += 1
        if self._nodes >= NODE_NETWORK.num_addresses - 1:
            raise NetworkFullError(f"no address left in {NODE_NETWORK} for another node")
        return str(NODE_NETWORK[self._nodes])

    def allocate_pod_cidr(self, pods: int) -> str:
        """Allocate a podCIDR with twice as many addresses as pods, so that an address rests before its next use."""
        bits = max(4, (2 * pods - 1).bit_length())
        size = 1 << bits
        start = -(-self._next_block // size) * size
        if start + size > int(POD_NETWORK.broadcast_address) + 1:
            raise NetworkFullError(f"no block of {size} addresses left in {POD_NETWORK}")
        self._next_block = start + size
        return f"{ipaddress.IPv4Address(start)}/{32 - bits}"
