"""What a plugin can answer. None always means: no objection."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Reject(msgspec.Struct, frozen=True):
    """A refusal with its reasons as users read them.

    `resolvable` is False when removing other pods from the node cannot help (UnschedulableAndUnresolvable).
    """

    reasons: tuple[str, ...]
    resolvable: bool = True
    blames: tuple[str, ...] = ()  # other plugins whose refusals this one is made of: what wakes theirs wakes this

    @property
    def text(self) -> str:
        return ", ".join(self.reasons)


def reject(*reasons: str) -> Reject:
    """Preemption on this node might help."""
    return Reject(reasons)


def unresolvable(*reasons: str) -> Reject:
    """Nothing that happens on this node alone can help."""
    return Reject(reasons, resolvable=False)


class Wait(msgspec.Struct, frozen=True):
    """From Permit: hold the pod on its node until someone allows or rejects it, or this many seconds have passed."""

    timeout_s: float


class Fault(msgspec.Struct, frozen=True):
    """Something is broken rather than unsuitable: the pod is retried, and nothing is concluded about nodes."""

    message: str


class Skip:
    """From PreFilter or PreScore: this plugin has nothing to say about this pod."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()


class Only(msgspec.Struct, frozen=True):
    """From PreFilter: no other nodes need to be looked at."""

    node_names: frozenset[str]


class Scope(msgspec.Struct, frozen=True):
    """What a plugin's verdict on (pod, node) depends on besides the pod, which decides how long it may be kept.

    - `row`: the node and the pods on it. It is looked at again when that row changed.
    - `cluster`: other nodes too. It is worked out again whenever the plugin's `epoch` moved.
    - `always`: anything. It is never kept; this is what a plugin gets that does not say.
    """

    kind: Literal["row", "cluster", "always"]


ROW: Final = Scope("row")
CLUSTER: Final = Scope("cluster")
ALWAYS: Final = Scope("always")
