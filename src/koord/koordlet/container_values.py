"""Every value that the agent decided for cgroups of pods: who wants it, why, since when, and what the kernel holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError
from koord.koordlet.cgroup_writer.effects import FileKey
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.executor_state import KnownFile, RefusedWrite
from koord.koordlet.hook_status import ContainersStatus, ContainerStatus, ContainerValue
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.runtime_hooks import HookedGroup, HookedPod
from koord.values import timestamp


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
    files: dict[str, dict[str, KnownFile]] = {}
    for (knob, group, part), known in executor.known_files.items():
        if not part:
            files.setdefault(group, {})[knob] = known
    found: list[ContainerStatus] = []
    for pod in pods:
        decided = hooked.get(pod.uid)
        groups = {} if decided is None else {one.group: one for one in decided.groups}
        for one in _groups(pod, decided):
            hooks = groups.get(one.group)
            values = _values(tree, one.group, files.get(one.group, {}), executor.refusals, hooks, safe_mode=safe_mode)
            problems = () if hooks is None else tuple(f"{p.hook}: {p.problem}" for p in hooks.decision.problems)
            found.append(
                ContainerStatus(
                    level=one.level,
                    namespace=pod.namespace,
                    pod=pod.name,
                    uid=pod.uid,
                    group=one.group,
                    container=one.container,
                    id=one.id,
                    values=values,
                    problems=problems,
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


def _values(
    tree: CgroupTree,
    group: str,
    files: Mapping[str, KnownFile],
    refusals: Mapping[FileKey, RefusedWrite],
    hooks: HookedGroup | None,
    *,
    safe_mode: bool,
) -> tuple[ContainerValue, ...]:
    """Return the values that files hold, then those that hooks decided and that no file holds, with the reason."""
    values = [
        ContainerValue(
            knob=knob,
            wanted=known.value,
            kernel=_kernel(tree, group, knob),
            decided_by=known.owner,
            why=known.why,
            written_at=_time_text(known.written_s),
        )
        for knob, known in sorted(files.items())
    ]
    for knob, decided in {} if hooks is None else sorted(hooks.decision.values.items()):
        if knob in files:
            continue
        refused = refusals.get((knob, group, ""))
        problem = "safe mode: nothing is written" if safe_mode else "not written yet"
        values.append(
            ContainerValue(
                knob=knob,
                wanted=decided.value,
                kernel=_kernel(tree, group, knob),
                decided_by=decided.hook,
                why=decided.why,
                problem=problem if refused is None else f"the kernel refuses it: {refused.code}",
            )
        )
    return tuple(values)


def _kernel(tree: CgroupTree, group: str, knob: str) -> str | None:
    found = tree.value(knob, group)
    return None if isinstance(found, IoError) else found


def _time_text(at_s: float | None) -> str:
    return "" if at_s is None else timestamp.text(datetime.fromtimestamp(at_s, UTC))
