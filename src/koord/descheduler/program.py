"""koord-descheduler as a component: built from a context and a setup; it runs rounds while it leads.

It knows neither flags nor files nor which API server it talks to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from koord.descheduler.assembly import Assembly
from koord.descheduler.explain.surprise import surprises
from koord.descheduler.framework.effect import Evict
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Outcome, decide
from koord.descheduler.plugins.migration_controller import MigrationController
from koord.descheduler.shell.executor import DirectEviction, Executor, Means
from koord.descheduler.shell.migration.controller import Migration
from koord.descheduler.shell.view import View
from koord.descheduler.world import World

_LOG = logging.getLogger(__name__)


def _migration(world: World, view: View, plugin: Plugin) -> Means:
    if not isinstance(plugin, MigrationController):
        raise TypeError(f"{plugin.name} is {type(plugin).__name__}")
    return Migration(world, view, plugin)


# The eviction backend by the name of the evict plugin.
MEANS: Mapping[str, Callable[[World, View, Plugin], Means]] = {
    "DefaultEvictor": lambda world, view, plugin: DirectEviction(world),
    MigrationController.name: _migration,
}


class Descheduler:
    """The descheduler: build it, start the informers, and `lead` while this replica is the leader."""

    def __init__(self, world: World, assembly: Assembly) -> None:
        self._world = world
        self.assembly = assembly
        extra = {resource.plural: resource for plugin in assembly.plugins() for resource in plugin.reads}
        self.view = View(world, extra.values())
        evictors = {profile.evict.name: profile.evict for profile in assembly.profiles}
        self.means = {name: MEANS[name](world, self.view, plugin) for name, plugin in evictors.items()}
        self._executor = Executor(world, self.means)
        self.last: Outcome | None = None  # of the latest round, for explanations
        self.last_s = 0.0  # when that was

    async def lead(self) -> None:
        """Run a round each interval until cancelled, counted from its start; with interval 0 run one round only."""
        for field, why in surprises(self.assembly):
            _LOG.warning("%s %s", field, why)
        for means in self.means.values():
            await means.start()
        try:
            while True:
                started = self._world.clock.monotonic()
                await self.round()
                if not self.assembly.interval_s:
                    await asyncio.Event().wait()
                rest = self.assembly.interval_s - (self._world.clock.monotonic() - started)
                await self._world.clock.sleep(max(rest, 0))
        finally:
            for means in self.means.values():
                await means.stop()

    async def round(self) -> Outcome:
        clock, metrics = self._world.clock, self._world.metrics
        started = clock.monotonic()
        outcome = self.decide(dry_run=self.assembly.config.dry_run)
        metrics.round_seconds.labels().observe(clock.monotonic() - started)
        metrics.rounds.labels("error" if outcome.error else "success").inc()
        if outcome.error and (self.last is None or self.last.error != outcome.error):
            _LOG.warning("the round ended early: %s", outcome.error)
            for broken in outcome.broken:
                _LOG.error("a plugin broke", exc_info=broken)
        self.last, self.last_s = outcome, clock.time()
        for effect in outcome.effects:
            if isinstance(effect, Evict):
                metrics.proposed.labels(effect.plugin, str(effect.dry_run).lower()).inc()
        await self._executor.carry_out(outcome.effects)
        return outcome

    def decide(self, *, dry_run: bool) -> Outcome:
        """Return what a round would do now."""
        assembly = self.assembly
        return decide(assembly.profiles, self.view.snapshot(), assembly.limits, nodes=assembly.nodes, dry_run=dry_run)
