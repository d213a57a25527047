"""One simulated host from the inside: its pods, the resources and IP addresses that they take, and whether
its kubelet can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from koord.api.pod_resources import amounts
from koord.embedded.kubelet import machine as objects
from koord.embedded.kubelet.address import PodBlock
from koord.embedded.kubelet.behaviour import Plan
from koord.embedded.kubelet.machine import Machine
from koord.embedded.kubelet.podlife import Deletion, Run, Running
from koord.embedded.kubelet.podstatus import About
from koord.embedded.kubelet.usage import NOTHING, Load, Usage, fair_share, usage_at
from koord.embedded.kubelet.view import PodView, Template
from koord.values.quantity import Quantity

# machine: it lost power; kubelet: the program is down and containers run on; partition: it cannot reach the server.
Failure: TypeAlias = Literal["machine", "kubelet", "partition"]


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a host and its pods at a moment. CPU adds up to at most what there is; memory may exceed
    it, and then something is OOM killed.
    """

    system: Usage
    pods: dict[str, Usage]  # by uid
    total: Usage


class Tenant:
    """One pod on a simulated host, with its run and what was last reported of it."""

    __slots__ = ("deletion", "gone", "held", "host", "ip", "load", "plan", "rejected", "run", "told", "view")

    def __init__(self, view: PodView, host: Host) -> None:
        self.view = view  # the newest that the server showed
        self.host = host
        self.plan: Plan | None = None
        self.run: Run | None = None  # None until the node looked at it
        self.told: tuple[Run, About] | None = None  # what was last reported to the server
        self.ip = ""
        self.held: Template | None = None  # what it holds of the node's resources
        self.load: Load | None = None
        self.deletion: Deletion | None = None
        self.rejected = False
        self.gone = False  # the server no longer has it

    @property
    def uid(self) -> str:
        return self.view.metadata.uid

    @property
    def template(self) -> Template:
        assert self.view.template is not None, "only slim views reach a node"
        return self.view.template

    @property
    def runs(self) -> bool:
        """Return whether one of its main containers runs now."""
        return self.run is not None and any(isinstance(c.state, Running) for c in self.run.main)

    def usage(self, t: float, seed: int) -> Usage:
        """Return what the pod would use at `t` if it had the host to itself; nothing unless a container runs now."""
        run, load = self.run, self.load
        if run is None or load is None or self.host.failure == "machine":
            return NOTHING
        since = [c.state.since for c in run.main if isinstance(c.state, Running)]
        return usage_at(load, t, started=min(since), seed=seed, pod=self.uid) if since else NOTHING

    def contradicted(self) -> bool:
        """Return whether someone else wrote the pod's phase or readiness, as the node lifecycle controller does
        for lost nodes.
        """
        if self.told is None:
            return False
        told, shown = self.told[0], self.view.status
        return shown.phase != told.phase or shown.condition("Ready") != ("True" if told.ready.up else "False")

    def about(self) -> About:
        run, generation = self.run, self.view.metadata.generation
        if self.told is not None and self.deletion is not None and run is not None and not run.over:
            generation = self.told[1].generation  # the last status will carry the deletion's: one write less
        return About(
            uid=self.uid,
            template=self.template,
            generation=generation,
            host_ip=self.host.machine.address,
            pod_ip=self.ip if run is not None and (run.sandbox.up or run.over) else "",
        )


class Host:
    def __init__(self, machine: Machine, now: float) -> None:
        self.machine = machine
        self.block = PodBlock(machine.pod_cidr)
        self.labels: Mapping[str, str] = objects.labels(machine)
        self.allocatable: dict[str, int] = amounts(objects.allocatable(machine.pool))
        self.used: dict[str, int] = {}
        self.ports: list[tuple[str, str, int]] = []
        self.tenants: dict[str, Tenant] = {}
        pool = machine.pool
        self.cpu_milli = Quantity.parse(pool.cpu).milli_value()
        self.system = Usage(Quantity.parse(pool.system.cpu).milli_value(), Quantity.parse(pool.system.memory).value())
        self.uid = ""  # of its Node; empty while there is none
        self.since = now  # when its kubelet came up
        self.failure: Failure | None = None
        self.failed_at = 0.0
        self.pressures: dict[str, tuple[bool, float]] = {}
        self.measured: NodeUsage | None = None  # by a node agent whose machine knows cgroups

    @property
    def name(self) -> str:
        return self.machine.name

    def wishes(self, t: float, seed: int) -> dict[str, Usage]:
        """Return what each pod would use at `t` if it had the host to itself."""
        return {uid: tenant.usage(t, seed) for uid, tenant in self.tenants.items()}

    def usage(self, t: float, seed: int) -> NodeUsage:
        """Return what a node agent measured last, where one runs; else the demands of the pods, limited to the CPU
        that there is.
        """
        system = NOTHING if self.failure == "machine" else self.system
        if self.measured is not None and self.failure is None:
            return self.measured
        wanted = self.wishes(t, seed)
        pods = fair_share(wanted, max(0, self.cpu_milli - system.cpu_milli))
        total = system
        for used in pods.values():
            total = total.plus(used)
        return NodeUsage(system=system, pods=pods, total=total)

    def hold(self, tenant: Tenant) -> None:
        """Account the resources and ports of the pod; account them anew after an in-place resize."""
        if tenant.held is tenant.template:
            return
        self._release(tenant)
        tenant.held = tenant.template
        self._count(tenant.template, 1)
        self.ports += tenant.template.host_ports

    def give_address(self, tenant: Tenant) -> None:
        if tenant.view.spec.host_network:
            tenant.ip = self.machine.address
        elif not tenant.ip:
            tenant.ip = self.block.take() or ""

    def let_go(self, tenant: Tenant) -> None:
        """Release the resources and the address of a pod that no longer runs."""
        if tenant.held is None:
            return
        self._release(tenant)
        if tenant.ip and not tenant.view.spec.host_network:
            self.block.free(tenant.ip)

    def _release(self, tenant: Tenant) -> None:
        if tenant.held is not None:
            self._count(tenant.held, -1)
            for port in tenant.held.host_ports:
                self.ports.remove(port)
            tenant.held = None

    def _count(self, template: Template, sign: int) -> None:
        used = self.used
        for name, amount in template.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        used["pods"] = used.get("pods", 0) + sign
