"""The OOM scores of containers' processes: set as hooks decide, and put back when nobody asks for them any more.

The kernel keeps a score for each process, and children inherit it. What a container had before is kept in a file that
is written first, so that an agent that was killed in between can still put it back. Values are decided by
`koord.koordlet.hooks.oom_score_adj`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.koordlet.state_file import StateFile
from koord.values.go_format import parse_decimal_int


class OomScoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The score that all processes of a container shall have.

    `original` is the kubelet's; it counts for a container that started with the score, whose files never told another.
    """

    container_id: str
    group: str
    value: int
    original: int


class OomScoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a container's processes that got another score, and the first thing that could not be done.

    A problem without a container is one of the agent's own file, without which nothing is changed.
    """

    container_id: str = ""
    changed: int = 0
    problem: str = ""


class _Adjusted(msgspec.Struct, frozen=True, kw_only=True):
    """A container whose processes have a score from the agent."""

    group: str
    original: int
    written: int


class OomScores:
    """The scores that the agent gave. `processes` lists the processes of a cgroup, none when it is gone."""

    def __init__(self, host: Host, processes: Callable[[str], Sequence[int]], state_path: str) -> None:
        self._host = host
        self._processes = processes
        self._adjusted = StateFile[dict[str, _Adjusted]](host, state_path, dict[str, _Adjusted], {})  # by container

    def apply(self, targets: Sequence[OomScoreTarget]) -> list[OomScoreResult]:
        """Set the scores of these containers, and put back those of all others that the agent ever set."""
        before = self._adjusted.load()
        if isinstance(before, IoError):
            return [OomScoreResult(problem=str(before))]
        running = [(one, pids) for one in targets if (pids := self._processes(one.group))]
        wanted = {one.container_id: self._entry(one, pids, before.get(one.container_id)) for one, pids in running}
        entries = before | wanted
        error = self._adjusted.save(entries)
        if error is not None:
            return [OomScoreResult(problem=str(error))]
        results = [self._set(one.container_id, pids, one.value, None) for one, pids in running]
        kept = {one.container_id for one in targets}
        released = [
            self._set(name, self._processes(one.group), one.original, one.written)
            for name, one in before.items()
            if name not in kept
        ]
        failed = {one.container_id for one in released if one.problem}
        left = {name: one for name, one in entries.items() if name in kept | failed and self._processes(one.group)}
        error = self._adjusted.save(left)
        if error is not None:
            results.append(OomScoreResult(problem=str(error)))
        return [one for one in (*results, *released) if one.changed or one.problem]

    def _entry(self, target: OomScoreTarget, pids: Sequence[int], before: _Adjusted | None) -> _Adjusted:
        if before is not None:
            return _Adjusted(group=target.group, original=before.original, written=target.value)
        found = read_oom_score_adj(self._host, pids[0])
        original = target.original if isinstance(found, IoError) or found == target.value else found
        return _Adjusted(group=target.group, original=original, written=target.value)

    def _set(self, container_id: str, pids: Sequence[int], value: int, only_if: int | None) -> OomScoreResult:
        """Set the score of processes that have another; with `only_if`, of those alone that have this one."""
        changed, problem = 0, ""
        for pid in pids:
            found = read_oom_score_adj(self._host, pid)
            if isinstance(found, int) and (found == value or (only_if is not None and found != only_if)):
                continue
            error = found if isinstance(found, IoError) else write_oom_score_adj(self._host, pid, value)
            if error is None:
                changed += 1
            elif not error.vanished:  # a process that ended needs no score
                problem = problem or str(error)
        return OomScoreResult(container_id=container_id, changed=changed, problem=problem)


def read_oom_score_adj(host: Host, pid: int) -> int | IoError:
    path = _path(host, pid)
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    found = parse_decimal_int(text.strip())
    return malformed(path, f"{text.strip()!r} is no number") if found is None else found


def write_oom_score_adj(host: Host, pid: int, value: int) -> IoError | None:
    return host.write(_path(host, pid), f"{value}\n")


def _path(host: Host, pid: int) -> str:
    return f"{host.paths.proc}/{pid}/oom_score_adj"
