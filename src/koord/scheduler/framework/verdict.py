"""Define what a plugin can answer; None always means no objection. PreBind and Bind answer with what must be done to
bind a pod, as data that the binder executes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource


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


class ObjectPatch(msgspec.Struct, frozen=True):
    """Describe a merge patch of an object; it names its resourceVersion, so that a later change refuses it."""

    resource: Resource[Object]
    namespace: str
    name: str
    patch: dict[str, Any]


class PodPatch(msgspec.Struct, frozen=True):
    """Describe the annotations and labels that the pod gets with its binding; all plugins' are written at once.

    With `bound_with_others` the pod keeps its place while a binding that fails for a moment is tried again: others are
    bound because it has that place.
    """

    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    bound_with_others: bool = False


class StatusWrite(msgspec.Struct, frozen=True):
    """Describe a write of an object's status.

    `make_status` computes the status patch from the object as the server has it, again after a conflict; None where
    there is nothing to write. `is_written` tells whether the object shows that it was written.
    """

    resource: Resource[Any]
    namespace: str
    name: str
    uid: str
    make_status: Callable[[Any], dict[str, Any] | Fault | None]
    is_written: Callable[[Any], bool]
    finalizer: str = ""  # that the object gets before its status
    known: Any = None  # the object as a watch showed it: the server is asked for it only where it has another
    on_written: Callable[[Any], None] | None = None  # receives the object as the server has it then
    on_failed: Callable[[Fault], None] | None = None  # receives why it could not be written, where nobody waits for it


class StatusBinding(StatusWrite, frozen=True):
    """Describe the binding of a reserve pod: its object gets the pod patch and a new status in place of a binding."""


class PreBindActions(msgspec.Struct, frozen=True):
    """Write these objects in order, then wait until `is_done` returns True, at most this long; then patch the pod."""

    writes: tuple[ObjectPatch, ...] = ()
    timeout_s: float = 0
    is_done: Callable[[], bool | Fault] = lambda: True
    pod_patch: PodPatch | None = None
    status_writes: tuple[StatusWrite, ...] = ()  # after the other objects


BindEffect = PreBindActions | PodPatch


class FailureOverride(msgspec.Struct, frozen=True):
    """Override the usual handling of a failed attempt."""

    silent: bool = False  # no event, no condition: the pod only goes back to the queue
    nominate: str | None = None  # the pod's new nominated node, "" for none, None for the usual
