"""Run the controllers of every enabled plugin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from koord.scheduler.duties.duty import Duty, Hiring, Post
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0


def hire(
    profiles: Iterable[Profile], duties: Mapping[str, Hiring], post: Callable[[tuple[Plugin, ...]], Post]
) -> tuple[Duty, ...]:
    """Build the controllers of all enabled plugins; `post` makes the context for some plugins' controllers."""
    plugins: dict[str, list[Plugin]] = {}
    for profile in profiles:
        for plugin in profile.plugins():
            if plugin.name in duties:
                plugins.setdefault(plugin.name, []).append(plugin)
    return tuple(duty for name, held in plugins.items() for duty in duties[name](post(tuple(held))))


async def work(duties: Iterable[Duty], clock: Clock) -> None:
    """Run all controllers until cancelled."""
    async with asyncio.TaskGroup() as group:
        for duty in duties:
            group.create_task(_kept_up(duty, clock))


async def _kept_up(duty: Duty, clock: Clock) -> None:
    rest = FIRST_REST_S
    while True:
        started = clock.monotonic()
        try:
            await duty.run()
            return
        except Exception:  # noqa: BLE001 - a mistake in one controller must stop neither scheduling nor the others
            _LOG.exception("%s broke and is started again in %.0f s", duty.name, rest)
        if clock.monotonic() - started > LONGEST_REST_S:
            rest = FIRST_REST_S
        await clock.sleep(rest)
        rest = min(rest * 2, LONGEST_REST_S)
