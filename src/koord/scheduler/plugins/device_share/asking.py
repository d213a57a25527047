"""This module parses what pods request of devices, once for all pods with equal requests, and follows GPU
templates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from koord.api import device as wire
from koord.api.annotations import device_allocated, scheduling_hint
from koord.api.annotations.codec import Malformed
from koord.api.annotations.reservation_options import ignores_reservations, needs_pre_allocation
from koord.api.protocol import (
    A_DEVICE_ALLOCATE_HINT,
    A_DEVICE_ALLOCATED,
    A_DEVICE_JOINT_ALLOCATE,
    A_GPU_PARTITION_SPEC,
    A_RESERVATION_AFFINITY,
    A_SCHEDULING_HINT,
    A_SCHEDULING_HINT_DEPRECATED,
    L_GPU_ISOLATION_PROVIDER,
)
from koord.policy.device.annotation import holdings_of
from koord.policy.device.demand import Demand, demand_of
from koord.policy.device.holding import Amounts, Holdings
from koord.policy.device.refusal import NO_TEMPLATE, Code, Refusal
from koord.policy.device.request import asks_for_devices
from koord.policy.device.template import Templates
from koord.policy.device.want import per_device
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.state.pod import PodInfo

T = TypeVar("T")

MEMO = "DeviceShare"
_KEPT = 512
_VERDICTS_KEPT = 1 << 14
_READ = (A_DEVICE_ALLOCATE_HINT, A_DEVICE_JOINT_ALLOCATE, A_GPU_PARTITION_SPEC)


def rejection(refusal: Refusal) -> Reject:
    return Reject(refusal.reasons, refusal.code is not Code.UNRESOLVABLE)


class Asking:
    """One device request, shared by all pods that ask for the same.

    `card_counts` is None where counting the cards that would fit does not tell whether the pod fits.
    """

    __slots__ = (
        "_codes",
        "_words",
        "counts",
        "demand",
        "ignores",
        "number",
        "promised",
        "required",
        "settled",
        "verdicts",
        "zoned",
    )

    def __init__(
        self, number: int, demand: Demand, *, required: bool, ignores: bool, promised: Holdings | None = None
    ) -> None:
        self.number = number
        self.demand = demand
        self.required = required  # it must use a reservation
        self.ignores = ignores  # it may use what is reserved for others
        self.promised = promised  # devices that it was given earlier, to be given again
        self.counts = _counts(demand) if promised is None else None
        # Enough cards that fit are enough: it matters not where they are.
        self.settled = (
            self.counts is not None and not demand.same_pcie and not any(h.scope for h in demand.hints.values())
        )
        self.verdicts: dict[Hashable, Reject | None] = {}  # by situation, with what the node's labels say
        self.zoned: dict[Hashable, Any] = {}  # what was said of NUMA nodes, by situation
        self._words: list[Reject] = []
        self._codes: dict[Reject, int] = {}

    def code(self, verdict: Reject | None) -> int:
        if verdict is None:
            return 0
        known = self._codes.get(verdict)
        if known is None:
            self._words.append(verdict)
            known = self._codes[verdict] = len(self._words)
        return known

    def word(self, code: int) -> Reject:
        return self._words[code - 1]

    def remember(self, situation: Hashable, verdict: Reject | None) -> None:
        if len(self.verdicts) >= _VERDICTS_KEPT:
            self.verdicts.clear()
        self.verdicts[situation] = verdict

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized answer for a situation, computing it for the first caller."""
        if key not in self.zoned:
            if len(self.zoned) >= _VERDICTS_KEPT:
                self.zoned.clear()
            self.zoned[key] = work()
        found: T = self.zoned[key]
        return found


class Askings:
    def __init__(self) -> None:
        self._templates = Templates()
        self._trouble = ""
        self._known: dict[Hashable, Asking | Reject] = {}
        self._made = 0

    def cut_by(self, templates: Templates, trouble: str) -> None:
        """Set the GPU templates that are in force from now on. `trouble`: why there are none, for pods that need one.

        """
        self._templates, self._trouble = templates, trouble
        self._known.clear()

    def of(self, pod: PodInfo) -> Asking | Reject | None:
        """Return the pod's request, its rejection if it is invalid, or None if it requests no device. Runs for every
        pod.
        """
        asked = pod.shape.memo.get(MEMO)
        if asked is None:
            asked = pod.shape.memo[MEMO] = asks_for_devices(pod.shape.requests)
        if not asked:
            return None
        annotations, labels = pod.annotations, pod.labels
        required = A_RESERVATION_AFFINITY in annotations or needs_pre_allocation(labels)
        ignores = ignores_reservations(labels)
        read = (*map(annotations.get, _READ), labels.get(L_GPU_ISOLATION_PROVIDER), required, ignores)
        hinted = A_SCHEDULING_HINT in annotations or A_SCHEDULING_HINT_DEPRECATED in annotations
        promised = _promised(annotations) if hinted and A_DEVICE_ALLOCATED in annotations else None
        key = (asked, read, None if promised is None else annotations[A_DEVICE_ALLOCATED])
        known = self._known.get(key)
        if known is None:
            demand = demand_of(dict(asked), annotations, labels, self._templates)
            assert demand is not None
            if len(self._known) >= _KEPT:  # the oldest goes: if it is asked again, it is read again
                del self._known[next(iter(self._known))]
            if isinstance(demand, Refusal):
                known = rejection(demand)
                if self._trouble and NO_TEMPLATE in known.reasons:
                    known = Reject((*known.reasons, self._trouble), resolvable=False)
            else:
                known = Asking(self._made, demand, required=required, ignores=ignores, promised=promised)
                self._made += 1
            self._known[key] = known
        return known


def _promised(annotations: Mapping[str, str]) -> Holdings | None:
    """Return the devices of the pod's annotation if a hint designates them; otherwise they are of an earlier
    attempt.
    """
    hint = scheduling_hint.parse(annotations)
    if not isinstance(hint, scheduling_hint.SchedulingHint) or MEMO not in hint.extensions:
        return None
    found = device_allocated.parse(annotations)
    return None if found is None or isinstance(found, Malformed) else holdings_of(found) or None


def _counts(demand: Demand) -> dict[str, tuple[Amounts, int]] | None:
    """Return by type, in allocation order, what each card must have left and how many such cards are needed."""
    if demand.templates is not None or demand.partition is not None or wire.GPU in demand.joint[1:]:
        return None
    need, hints = demand.gpu, [demand.hint(device_type) for device_type in demand.requests]
    if need is not None and need.shared and need.count > 1 and demand.hint(wire.GPU).scope:
        return None  # refused wherever it is
    if any(hint.selector is not None or hint.function_selector is not None for hint in hints):
        return None
    joint = demand.joint if len(demand.requests) > 1 else ()
    order = [*joint, *(device_type for device_type in demand.requests if device_type not in joint)]
    found = {device_type: per_device(device_type, demand) for device_type in order}
    return {kind: each for kind, each in found.items() if each is not None} if None not in found.values() else None
