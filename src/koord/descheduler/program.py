"""koord-descheduler as a component: built from a context and a setup; it runs rounds while it leads, and executes
their effects: evictions through the evictor's backend, cordons and annotations as patches.

It knows neither flags nor files nor which API server it talks to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import msgspec

from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.descheduler.configuration import DeschedulerSetup, config_warnings
from koord.descheduler.context import ERROR, SUCCESS, DeschedulerContext
from koord.descheduler.framework.plugin import (
    AnnotateEffect,
    CordonEffect,
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    RoundEffect,
)
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.migration.controller import MigrationJobController
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.kube.default_evictor import DefaultEvictor
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.client.eviction import evict_pod
from koord.kube.events.recorder import EventRecorder, object_reference
from koord.kube.informer.cache import ObjectChange
from koord.kube.leader_election import lease_rules
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.delegated_auth import DelegatedAuth
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import DRY_RUN, record_annotations

_LOG = logging.getLogger(__name__)


class EvictionBackend(Protocol):
    """The backend that carries out evictions for an evict plugin. `start` begins its background work, if any."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def execute(self, proposal: EvictionProposal) -> str | None:
        """Execute the eviction. Return None when it is done or under way, else the reason."""


class EvictionApiBackend:
    """The backend of DefaultEvictor: evicts at once through the Eviction API."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("pods/eviction",), ("create",)),)

    def __init__(self, context: DeschedulerContext) -> None:
        self._context = context

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    async def execute(self, proposal: EvictionProposal) -> str | None:
        context, meta = self._context, proposal.pod.metadata
        result = await evict_pod(context.client, meta.namespace, meta.name, uid=meta.uid, retries_conflict=True)
        record = proposal.record().concluded(context.clock.time(), result.outcome, result.detail)
        context.ledger.add(record)
        context.metrics.evicted(SUCCESS if result.evicted else ERROR, proposal.plugin, meta.namespace, proposal.node)
        if not result.evicted:
            return result.error_text
        note = f"pod evicted by {proposal.reason or proposal.plugin}"
        about = object_reference(PODS, proposal.pod)
        context.recorder.record(
            about, "Normal", "Descheduled", note, action="Evicting", annotations=record_annotations(record)
        )
        return None


class EffectExecutor:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), ("patch",)),  # cordons
        RbacRule("", ("pods",), ("patch",)),  # eviction costs
    )

    def __init__(self, context: DeschedulerContext, backends: Mapping[str, EvictionBackend]) -> None:
        """Take the backends by the name of the evict plugin."""
        self._context = context
        self._backends = backends

    async def execute(self, effects: Sequence[RoundEffect]) -> None:
        """Execute the effects in order. A failure is logged and left to the next round; nothing is retried."""
        open_: set[tuple[str, str]] = set()  # plugins and the nodes that they meant to cordon, and could not
        for effect in effects:
            if effect.dry_run:
                _LOG.info("dry run: %s", describe_effect(effect))
                if isinstance(effect, EvictionProposal):
                    self._context.ledger.add(effect.record().concluded(self._context.clock.time(), DRY_RUN))
                continue
            if isinstance(effect, EvictionProposal) and (effect.plugin, effect.node) in open_:
                _LOG.warning("%s is put off: its node could not be cordoned", describe_effect(effect))
                continue
            try:
                failed = await self._execute_effect(effect)
            except TRANSIENT_ERRORS as outage:
                failed = str(outage)
            if failed is None:
                _LOG.info("%s", describe_effect(effect))
            else:
                _LOG.warning("%s came to nothing: %s", describe_effect(effect), failed)
                if isinstance(effect, CordonEffect):
                    open_.add((effect.plugin, effect.node))

    async def _execute_effect(self, effect: RoundEffect) -> str | None:
        if isinstance(effect, EvictionProposal):
            return await self._backends[effect.evictor].execute(effect)
        client = self._context.client
        answer: object
        if isinstance(effect, CordonEffect):
            patch = {"spec": {"unschedulable": True if effect.unschedulable else None}}
            answer = await client.patch(NODES, effect.node, patch, kind="merge", uid=effect.uid or None)
        else:
            change = {"metadata": {"annotations": effect.annotations}}
            answer = await client.patch_object(PODS, effect.pod, change, kind="merge")
        return str(answer) if isinstance(answer, ApiError) else None


def describe_effect(effect: RoundEffect) -> str:
    if isinstance(effect, CordonEffect):
        what = f"{'cordon' if effect.unschedulable else 'uncordon'} {effect.node}"
    elif isinstance(effect, AnnotateEffect):
        what = f"annotate {_pod_key(effect)} with {effect.annotations}"
    else:
        what = f"evict {_pod_key(effect)} from {effect.node}"
    return f"{effect.plugin}: {what}: {effect.reason}"


def _pod_key(effect: EvictionProposal | AnnotateEffect) -> str:
    return f"{effect.pod.metadata.namespace}/{effect.pod.metadata.name}"


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
