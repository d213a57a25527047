"""Gangs in quotas with CPUs and GPUs of their own, and owners of reservations, in histories full of trouble: nothing
leaks, and what is kept is what a scheduler that starts anew makes of the live objects.

`KOORD_SOAK=n` tells n times as many histories.
"""

from __future__ import annotations

import os
import random

import pytest

from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.shell.everything import Life, check
from tests.scheduler.shell.trouble import troubled

SOAK = int(os.environ.get("KOORD_SOAK", "1"))
WENT_WRONG_ONCE = (75,)


@pytest.mark.parametrize("seed", [*range(8 * SOAK), *WENT_WRONG_ONCE])
def test_history(seed: int) -> None:
    async def main(clock: LoopClock) -> None:
        async with troubled(clock, seed=seed) as world:
            life = Life(world, random.Random(seed))
            await life.begin()
            for _ in range(3):
                for _ in range(25):
                    await life.step()
                await life.end()
                await check(life)

    run_virtual(main)
