"""Every value that the agent decided for cgroups of pods: who wants it, why, since when, and what the kernel holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from koord.host.cgroup.knob import CPU_IDLE, CPU_SHARES, CgroupFile
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError
from koord.koordlet.agent_status import CgroupStatus, ContainersStatus, ContainerValue
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.executor_state import KnownFile
from koord.koordlet.hooks.hook import SchemataLine
from koord.koordlet.hooks.registry import DecidedValue, HookDecision
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.runtime_hooks import HookedGroup, HookedPod
from koord.values import timestamp


class AppliedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a file was given or already had. `written_s` is in seconds since the epoch, None for the latter."""

    value: str
    owner: str
    why: str = ""
    written_s: float | None = None


class KernelValue(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file now, in cgroup v1's notation; None when it cannot be read."""

    value: str | None
    differs: bool = False  # from what is wanted
    path: str = ""


class AppliedFiles(Protocol):
    """The memory of the writer of a machine's cgroup files, and the files themselves."""

    def applied(self, group: str) -> Mapping[str, AppliedValue]:
        """Return the values of a group by knob."""

    def refusal(self, group: str, knob: str) -> str:
        """Return why the kernel refuses the wanted value; "" when it does not."""

    def read(self, group: str, knob: str, wanted: str) -> KernelValue: ...


class HostFiles:
    """The files of this machine. It is made for one question: what the executor knows is grouped once."""

    def __init__(self, tree: CgroupTree, executor: CgroupExecutor) -> None:
        self._tree = tree
        self._refusals = executor.refusals
        self._known: dict[str, dict[str, KnownFile]] = {}
        for (knob, group, part), known in executor.known_files.items():
            if not part:
                self._known.setdefault(group, {})[knob] = known

    def applied(self, group: str) -> Mapping[str, AppliedValue]:
        return {
            knob: AppliedValue(value=one.value, owner=one.owner, why=one.why, written_s=one.written_s)
            for knob, one in self._known.get(group, {}).items()
        }

    def refusal(self, group: str, knob: str) -> str:
        refused = self._refusals.get((knob, group, ""))
        return "" if refused is None else refused.code

    def read(self, group: str, knob: str, wanted: str) -> KernelValue:
        path, codec = self._tree.path(CgroupFile(knob, group)) or "", self._tree.codec(knob)
        text = self._tree.read(knob, group)
        field = None if isinstance(text, IoError) or codec is None else codec.extract(text, "")
        if field is None or codec is None:
            return KernelValue(value=None, path=path)
        target = codec.encode(wanted)
        differs = target is None or not codec.same_field(field, target)
        return KernelValue(value=codec.decode(field), differs=differs, path=path)


class _PodGroup(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    group: str
    container: str = ""
    id: str = ""


def containers_status(
    pods: Iterable[PodMeta],
    tree: CgroupTree,
    executor: CgroupExecutor,
    hooked: Mapping[str, HookedPod],
    *,
    safe_mode: bool,
) -> ContainersStatus:
    """Return the values of these pods and of their containers. What the kernel holds is read now."""
    return pods_status(pods, HostFiles(tree, executor), hooked, safe_mode=safe_mode)


def pods_status(
    pods: Iterable[PodMeta], files: AppliedFiles, hooked: Mapping[str, HookedPod], *, safe_mode: bool = False
) -> ContainersStatus:
    """Return the values of these pods on any machine, real or simulated."""
    found: list[CgroupStatus] = []
    for pod in pods:
        decided = hooked.get(pod.uid)
        groups = {} if decided is None else {one.group: one for one in decided.groups}
        for one in _groups(pod, decided):
            hooks = groups.get(one.group)
            values = _applied_values(files, one.group)
            decisions: tuple[HookDecision, ...] = ()
            if decided is not None and hooks is not None:
                values += _missing_values(files, decided, hooks, safe_mode=safe_mode)
                decisions = (hooks.decision, hooks.creation(decided.rules))
            found.append(
                CgroupStatus(
                    level=one.level,
                    namespace=pod.namespace,
                    pod=pod.name,
                    uid=pod.uid,
                    group=one.group,
                    container=one.container,
                    id=one.id,
                    values=tuple(values),
                    others={name: text for each in decisions for name, text in _others(each).items()},
                    problems=tuple(f"{p.hook}: {p.problem}" for each in decisions for p in each.problems),
                )
            )
    return ContainersStatus(containers=tuple(found))


def _groups(pod: PodMeta, decided: HookedPod | None) -> list[_PodGroup]:
    found = [_PodGroup(level="pod", group=pod.group)] if pod.group else []
    if decided is not None and decided.sandbox:
        found.append(_PodGroup(level="sandbox", group=decided.sandbox))
    containers = (*pod.init_containers, *pod.containers)
    return found + [
        _PodGroup(level="container", group=one.group, container=one.name, id=one.id) for one in containers if one.group
    ]


def _applied_values(files: AppliedFiles, group: str) -> list[ContainerValue]:
    values: list[ContainerValue] = []
    for knob, applied in sorted(files.applied(group).items()):
        kernel = files.read(group, knob, applied.value)
        values.append(
            ContainerValue(
                knob=knob,
                wanted=applied.value,
                kernel=kernel.value,
                decided_by=applied.owner,
                why=applied.why,
                written_at=_time_text(applied.written_s),
                differs=kernel.differs,
                path=kernel.path,
            )
        )
    return values


def _missing_values(
    files: AppliedFiles, pod: HookedPod, hooks: HookedGroup, *, safe_mode: bool
) -> Iterator[ContainerValue]:
    """Return the values that hooks decided and that no file was given, with the reason."""
    applied = files.applied(hooks.group)
    for knob, decided in sorted(hooks.decision.values.items()):
        if knob in applied:
            continue
        kernel = files.read(hooks.group, knob, decided.value)
        yield ContainerValue(
            knob=knob,
            wanted=decided.value,
            kernel=kernel.value,
            decided_by=decided.hook,
            why=decided.why,
            problem=_why_missing(files, pod, hooks.group, decided, safe_mode=safe_mode),
            differs=kernel.differs,
            path=kernel.path,
        )


def _why_missing(files: AppliedFiles, pod: HookedPod, group: str, decided: DecidedValue, *, safe_mode: bool) -> str:
    if safe_mode:
        return "safe mode: nothing is written"
    rules = pod.rules
    throttled = pod.pod.uid in rules.throttled and group != pod.pod.group
    owner = file_ownership.owner_of(
        decided.knob,
        pod.pod,
        rules.gates,
        unset_cpu_quota=rules.settings.unset_cpu_quota,
        throttled=throttled,
    )
    if owner is not None and owner != decided.hook:
        return f"the file belongs to {owner}"
    if refused := files.refusal(group, decided.knob):
        return f"the kernel refuses it: {refused}"
    if decided.knob == CPU_SHARES and files.read(group, CPU_IDLE, "0").value == "1":
        return "the group is idle (cpu.idle 1), which has no shares"
    return "not written yet"


def _others(decision: HookDecision) -> dict[str, str]:
    """Return what is not a cgroup value: of the running container, and of its making."""
    score = decision.oom_score_adj
    wanted = {
        "oom_score_adj": "" if score is None else str(score),
        "resctrl group": decision.resctrl_group or "",
        **{f"schemata {line.resource}": _schemata_text(line) for line in decision.schemata},
        "core scheduling group": decision.core_sched_group or "",
        **{f"env {name}": value for name, value in decision.env.items()},
        **{f"mount {one.destination}": f"from {one.source}" for one in decision.mounts},
        "devices": ", ".join(one.path for one in decision.devices),
        "verbs devices of": ", ".join(one.pci_address for one in decision.rdma),
    }
    return {name: text for name, text in wanted.items() if text}


def _schemata_text(line: SchemataLine) -> str:
    return ";".join(f"{cache}={value}" for cache, value in line.by_cache)


def _time_text(at_s: float | None) -> str:
    return "" if at_s is None else timestamp.text(datetime.fromtimestamp(at_s, UTC))
