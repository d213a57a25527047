"""Learns from every NodeMetric, writes recommendations once a minute, and checkpoints the histograms.

The checkpoint is an annotation of the Recommendation, written every ten minutes: it survives restarts,
moves with
the leader, goes with the object, and needs no other storage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import msgspec

from koord.api.analysis import Recommendation
from koord.api.builtin import PODS
from koord.api.custom import NODE_METRICS, RECOMMENDATIONS
from koord.api.model import decode, encode
from koord.api.pod import Pod
from koord.api.right import READ, Right
from koord.api.slo import NodeMetric
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Controller, Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.manager.controllers.recommender import status
from koord.manager.controllers.recommender.target import Directory, Unsupported, target_of
from koord.manager.world import World
from koord.policy.prediction.workload import Checkpoint, Estimate, Model, Sample, Settings
from koord.telemetry.clock import now
from koord.values import resources as vector
from koord.values.quantity import ZERO, QuantityError
from koord.values.resources import CPU, MEMORY

_LOG = logging.getLogger(__name__)

A_HISTORY = "analysis.koordinator.sh/history"
ROUND_S = 60.0
KEEP_S = 600.0


class Kept(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The checkpoint annotation. A checkpoint of another target is discarded."""

    target: str
    checkpoint: Checkpoint


class _Known(msgspec.Struct):
    target: str
    model: Model
    pod: Pod | None = None  # the last pod that was sampled: its containers are the ones to speak of
    kept_at: float = 0.0
    kept_sample_s: float = 0.0


