"""koord-descheduler as a component: built from a context and a setup; it runs rounds while it leads.

It knows neither flags nor files nor which API server it talks to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.descheduler.configuration import DeschedulerSetup, config_warnings
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.executor import EffectExecutor, EvictionApiBackend, EvictionBackend
from koord.descheduler.framework.plugin import DeschedulerPlugin, DeschedulingProfile, EvictionProposal
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.migration.controller import MigrationJobController
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.kube.default_evictor import DefaultEvictor
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.cache import ObjectChange
from koord.kube.leader_election import lease_rules
from koord.kube.transport.delegated_auth import DelegatedAuth

_LOG = logging.getLogger(__name__)

EVENT_ROUND_GAP_S = 10.0  # between two rounds that events ask for: a storm of them must not become one of evictions


def _build_migration(
    context: DeschedulerContext, snapshot_source: SnapshotSource, plugin: DeschedulerPlugin
) -> EvictionBackend:
    if not isinstance(plugin, MigrationControllerPlugin):
        raise TypeError(f"{plugin.name} is {type(plugin).__name__}")
    return MigrationJobController(context, snapshot_source, plugin)


# The eviction backend by the name of the evict plugin.
EVICTION_BACKENDS: Mapping[str, Callable[[DeschedulerContext, SnapshotSource, DeschedulerPlugin], EvictionBackend]] = {
    "DefaultEvictor": lambda context, snapshot_source, plugin: EvictionApiBackend(context),
    MigrationControllerPlugin.name: _build_migration,
}


class Descheduler:
    """The descheduler: build it, start the informers, and `lead` while this replica is the leader."""

    def __init__(self, context: DeschedulerContext, setup: DeschedulerSetup) -> None:
        self._context = context
        self.setup = setup
        extra = {resource.plural: resource for plugin in setup.plugins() for resource in plugin.extra_resources}
        self.snapshot_source = SnapshotSource(context, extra.values())
        evictors = {profile.evict.name: profile.evict for profile in setup.profiles}
        self.eviction_backends = {
            name: EVICTION_BACKENDS[name](context, self.snapshot_source, plugin) for name, plugin in evictors.items()
        }
        self._executor = EffectExecutor(context, self.eviction_backends)
        self.ledger = context.ledger
        self.last_outcome: RoundOutcome | None = None  # of the latest round, for explanations
        self.last_round_s = 0.0  # when that was
        self._due: set[str] = set()  # plugins that events have made due before the next interval
        self._became_due = asyncio.Event()
        for plugin in setup.plugins():
            for resource in plugin.reacts_to:
                context.informers.for_resource(resource).add_event_handler(partial(self._on_change, plugin))

    async def start(self) -> None:
        self._context.recorder.start()

    async def on_synced(self) -> None:
        await self._context.informers.wait_for_cache_sync()

    async def stop(self) -> None:
        await self._context.recorder.stop()

    async def lead(self) -> None:
        """Run a round each interval until cancelled, counted from its start; with interval 0 run one round only."""
        for field, why in config_warnings(self.setup):
            _LOG.warning("%s %s", field, why)
        for backend in self.eviction_backends.values():
            await backend.start()
        try:
            while True:
                started = self._context.clock.monotonic()
                self._due.clear()
                await self.run_round()
                await self._run_due_plugins(started + self.setup.interval_s if self.setup.interval_s else None)
        finally:
            for backend in self.eviction_backends.values():
                await backend.stop()

    def _on_change(self, plugin: DeschedulerPlugin, change: ObjectChange[Any]) -> None:
        gone = change.kind == "deleted"
        old, new = (change.object, None) if gone else (change.old, change.object)
        try:
            due = plugin.is_due_after(old, new)
        except Exception:  # noqa: BLE001 - a stranger's plugin: its mistake must not stop the watch
            _LOG.exception("plugin %s failed to look at %s %s", plugin.name, change.object.kind, change.object.metadata)
            return
        if due:
            self._due.add(plugin.name)
            self._became_due.set()

    async def _run_due_plugins(self, until: float | None) -> None:
        """Until the next round, run the plugins that events make due, at most once per EVENT_ROUND_GAP_S."""
        clock = self._context.clock
        while until is None or clock.monotonic() < until:
            self._became_due.clear()
            if self._due:
                due = frozenset(self._due)
                self._due.clear()
                await self.run_round(due)
                await clock.sleep(EVENT_ROUND_GAP_S)
                continue
            try:
                async with asyncio.timeout(None if until is None else max(until - clock.monotonic(), 0)):
                    await self._became_due.wait()
            except TimeoutError:
                return

    async def run_round(self, only: Collection[str] | None = None) -> RoundOutcome:
        """Run a round; with `only`, of these plugins at the Deschedule and Balance points."""
        clock, metrics = self._context.clock, self._context.metrics
        started = clock.monotonic()
        outcome = self.decide(dry_run=self.setup.config.dry_run, only=only)
        metrics.round_seconds.labels().observe(clock.monotonic() - started)
        metrics.rounds.labels("error" if outcome.error else "success").inc()
        if outcome.error and (self.last_outcome is None or self.last_outcome.error != outcome.error):
            # Where no plugin moves pods there was nothing to end.
            moves_pods = any(profile.deschedule or profile.balance for profile in self.setup.profiles)
            _LOG.log(logging.WARNING if moves_pods else logging.INFO, "the round ended early: %s", outcome.error)
            for broken in outcome.plugin_errors:
                _LOG.error("a plugin broke", exc_info=broken)
        self.last_outcome, self.last_round_s = outcome, clock.time()
        for effect in outcome.effects:
            if isinstance(effect, EvictionProposal):
                metrics.proposed.labels(effect.plugin, str(effect.dry_run).lower()).inc()
        await self._executor.execute(outcome.effects)
        return outcome

    def decide(self, *, dry_run: bool, only: Collection[str] | None = None) -> RoundOutcome:
        """Return what a round would do now."""
        setup = self.setup
        profiles = setup.profiles if only is None else [_limited(profile, only) for profile in setup.profiles]
        return run_round(
            profiles, self.snapshot_source.snapshot(), setup.limits, nodes=setup.node_selector, dry_run=dry_run
        )


def _limited(profile: DeschedulingProfile, only: Collection[str]) -> DeschedulingProfile:
    deschedule = [plugin for plugin in profile.deschedule if plugin.name in only]
    balance = [plugin for plugin in profile.balance if plugin.name in only]
    return msgspec.structs.replace(profile, deschedule=deschedule, balance=balance)


def rbac_rules() -> tuple[RbacRule, ...]:
    """Return all RBAC rules that koord-descheduler may ever need, whatever its profiles.

    Every workload that pods may belong to is named: owners of other kinds are told apart by the pods' references alone,
    so no rule has a star.
    """
    parts: tuple[Any, ...] = (
        EventRecorder,
        DelegatedAuth,
        SnapshotSource,
        EffectExecutor,
        EvictionApiBackend,
        MigrationJobController,
    )
    evictor = (RbacRule(one.group, (one.plural,), READ_VERBS) for one in DefaultEvictor.extra_resources)
    return (*lease_rules(DESCHEDULER_NAME), *evictor, *(rule for part in parts for rule in part.rights))
