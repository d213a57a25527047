"""Executes the effects of a round: evictions through the evictor's backend, cordons and annotations as patches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.rbac import RbacRule
from koord.descheduler.context import ERROR, SUCCESS, DeschedulerContext
from koord.descheduler.framework.plugin import AnnotateEffect, CordonEffect, EvictionProposal, RoundEffect
from koord.kube.client.eviction import evict_pod
from koord.kube.events.recorder import object_reference
from koord.kube.transport.api_error import ApiError
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
