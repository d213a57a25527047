"""This module serves reports to pages: what a command of `koord` prints, as JSON, worked out once for all pages.

A report that is expensive is worked out less often: its result is served again for a multiple of the time that it took.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koord.telemetry import http_routing
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpReply

MIN_AGE_S = 1.0
AGE_PER_COST = 20.0  # a report takes a twentieth of a core at most, however many pages ask
MAX_RESULTS = 256
WHAT_IF = "what-if"  # the report that a manifest is sent to


class ReportFailure(msgspec.Struct, frozen=True):
    """ReportFailure says why there is no report, in the words of the command."""

    text: str


Report = Callable[[Mapping[str, str]], Awaitable[Any]]  # returns data that becomes JSON, or a ReportFailure


class _Result(msgspec.Struct):
    reply: asyncio.Task[HttpReply]
    fresh_until_s: float = float("inf")  # while it is being worked out, everybody waits for it


class ReportTable:
    """ReportTable answers by name and parameters, and keeps the last results."""

    def __init__(self, load: Callable[[], Mapping[str, Report]], clock: Clock) -> None:
        """Create the table. `load` returns the reports by name and is called when the first one is asked for."""
        self._load = functools.cache(load)
        self._clock = clock
        self._results: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], _Result] = OrderedDict()

    async def reply(self, name: str, parameters: Mapping[str, str]) -> HttpReply:
        report = self._load().get(name)
        if report is None or name == WHAT_IF:
            return http_routing.error_reply(404, f"there is no report {name}")
        key = (name, tuple(sorted(parameters.items())))
        known = self._results.get(key)
        if known is None or self._clock.monotonic() >= known.fresh_until_s:
            known = _Result(asyncio.create_task(self._work_out(report, parameters, key), name=f"report-{name}"))
            self._results[key] = known
        self._results.move_to_end(key)
        while len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)
        return await asyncio.shield(known.reply)  # others may wait for it too

    async def what_if(self, manifest: str) -> HttpReply:
        """Tell where the pods of a manifest would go. Nothing of it is kept."""
        return _reply(await self._load()[WHAT_IF]({"manifest": manifest}))

    async def close(self) -> None:
        tasks = [result.reply for result in self._results.values()]
        self._results.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_out(
        self, report: Report, parameters: Mapping[str, str], key: tuple[str, tuple[tuple[str, str], ...]]
    ) -> HttpReply:
        begun_s = self._clock.monotonic()
        try:
            return _reply(await report(parameters))
        finally:
            ended_s = self._clock.monotonic()
            if (result := self._results.get(key)) is not None:
                result.fresh_until_s = ended_s + max(MIN_AGE_S, AGE_PER_COST * (ended_s - begun_s))


def _reply(found: Any) -> HttpReply:
    """Return the data; a failure is an answer too, and no error of HTTP."""
    return http_routing.json_reply({"failure": found.text} if isinstance(found, ReportFailure) else found)
