"""Executes the effects of a round: evictions through the evictor's backend, cordons and annotations as
patches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from koord.api.builtin import NODES
from koord.descheduler.framework.effect import Annotate, Cordon, Effect, Evict
from koord.descheduler.metrics import ERROR, SUCCESS
from koord.descheduler.wire import PODS
from koord.descheduler.world import World
from koord.kube.outage import OUTAGE
from koord.kube.recorder import reference
from koord.kube.refused import Refused

_LOG = logging.getLogger(__name__)


class Means(Protocol):
    """The backend that carries out evictions for an evict plugin. `start` begins its background work, if any."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def carry_out(self, proposal: Evict) -> str | None:
        """Execute the eviction. Return None when it is done or under way, else the reason."""


class DirectEviction:
    """The backend of DefaultEvictor: evicts at once through the Eviction API."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    async def carry_out(self, proposal: Evict) -> str | None:
        meta, metrics = proposal.pod.metadata, self._world.metrics
        refused = await self._world.client.evict(meta.namespace, meta.name, uid=meta.uid)
        if refused is not None and not refused.not_found:
            metrics.evicted(ERROR, proposal.plugin, meta.namespace, proposal.node)
            return str(refused)
        metrics.evicted(SUCCESS, proposal.plugin, meta.namespace, proposal.node)
        note = f"pod evicted by {proposal.reason or proposal.plugin}"
        about = reference(PODS, proposal.pod)
        self._world.recorder.record(about, "Normal", "Descheduled", note, action="Evicting")
        return None


class Executor:
    def __init__(self, world: World, means: Mapping[str, Means]) -> None:
        """Take the backends by the name of the evict plugin."""
        self._world = world
        self._means = means

    async def carry_out(self, effects: Sequence[Effect]) -> None:
        """Execute the effects in order. A failure is logged and left to the next round; nothing is retried."""
        open_: set[tuple[str, str]] = set()  # plugins and the nodes that they meant to cordon, and could not
        for effect in effects:
            if effect.dry_run:
                _LOG.info("dry run: %s", described(effect))
                continue
            if isinstance(effect, Evict) and (effect.plugin, effect.node) in open_:
                _LOG.warning("%s is put off: its node could not be cordoned", described(effect))
                continue
            try:
                failed = await self._one(effect)
            except OUTAGE as outage:
                failed = str(outage)
            if failed is None:
                _LOG.info("%s", described(effect))
            else:
                _LOG.warning("%s came to nothing: %s", described(effect), failed)
                if isinstance(effect, Cordon):
                    open_.add((effect.plugin, effect.node))

    async def _one(self, effect: Effect) -> str | None:
        if isinstance(effect, Evict):
            return await self._means[effect.evictor].carry_out(effect)
        client = self._world.client
        answer: object
        if isinstance(effect, Cordon):
            patch = {"spec": {"unschedulable": True if effect.unschedulable else None}}
            answer = await client.patch(NODES, effect.node, patch, kind="merge")
        else:
            meta = effect.pod.metadata
            change = {"metadata": {"uid": meta.uid, "annotations": effect.annotations}}
            answer = await client.patch(PODS, meta.name, change, meta.namespace, kind="merge")
        return str(answer) if isinstance(answer, Refused) else None


def described(effect: Effect) -> str:
    if isinstance(effect, Cordon):
        what = f"{'cordon' if effect.unschedulable else 'uncordon'} {effect.node}"
    elif isinstance(effect, Annotate):
        what = f"annotate {_pod(effect)} with {effect.annotations}"
    else:
        what = f"evict {_pod(effect)} from {effect.node}"
    return f"{effect.plugin}: {what}: {effect.reason}"


def _pod(effect: Evict | Annotate) -> str:
    return f"{effect.pod.metadata.namespace}/{effect.pod.metadata.name}"
