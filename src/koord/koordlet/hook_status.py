"""The agent's answers about hooks and about every value that it gives to containers, for people and for `koord`.

`/hooks` answers a HooksStatus, `/containers` a ContainersStatus. Times are RFC 3339 texts, empty for never.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class _Served(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all that is served: fields have Kubernetes' notation."""


class HookConnection(_Served, frozen=True, kw_only=True):
    """One way in: `nri`, `proxy`, or `simulated` on a simulated node.

    `state` says in words what it does or why it does not.
    """

    name: str
    connected: bool
    state: str
    since: str = ""
    details: Mapping[str, str] = {}


class HookStatus(_Served, frozen=True, kw_only=True):
    """One hook. `pods` and `containers` are those to which it applies now; durations are of calls by a runtime."""

    name: str
    gate: str
    enabled: bool
    why_off: str = ""
    pods: int = 0
    containers: int = 0
    last_applied: str = ""
    calls: int = 0
    failures: int = 0
    last_failure: str = ""
    p50_ms: float | None = None
    p99_ms: float | None = None


class HooksStatus(_Served, frozen=True, kw_only=True):
    safe_mode: bool = False
    connections: tuple[HookConnection, ...] = ()
    hooks: tuple[HookStatus, ...] = ()


class ContainerValue(_Served, frozen=True, kw_only=True):
    """One value of one cgroup file, under its name and in the notation of cgroup v1.

    `kernel` is what the file holds now, None when it cannot be read. `differs` compares as the kernel does: a value
    that it rounds is the same. `path` is the file itself, empty on a simulated machine.
    """

    knob: str
    wanted: str
    kernel: str | None
    decided_by: str
    why: str
    written_at: str = ""
    problem: str = ""
    differs: bool = False
    path: str = ""


class CgroupStatus(_Served, frozen=True, kw_only=True):
    """A container, sandbox or the pod itself (`level`) with all values that the agent decided for it.

    `others` is what hooks want for it besides cgroup values, by name.
    """

    level: str
    namespace: str
    pod: str
    uid: str
    group: str
    container: str = ""
    id: str = ""
    values: tuple[ContainerValue, ...] = ()
    others: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()


class ContainersStatus(_Served, frozen=True, kw_only=True):
    containers: tuple[CgroupStatus, ...] = ()
