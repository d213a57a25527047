"""Keep the last attempt at every recently tried pod for explanations."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from koord.scheduler.framework.decision import Decision

Result = Literal["deciding", "waiting", "binding", "bound", "unschedulable", "error"]

KEPT = 20_000


class Attempt(msgspec.Struct, kw_only=True):
    pod: str
    uid: str
    scheduler: str
    number: int  # of this pod's attempts
    at: float  # seconds since 1970
    took_s: float
    decision: Decision
    result: Result
    message: str = ""  # of a failure, as events tell it


class Records:
    """Keep the last attempt of each pod by UID; the oldest are forgotten first, so that memory is bounded."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()

    def put(self, attempt: Attempt) -> None:
        self._attempts[attempt.uid] = attempt
        self._attempts.move_to_end(attempt.uid)
        if len(self._attempts) > self._kept:
            self._attempts.popitem(last=False)

    def get(self, uid: str) -> Attempt | None:
        return self._attempts.get(uid)

    def settle(self, uid: str, result: Result, message: str = "") -> None:
        attempt = self._attempts.get(uid)
        if attempt is not None:
            attempt.result = result
            attempt.message = message

    def __len__(self) -> int:
        return len(self._attempts)
