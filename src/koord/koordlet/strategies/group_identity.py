"""The GroupIdentity strategy: which groups win when tasks compete for a CPU, by bvt_warp_ns or, without it, cpu.idle.

Kernels without group identity can still let BE run only on CPUs that nobody else wants (cpu.idle). It is set on the BE
root alone, as the shares of pods cannot be changed while they are idle.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import cpu_qos
from koord.api.annotations.codec import Malformed
from koord.api.config.slo.defaults import GROUP_IDENTITY
from koord.api.qos_class import BE, BEST_EFFORT, GUARANTEED, LS, LSE, LSR
from koord.api.slo_strategy import ResourceQOSStrategy
from koord.koordlet.plan import Effect, Plan, WriteCgroup, WriteSystem
from koord.koordlet.pod import PodView
from koord.koordlet.strategies import file
from koord.koordlet.strategies.slo import class_of

OWNER = "GroupIdentity"
CAUSE = "GroupIdentity"
# Group identity and core scheduling exclude each other and share these switches: whichever runs writes them as this.
SWITCH_OWNER = "CPUPolicy"
BE_SHARES = 2  # the kubelet's for all pods without requests together


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    has_bvt: bool = False  # whether groups have the file
    identity_switch: int | None = None  # the machine's switch; None where there is none
    identity_wish: int | None = None  # what the system strategy wants it to be while no class needs it
    core_switch: int | None = None  # of core scheduling, which excludes group identity
    has_idle: bool = False
    idle_stands_in: bool = True  # the operator's word: upstream leaves such kernels alone
    idle: int | None = None  # of the BE directory now
    groups: Mapping[str, str] = {}  # cgroup by Kubernetes' QoS class
    pods: tuple[PodView, ...] = ()
    children: Mapping[str, tuple[str, ...]] = {}  # cgroups in a pod's
    leftovers: tuple[tuple[str, str], ...] = ()  # cgroups of unlisted pods, with their Kubernetes QoS class
    applications: tuple[tuple[str, str], ...] = ()  # cgroups of host applications, with their QoS class


class Identities(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The bvt_warp_ns of each class; None where a class is not enabled."""

    lsr: int | None
    ls: int | None
    be: int | None

    @property
    def any_enabled(self) -> bool:
        return (self.lsr, self.ls, self.be) != (None, None, None)

    def of_kube(self, kube_qos: str) -> int:
        if kube_qos == GUARANTEED:
            return next((value for value in (self.lsr, self.ls) if value is not None), 0)
        return (self.be if kube_qos == BEST_EFFORT else self.ls) or 0

    def of_class(self, qos: str) -> int:
        return {LSE: self.lsr, LSR: self.lsr, LS: self.ls, BE: self.be}.get(qos) or 0

    def of_pod(self, pod: PodView) -> int:
        value = self.of_class(pod.qos) if pod.qos else self.of_kube(pod.kube_qos)
        own = cpu_qos.parse(pod.annotations) if pod.qos == LS else None
        if own is None or isinstance(own, Malformed):
            return value
        return (value if own.group_identity is None else own.group_identity) if own.enable else 0


def _is_ours(strategy: ResourceQOSStrategy) -> bool:
    policy = None if strategy.policies is None else strategy.policies.cpu_policy
    return policy in (None, "", GROUP_IDENTITY)


def identities(strategy: ResourceQOSStrategy) -> Identities:
    """Return the values of the classes that the strategy enables."""
    ours = _is_ours(strategy)

    def value(qos: str) -> int | None:
        block = class_of(strategy, qos)
        config = None if block is None else block.cpu_qos
        if config is None or not config.enable or not ours:
            return None
        return config.group_identity or 0

    return Identities(lsr=value(LSR), ls=value(LS), be=value(BE))


def decide_group_identity(seen: IdentityView) -> Plan:
    """Decide the values of all groups and the kernel's switches."""
    if seen.strategy is None:
        return Plan(why="no NodeSLO was seen yet")
    found = identities(seen.strategy)
    if not seen.has_bvt and seen.identity_switch is None:
        return _idle(seen, seen.strategy, found)
    effects: list[Effect] = []
    if not found.any_enabled and seen.identity_switch == 0:
        if seen.identity_wish == 1 and _is_ours(seen.strategy):
            effects.append(_switch(file.GROUP_IDENTITY_ENABLED, 1, "systemStrategy wants it"))
        return Plan(effects=tuple(effects), why="no class has group identity")
    if found.any_enabled:
        if seen.core_switch is not None:
            effects.append(_switch(file.SCHED_CORE, 0, "group identity is on"))
        if seen.identity_switch is not None:
            effects.append(_switch(file.GROUP_IDENTITY_ENABLED, 1, "group identity is on"))
    for kube_qos, group in seen.groups.items():
        effects.append(_bvt(group, 0 if kube_qos == GUARANTEED else found.of_kube(kube_qos), kube_qos))
    for pod in seen.pods:
        value, why = found.of_pod(pod), f"{pod.qos or pod.kube_qos} pod"
        effects += [_bvt(group, value, why) for group in (pod.group, *seen.children.get(pod.group, ()))]
    effects += [_bvt(group, found.of_kube(kube_qos), f"in {kube_qos}") for group, kube_qos in seen.leftovers]
    effects += [_bvt(group, found.of_class(qos), f"{qos} application") for group, qos in seen.applications]
    if not found.any_enabled and seen.identity_switch == 1 and seen.identity_wish == 0 and _is_ours(seen.strategy):
        effects.append(_switch(file.GROUP_IDENTITY_ENABLED, 0, "systemStrategy wants it"))
    return Plan(effects=tuple(effects))


def _idle(seen: IdentityView, strategy: ResourceQOSStrategy, found: Identities) -> Plan:
    group = seen.groups.get(BEST_EFFORT)
    if not seen.has_idle or group is None:
        return Plan(why="this kernel has neither group identity nor idle groups")
    if not _is_ours(strategy):
        return Plan(why="another cpuPolicy sets idle groups itself")
    if seen.idle_stands_in and found.be is not None and found.be < 0:
        why = f"BE has identity {found.be}, idle groups stand in"
        return Plan(effects=(_write(group, file.CPU_IDLE, 1, why, SWITCH_OWNER),))
    why = "BE has no identity below others"
    if not seen.idle:
        return Plan(why=why)
    # A group that stops being idle gets the weight of a normal one from the kernel; BE must not keep that.
    return Plan(
        effects=(
            _write(group, file.CPU_IDLE, 0, why, SWITCH_OWNER),
            _write(group, file.CPU_SHARES, BE_SHARES, "after idle", SWITCH_OWNER),
        )
    )


def _bvt(group: str, value: int, why: str) -> WriteCgroup:
    return _write(group, file.CPU_BVT, value, why)


def _write(group: str, name: str, value: int, why: str, owner: str = OWNER) -> WriteCgroup:
    return WriteCgroup(group=group, file=name, value=str(value), owner=owner, cause=CAUSE, why=why)


def _switch(name: str, value: int, why: str) -> WriteSystem:
    return WriteSystem(file=name, value=str(value), owner=SWITCH_OWNER, cause=CAUSE, why=why)
