"""The resctrl groups of single pods: made, filled with the pod's threads, and removed with the pod.

The groups are the agent's own, so nothing of them is kept in the journal: the kernel puts the threads of a removed
group back into the root group, where the groups of QoS classes find them. What a group shall have is decided by
`koord.koordlet.hooks.resctrl_pod`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from koord.host import resctrl
from koord.host.cgroup.codec import SchemataCodec
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.koordlet.hooks.hook import SchemataLine
from koord.koordlet.hooks.resctrl_pod import GROUP_PREFIX, mba_value
from koord.koordlet.inputs.machine import L3Cache
from koord.telemetry.clock import Clock

_CODECS: dict[Literal["L3", "MB"], SchemataCodec] = {"L3": SchemataCodec("L3", 16), "MB": SchemataCodec("MB", 10)}
# A runtime refuses a container whose group is gone, and a pod that starts may be in no list yet.
_GRACE_S = 10.0


class PodResctrlTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted content of one pod's group. Resources without a line have no limit; threads are added, never taken."""

    group: str
    schemata: tuple[SchemataLine, ...] = ()
    threads: tuple[int, ...] = ()


class PodResctrlResult(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to one group, in words, and the first thing that could not be done."""

    group: str
    done: tuple[str, ...] = ()
    problem: str = ""


class PodResctrlGroups:
    """The resctrl groups of the pods of this machine. `cache` tells how the cache is divided now."""

    def __init__(self, host: Host, clock: Clock, cache: Callable[[], L3Cache]) -> None:
        self._host = host
        self._clock = clock
        self._cache = cache
        self._wanted_at: dict[str, float] = {}  # when a group was last wanted, or first seen

    def make(self, target: PodResctrlTarget) -> PodResctrlResult:
        """Make the group of a pod and write its schemata: a container can only start in a group that exists."""
        self._wanted_at[target.group] = self._clock.monotonic()
        exists = self._host.is_folder(resctrl.group_dir(self._host, target.group))
        error = resctrl.make_group(self._host, target.group)
        if error is not None:
            return PodResctrlResult(group=target.group, problem=str(error))
        done = [] if exists else ["made"]
        error = self._write_schemata(target, done)
        return PodResctrlResult(group=target.group, done=tuple(done), problem="" if error is None else str(error))

    def apply(self, targets: Sequence[PodResctrlTarget]) -> list[PodResctrlResult]:
        """Bring all groups to what is wanted, and remove those that no pod has wanted for a while."""
        results = [self._apply_one(target) for target in targets]
        return [*results, *self._remove_stale({target.group for target in targets})]

    def remove(self, group: str) -> PodResctrlResult:
        """Remove the group of a pod that is gone; one that does not exist is no problem."""
        self._wanted_at.pop(group, None)
        error = resctrl.remove_group(self._host, group)
        if error is not None:
            return PodResctrlResult(group=group, problem=str(error))
        return PodResctrlResult(group=group, done=("removed",))

    def _apply_one(self, target: PodResctrlTarget) -> PodResctrlResult:
        made = self.make(target)
        if made.problem:
            return made
        held = resctrl.tasks(self._host, target.group)
        if isinstance(held, IoError):
            return msgspec.structs.replace(made, problem=str(held))
        missing = sorted(set(target.threads) - set(held))
        if not missing:
            return made
        errors = resctrl.add_tasks(self._host, target.group, missing)
        lost = [one for one in errors if one.errno != errno.ESRCH]  # a thread that ended is no problem
        done = (*made.done, f"{len(missing) - len(errors)} threads") if len(missing) > len(errors) else made.done
        return PodResctrlResult(group=target.group, done=done, problem=str(lost[0]) if lost else "")

    def _write_schemata(self, target: PodResctrlTarget, done: list[str]) -> IoError | None:
        path = f"{resctrl.group_dir(self._host, target.group)}/schemata"
        text = self._host.read(path)
        if isinstance(text, IoError):
            return text
        wanted = {line.resource: line.by_cache for line in target.schemata}
        for resource, codec in _CODECS.items():
            held = codec.extract(text, resource)
            if held is None:
                if resource in wanted:
                    return malformed(path, f"the kernel has no {resource} there")
                continue
            by_cache = wanted.get(resource) or self._unlimited(resource)
            field = ";".join(f"{cache}={value}" for cache, value in by_cache)
            if not field or codec.same_field(held, field):
                continue
            error = self._host.write(path, codec.render(text, resource, field))
            if error is not None:
                return error
            done.append(f"{resource}:{field}")
        return None

    def _unlimited(self, resource: Literal["L3", "MB"]) -> tuple[tuple[int, str], ...]:
        """Return what a group has that nobody limits, for a line that the pod no longer asks for."""
        cache = self._cache()
        value = f"{cache.mask:x}" if resource == "L3" else mba_value(cache.vendor, 100, cache.limits) or ""
        return tuple((one, value) for one in sorted(cache.ids))

    def _remove_stale(self, wanted: set[str]) -> list[PodResctrlResult]:
        there = resctrl.groups(self._host)
        if isinstance(there, IoError):
            return [] if there.vanished else [PodResctrlResult(group="", problem=str(there))]
        ours = {name for name in there if name.startswith(GROUP_PREFIX)}
        now = self._clock.monotonic()
        self._wanted_at = {name: at for name, at in self._wanted_at.items() if name in ours}
        since = {name: self._wanted_at.setdefault(name, now) for name in sorted(ours - wanted)}
        return [self.remove(name) for name, at in since.items() if now - at >= _GRACE_S]
