"""Give containers the cookies of their core scheduling groups, and take them away again.

A group's cookie is known by the processes that have it; the kernel has no list. What is remembered is which cookie was
made for which group, and it is checked against the processes on every call: a process that came, went or moved is
noticed, whoever caused it. Which containers were given cookies is kept in a file, so that a later agent can take them
away. The cookie of a container that is not in it, an application's own for example, stays unless the container is to be
in a group.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from koord.host.cgroup import usage
from koord.host.cgroup.knob import GROUP_IDENTITY_ENABLED, SCHED_CORE
from koord.host.cgroup.tree import CgroupTree
from koord.host.core_sched import NO_COOKIE, CookieSystem, has_feature
from koord.host.io_error import IoError
from koord.koordlet.hooks.core_sched import NO_GROUP, CoreSchedKernel
from koord.koordlet.hooks.hook import ContainerContext
from koord.koordlet.state_file import StateFile


class CoreSchedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container and the group that it is to be in: `core_sched_group` of its hooks' decision."""

    container: ContainerContext
    group: str | None  # "" for no group, None to leave it alone


class CoreSchedOutcome(enum.Enum):
    KEPT = "kept"  # all its processes have the cookie of the group, or need none
    ASSIGNED = "assigned"  # processes got the cookie of the group
    ADDED = "added"  # the group got a cookie, as nobody had one
    CLEARED = "cleared"
    EMPTY = "empty"  # no process that could be asked
    LEFT = "left"  # not asked for, or nothing of ours to take away
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class CoreSchedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request. `cookie` is that of the container's processes afterwards, 0 for none."""

    container: ContainerContext
    group: str
    outcome: CoreSchedOutcome
    cookie: int = NO_COOKIE
    why: str = ""


class _Member(msgspec.Struct):
    """A container with the cookies of its processes, in the order of their ids."""

    request: CoreSchedRequest
    cookies: dict[int, int]

    @property
    def container(self) -> ContainerContext:
        return self.request.container