class RecommenderController:
    name: ClassVar[str] = "recommender"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("analysis.koordinator.sh", ("recommendations",), (*READ, "patch")),
        Right("analysis.koordinator.sh", ("recommendations/status",), ("patch",)),
        Right("slo.koordinator.sh", ("nodemetrics",), READ),
        Right("", ("pods",), READ),
    )

    def __init__(self, world: World, settings: Settings = Settings()) -> None:  # noqa: B008 - a frozen value
        self._client = world.client
        self._clock = world.clock
        self._settings = settings
        self._recommendations = world.informers.of(RECOMMENDATIONS)
        self._metrics = world.informers.of(NODE_METRICS)
        self._pods = world.informers.of(PODS)
        self._directory = Directory()
        self._known: dict[Key, _Known] = {}
        self._queue: WorkQueue[Key] = WorkQueue(world.clock, name=self.name)
        self._subscriptions: tuple[Subscription[Recommendation], Subscription[NodeMetric]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the controller, also after `stop`: another replica may have learnt in between."""
        self._queue = WorkQueue(self._clock, name=self.name)
        self._directory, self._known = Directory(), {}
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._subscriptions is not None:
            recommendations, metrics = self._subscriptions
            self._recommendations.off(recommendations)
            self._metrics.off(metrics)
            self._subscriptions = None
        self._queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        # Samples need the pods and the Recommendations that they belong to.
        for informer in (self._recommendations, self._pods, self._metrics):
            await informer.wait_synced()
        self._subscriptions = self._recommendations.on(self._on_recommendation), self._metrics.on(self._on_metric)
        await Controller(self.name, self._queue, self.reconcile).run()

    async def reconcile(self, key: Key) -> Outcome:
        recommendation, known = self._recommendations.get(*key), self._known.get(key)
        if recommendation is None or known is None or recommendation.metadata.deletion_timestamp is not None:
            return Done()
        for write in (self._tell, self._keep):
            refused = await write(recommendation, known)
            if refused is not None:
                return Done() if refused.not_found else Requeue(str(refused))
        return Retry(ROUND_S)

    def explain(self, key: Key) -> Estimate | None:
        """Return the numbers behind the status."""
        known = self._known.get(key)
        return known.model.estimate() if known is not None else None

    async def _tell(self, recommendation: Recommendation, known: _Known) -> Refused | None:
        target, estimate = target_of(recommendation), known.model.estimate()
        moment = now(self._clock)
        unsupported = target.why if isinstance(target, Unsupported) else ""
        told = status.conditions(estimate, unsupported, recommendation.status, moment)
        statuses = status.container_statuses(estimate, known.pod) if estimate is not None and known.pod else None
        patch = status.change(recommendation.status, statuses, told, moment)
        if patch is None:
            return None
        meta = recommendation.metadata
        answer = await self._client.patch(
            RECOMMENDATIONS, meta.name, patch, meta.namespace, kind="merge", subresource="status", uid=meta.uid
        )
        return answer if isinstance(answer, Refused) else None

    async def _keep(self, recommendation: Recommendation, known: _Known) -> Refused | None:
        if known.model.last_s <= known.kept_sample_s or self._clock.monotonic() - known.kept_at < KEEP_S:
            return None
        text = encode(Kept(target=known.target, checkpoint=known.model.save())).decode()
        meta, kept_sample_s = recommendation.metadata, known.model.last_s
        answer = await self._client.patch(
            RECOMMENDATIONS,
            meta.name,
            {"metadata": {"annotations": {A_HISTORY: text}}},
            meta.namespace,
            kind="merge",
            uid=meta.uid,
        )
        if isinstance(answer, Refused):
            return answer
        known.kept_at, known.kept_sample_s = self._clock.monotonic(), kept_sample_s
        return None

    # -- news

    def _on_recommendation(self, change: Change[Recommendation]) -> None:
        key = key_of(change.object)
        if change.kind == "deleted":
            self._directory.drop(key)
            self._known.pop(key, None)
            return
        old = change.old
        if old is not None and (old.metadata.uid, old.metadata.generation) == (
            change.object.metadata.uid,
            change.object.metadata.generation,
        ):
            return  # our own writes
        self._directory.put(key, target_of(change.object))
        target = encode(change.object.spec.target).decode()
        known = self._known.get(key)
        if (
            known is None
            or known.target != target
            or (old is not None and old.metadata.uid != change.object.metadata.uid)
        ):
            self._known[key] = self._restored(change.object, target)
        self._queue.add(key)

    def _restored(self, recommendation: Recommendation, target: str) -> _Known:
        text = recommendation.metadata.annotations.get(A_HISTORY)
        if text is None:
            return _Known(target, Model(self._settings), kept_at=self._clock.monotonic())
        try:
            kept = decode(text.encode(), Kept)
        except msgspec.DecodeError as error:
            _LOG.warning("recommendation %s/%s begins anew: %s", *key_of(recommendation), error)
            return _Known(target, Model(self._settings))
        if kept.target != target:
            return _Known(target, Model(self._settings))
        model = Model.restored(kept.checkpoint, self._settings)
        return _Known(target, model, kept_at=self._clock.monotonic(), kept_sample_s=model.last_s)

    def _on_metric(self, change: Change[NodeMetric]) -> None:
        report = change.object.status
        if change.kind == "deleted" or report.update_time is None or not len(self._directory):
            return
        if change.old is not None and change.old.status.update_time == report.update_time:
            return
        node, at = change.object.metadata.name, report.update_time.timestamp()
        samples: dict[Key, list[Sample]] = {}
        for metric in report.pods_metric:
            pod = self._pods.get(metric.namespace, metric.name)
            if pod is None:
                continue
            for key in self._directory.of(pod):
                known = self._known[key]
                if known.model.knows(node, at):
                    continue
                try:
                    used = vector.parse(metric.pod_usage.resources)
                except QuantityError as error:
                    _LOG.warning("node %s reports an unreadable use of pod %s: %s", node, metric.name, error)
                    break
                cpu, memory = float(used.get(CPU, ZERO)), float(used.get(MEMORY, ZERO))
                samples.setdefault(key, []).append(Sample(node=node, cpu_cores=cpu, memory_bytes=memory, at=at))
                known.pod = pod
        for key, taken in samples.items():
            self._known[key].model.feed(node, taken)
