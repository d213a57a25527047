"""Reports: worked out once for all who ask, less often the more they cost, and failures as answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.dashboard.report import AGE_PER_COST, MAX_RESULTS, WHAT_IF, ReportFailure, ReportTable
from koord.telemetry.clock import LoopClock, run_virtual


class CountedReport:
    """CountedReport takes some seconds and counts how often it was worked out."""

    def __init__(self, clock: LoopClock, cost_s: float) -> None:
        self._clock = clock
        self._cost_s = cost_s
        self.runs = 0

    async def __call__(self, parameters: Mapping[str, str]) -> Any:
        self.runs += 1
        await self._clock.sleep(self._cost_s)
        return {"run": self.runs, **parameters}


def test_all_who_ask_at_once_share_one_run_and_an_expensive_report_is_kept_longer() -> None:
    async def main(clock: LoopClock) -> None:
        slow = CountedReport(clock, 2.0)
        table = ReportTable(lambda: {"slow": slow}, clock)
        replies = await asyncio.gather(*(table.reply("slow", {}) for _ in range(5)))
        assert {reply.body for reply in replies} == {b'{"run":1}'}
        await clock.sleep(2.0 * AGE_PER_COST - 1)
        await table.reply("slow", {})
        assert slow.runs == 1
        await clock.sleep(2)
        await table.reply("slow", {})
        assert slow.runs == 2
        await table.close()

    run_virtual(main)


def test_a_caller_that_hangs_up_does_not_spoil_the_report_of_others() -> None:
    async def main(clock: LoopClock) -> None:
        table = ReportTable(lambda: {"slow": CountedReport(clock, 2.0)}, clock)
        first = asyncio.create_task(table.reply("slow", {}))
        second = asyncio.create_task(table.reply("slow", {}))
        await clock.sleep(1)
        first.cancel()
        assert (await second).status == 200
        await table.close()

    run_virtual(main)


def test_results_are_bounded() -> None:
    async def main(clock: LoopClock) -> None:
        report = CountedReport(clock, 0.0)
        table = ReportTable(lambda: {"one": report}, clock)
        for number in range(MAX_RESULTS + 1):
            await table.reply("one", {"name": str(number)})
        await table.reply("one", {"name": str(MAX_RESULTS)})  # kept
        await table.reply("one", {"name": "0"})  # dropped as the oldest
        assert report.runs == MAX_RESULTS + 2
        await table.close()

    run_virtual(main)


def test_a_failure_is_an_answer_and_reports_load_when_first_asked() -> None:
    loaded: list[str] = []

    async def broken(_: Mapping[str, str]) -> Any:
        return ReportFailure("nobody answers")

    async def what_if(parameters: Mapping[str, str]) -> Any:
        return [parameters["manifest"]]

    async def main(clock: LoopClock) -> None:
        def load() -> dict[str, Any]:
            loaded.append("now")
            return {"broken": broken, WHAT_IF: what_if}

        table = ReportTable(load, clock)
        assert not loaded
        reply = await table.reply("broken", {})
        assert (reply.status, msgspec.json.decode(reply.body)) == (200, {"failure": "nobody answers"})
        assert (await table.reply("unknown", {})).status == 404
        assert (await table.reply(WHAT_IF, {})).status == 404  # it takes a manifest, by POST
        assert (await table.what_if("kind: Pod")).body == b'["kind: Pod"]'
        assert loaded == ["now"]
        await table.close()

    run_virtual(main)
