"""Define what a plugin can answer; None always means no objection."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Reject(msgspec.Struct, frozen=True):
    """Reject a pod with reasons as users read them.

    `resolvable` is False when removing other pods from the node cannot help (UnschedulableAndUnresolvable).
    """

    reasons: tuple[str, ...]
    resolvable: bool = True
    blames: tuple[str, ...] = ()  # other plugins whose refusals this one is made of: what wakes theirs wakes this

    @property
    def text(self) -> str:
        return ", ".join(self.reasons)


def reject(*reasons: str) -> Reject:
    """Return a rejection that preemption on this node might resolve."""
    return Reject(reasons)


def unresolvable(*reasons: str) -> Reject:
    """Return a rejection that nothing on this node alone can resolve."""
    return Reject(reasons, resolvable=False)


class Wait(msgspec.Struct, frozen=True):
    """Hold the pod at Permit until a plugin allows or rejects it, or this many seconds have passed."""

    timeout_s: float


class Fault(msgspec.Struct, frozen=True):
    """Report that something is broken rather than unsuitable: the pod is retried, and no node is ruled out."""

    message: str


class Skip:
    """Say that this plugin has nothing to do for this pod (PreFilter, PreScore, Bind and the hooks)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()


class PreFilterResult(msgspec.Struct, frozen=True):
    """Restrict the evaluation to these nodes, from PreFilter."""

    node_names: frozenset[str]


class VerdictScope(msgspec.Struct, frozen=True):
    """Declare what a plugin's verdict on (pod, node) depends on besides the pod, which decides how long it is cached.

    - `row`: the node and the pods on it. It is computed again when that row changed.
    - `cluster`: other nodes too. It is computed again whenever the plugin's `epoch` moved.
    - `always`: anything. It is never cached; this is the default.
    """

    kind: Literal["row", "cluster", "always"]


ROW: Final = VerdictScope("row")
CLUSTER: Final = VerdictScope("cluster")
ALWAYS: Final = VerdictScope("always")
