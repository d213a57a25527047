"""Gangs in quotas with CPUs and GPUs of their own, and owners of reservations, in histories full of trouble: nothing
leaks, and what is kept is what a scheduler that starts anew makes of the live objects.

`make soak` tells many more of them.
"""

from __future__ import annotations

import random

import pytest

from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import faulty_cluster
from tests.scheduler.random_workload import RandomWorkload, check
from tests.soak_budget import soak_runs

ROUNDS, DEEDS = 3, 25
WENT_WRONG_ONCE = (75,)


@pytest.mark.parametrize("seed", [*range(soak_runs(8, ROUNDS * DEEDS)), *WENT_WRONG_ONCE])
def test_history(seed: int) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, seed=seed) as world:
            life = RandomWorkload(world, random.Random(seed))
            await life.begin()
            for _ in range(ROUNDS):
                for _ in range(DEEDS):
                    await life.step()
                await life.end()
                await check(life)

    run_virtual(main)
