"""The CPU part of the isolation benchmark: `bench.colocation` in fewer rounds."""

from __future__ import annotations

from bench import colocation
from bench.colocation_part import ALONE, MANAGED, MORE, UNMANAGED, Measure, PartResult, Skipped

ROUNDS = 2
MOST_BUSY_PERCENT = 60.0  # of the machine with the service alone, which takes 30
_STATES = {ALONE: colocation.ALONE, UNMANAGED: colocation.UNMANAGED, MANAGED: colocation.MANAGED}


def run() -> PartResult | Skipped:
    found = colocation.run(ROUNDS)
    if "skipped" in found:
        return Skipped(part="CPU", reason=found["skipped"])
    busy = found["median"][colocation.ALONE]["machine_busy_percent"]
    if busy > MOST_BUSY_PERCENT:
        reason = f"other work keeps the machine busy, {busy:.0f} % of it with the service alone: run it on an idle one"
        return Skipped(part="CPU", reason=reason)
    states = {state: found["median"][name] for state, name in _STATES.items()}
    return PartResult(
        part="CPU",
        goal=found["goal"],
        goal_met=found["goal_met"],
        charted=2,
        measures=(
            Measure.of("p99 of the service's requests", "ms", states, "p99_ms"),
            Measure.of("the machine is busy", "%", states, "machine_busy_percent", better=MORE),
            Measure.of("p50 of the service's requests", "ms", states, "p50_ms"),
            Measure.of("batch work gets", "cores", states, "batch_cores", better=MORE),
        ),
        details=found,
    )