class CoreSchedManager:
    """Holds which cookie belongs to which group. Call `apply` with all containers of the node, after the switches of
    the node's plan were written.
    """

    def __init__(
        self, tree: CgroupTree, cookies: CookieSystem, record_path: str, own_process: int | None = None
    ) -> None:
        """`own_process` is the agent's, by default this one: what has a cookie can take none from others."""
        self._tree = tree
        self._cookies = cookies
        # The containers with cookies from the agent. The kernel does not tell who made a cookie, so the file is written
        # before the first one of a container, and an agent that was killed knows from whom cookies are to be taken.
        self._record = StateFile(tree.host, record_path, frozenset[str], frozenset())
        self._own_process = os.getpid() if own_process is None else own_process
        self._by_group: dict[str, int] = {}

    @property
    def has_given(self) -> bool:
        """Return whether containers have cookies from this agent or from an earlier one."""
        return self._record.exists

    def kernel(self) -> CoreSchedKernel:
        """Return which switches this kernel has, for the node's plan."""
        return CoreSchedKernel(
            identity_switch=self._tree.is_supported(GROUP_IDENTITY_ENABLED),
            core_switch=self._tree.is_supported(SCHED_CORE),
            core_feature=has_feature(self._tree.host),
        )

    def apply(self, requests: Sequence[CoreSchedRequest]) -> tuple[CoreSchedResult, ...]:
        """Bring all containers into their groups; sandboxes first, and pods in the order of their creation."""
        wanted = [one for one in requests if one.group is not None and one.container.group]
        unsupported = self._cookies.supported() if wanted else None
        if unsupported is not None:
            return tuple(_unsupported(one, str(unsupported)) for one in wanted)
        members = [_Member(one, self._read_cookies(one.container.group)) for one in sorted(wanted, key=_order)]
        recorded = self._record.load()
        if isinstance(recorded, IoError):
            return tuple(_result(one.request, CoreSchedOutcome.FAILED, why=str(recorded)) for one in members)
        self._learn(members)
        excluded = self._exclusion()
        joining = () if excluded else (one.container for one in members if one.request.group and one.cookies)
        given = recorded | {container.group for container in joining}
        refused = self._save(given)
        obstacle = excluded or ("" if refused is None else str(refused))
        results = tuple(
            _kept_out(one.request, excluded, obstacle)
            if obstacle and one.request.group
            else self._apply_one(one, members, given)
            for one in members
        )
        self._forget(members)
        self._record_rest(members, given)
        return results

    def release(self) -> list[str]:
        """Take the cookies from all containers that were given any; return what could not be done."""
        recorded = self._record.load()
        if isinstance(recorded, IoError):
            return [str(recorded)]
        problems: dict[str, str] = {}
        for group in sorted(recorded):
            targets = [process for process, cookie in self._read_cookies(group).items() if cookie != NO_COOKIE]
            refused = self._cookies.clear(targets) if targets else {}
            stayed = [str(problem) for problem in refused.values() if not problem.vanished]
            if stayed:
                problems[group] = stayed[0]
        self._by_group.clear()
        left = self._save(frozenset(problems))
        return [*problems.values(), *([] if left is None else [str(left)])]

    def _exclusion(self) -> str:
        """Return why no cookie may be given now. Kernels that have both refuse to run both."""
        on = self._tree.value(GROUP_IDENTITY_ENABLED) == "1"
        return "group identity is on, which excludes core scheduling" if on else ""

    def _read_cookies(self, group: str) -> dict[int, int]:
        found = usage.processes_below(self._tree, group)
        processes = [] if isinstance(found, IoError) else sorted(found)
        answers = {process: self._cookies.cookie(process) for process in processes if process != self._own_process}
        return {process: cookie for process, cookie in answers.items() if not isinstance(cookie, IoError)}

    def _learn(self, members: Sequence[_Member]) -> None:
        """Take up the cookies that groups without one have already, from before a restart: the first counts.

        A cookie belongs to one group. A container that changed its group while no agent ran shares one with its old
        group, and must get another.
        """
        taken = set(self._by_group.values())
        for one in members:
            group = one.request.group
            if not group or group in self._by_group:
                continue
            cookie = next((cookie for cookie in one.cookies.values() if cookie not in {NO_COOKIE, *taken}), NO_COOKIE)
            if cookie != NO_COOKIE:
                self._by_group[group] = cookie
                taken.add(cookie)

    def _apply_one(self, member: _Member, members: Sequence[_Member], given: AbstractSet[str]) -> CoreSchedResult:
        request = member.request
        if not member.cookies:
            return _result(request, CoreSchedOutcome.EMPTY)
        if request.group == NO_GROUP:
            return self._clear(member, given)
        target = self._by_group.get(request.group or "", NO_COOKIE)
        others = [process for process, cookie in member.cookies.items() if cookie != target]
        if target != NO_COOKIE and not others:
            return _result(request, CoreSchedOutcome.KEPT, target)
        source = self._source(target, members)
        if source is None:
            return self._add(member)
        return self._assign(member, source, others, target, CoreSchedOutcome.ASSIGNED)

    def _source(self, cookie: int, members: Sequence[_Member]) -> int | None:
        """Return a process that has the cookie now; processes that went since they were read are passed over."""
        if cookie == NO_COOKIE:
            return None
        for one in members:
            for process, was in one.cookies.items():
                if was == cookie and self._cookies.cookie(process) == cookie:
                    return process
        return None

    def _add(self, member: _Member) -> CoreSchedResult:
        first, *rest = member.cookies
        refused = self._cookies.create(first)
        cookie = self._cookies.cookie(first) if refused is None else refused
        if isinstance(cookie, IoError) or cookie == NO_COOKIE:
            why = str(cookie) if isinstance(cookie, IoError) else "the kernel gave no cookie"
            return _result(member.request, CoreSchedOutcome.FAILED, why=why)
        self._by_group[member.request.group or ""] = member.cookies[first] = cookie
        return self._assign(member, first, rest, cookie, CoreSchedOutcome.ADDED)

    def _assign(
        self, member: _Member, source: int, targets: Sequence[int], cookie: int, outcome: CoreSchedOutcome
    ) -> CoreSchedResult:
        refused = self._cookies.assign(source, targets) if targets else {}
        kept = set(targets) if source in refused else set(refused)
        member.cookies.update({process: cookie for process in targets if process not in kept})
        problems = [problem for problem in refused.values() if not problem.vanished]
        if problems:
            return _result(member.request, CoreSchedOutcome.FAILED, why=str(problems[0]))
        if source in refused:
            return _result(member.request, CoreSchedOutcome.FAILED, why=f"process {source} ended meanwhile")
        return _result(member.request, outcome, cookie)

    def _clear(self, member: _Member, given: AbstractSet[str]) -> CoreSchedResult:
        ours = set(member.cookies.values() if member.container.group in given else self._by_group.values())
        targets = [process for process, cookie in member.cookies.items() if cookie in ours - {NO_COOKIE}]
        if not targets:
            return _result(member.request, CoreSchedOutcome.LEFT)
        refused = self._cookies.clear(targets)
        member.cookies.update({process: NO_COOKIE for process in targets if process not in refused})
        problems = [problem for problem in refused.values() if not problem.vanished]
        if problems:
            return _result(member.request, CoreSchedOutcome.FAILED, why=str(problems[0]))
        return _result(member.request, CoreSchedOutcome.CLEARED)

    def _forget(self, members: Sequence[_Member]) -> None:
        """Forget groups that nobody names and whose cookie nobody has: what could not be cleared stays known."""
        named = {one.request.group for one in members}
        present = {cookie for one in members for cookie in one.cookies.values()}
        self._by_group = {
            group: cookie for group, cookie in self._by_group.items() if group in named or cookie in present
        }

    def _record_rest(self, members: Sequence[_Member], given: frozenset[str]) -> None:
        """Drop containers from the record that have no cookie any more, or that are gone.

        An entry that stays because the file cannot be written costs one more look next time.
        """
        bare = {
            one.container.group
            for one in members
            if one.request.group == NO_GROUP and set(one.cookies.values()) <= {NO_COOKIE}
        }
        gone = {group for group in given if not self._tree.host.is_folder(self._tree.group_path("cpu", group))}
        self._save(given - bare - gone)

    def _save(self, groups: frozenset[str]) -> IoError | None:
        """Make these the containers with cookies. Without any there is no file."""
        return self._record.save(groups) if groups else self._record.remove()


def _order(request: CoreSchedRequest) -> tuple[float, str, bool, str]:
    container = request.container
    return container.pod.created_s, container.pod.uid, not container.is_sandbox, container.group


def _result(
    request: CoreSchedRequest, outcome: CoreSchedOutcome, cookie: int = NO_COOKIE, why: str = ""
) -> CoreSchedResult:
    return CoreSchedResult(
        container=request.container, group=request.group or "", outcome=outcome, cookie=cookie, why=why
    )


def _kept_out(request: CoreSchedRequest, excluded: str, obstacle: str) -> CoreSchedResult:
    outcome = CoreSchedOutcome.UNSUPPORTED if excluded else CoreSchedOutcome.FAILED
    return _result(request, outcome, why=obstacle)


def _unsupported(request: CoreSchedRequest, why: str) -> CoreSchedResult:
    outcome = CoreSchedOutcome.UNSUPPORTED if request.group else CoreSchedOutcome.LEFT
    return _result(request, outcome, why=why if request.group else "")
