"""Applies profiles that ask for it to pods without a node, a few pods a second.

It runs behind the gate ColocationProfileController. A pod is checked once per version of a profile, and
again only
after its cooldown; what the rate limit does not allow waits for the next resync.
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import msgspec

from koord.api.annotations.colocation_profile import covers_running_pods
from koord.api.builtin import NAMESPACES, PODS
from koord.api.colocation import ClusterColocationProfile
from koord.api.custom import CLUSTER_COLOCATION_PROFILES
from koord.api.model import to_dict
from koord.api.pod import Pod
from koord.api.right import READ, Right
from koord.kube.cache import Change
from koord.kube.controller import Controller, Done, Outcome, Retry
from koord.kube.noise import QuietLog
from koord.kube.refused import Refused
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.manager.controllers.colocation_profile.overlay import Coverage, coverage, covers, merge_patch, overlaid
from koord.manager.webhooks.exclusion import excluded
from koord.manager.webhooks.verdict import Denied
from koord.manager.world import World

_LOG = logging.getLogger(__name__)

_UNPLACED = "unplaced"
_TRIES = 4


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of the controller."""

    by_default: bool = False  # also profiles that do not carry the label
    round_s: float = 30.0
    remember_s: float = 300.0  # how long a pod that was looked at is left alone
    forget_s: float = 600.0  # how often the memory is swept
    rate: float = 10.0  # pods a second
    burst: int = 100


class _Allowance:
    """A token bucket that refuses instead of making its caller wait."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), now

    def take(self, now: float) -> bool:
        self._left = min(float(self._burst), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ColocationProfileController:
    name: ClassVar[str] = "colocationprofile"
    gate: ClassVar[str] = "ColocationProfileController"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("config.koordinator.sh", ("clustercolocationprofiles",), READ),
        Right("", ("pods",), (*READ, "patch")),
        Right("", ("namespaces",), READ),
    )

    def __init__(self, world: World, pace: Pace = Pace()) -> None:  # noqa: B008 - a frozen value
        self._client = world.client
        self._clock = world.clock
        self._pace = pace
        self._spared = excluded(world.settings.namespace)
        self._profiles = world.informers.of(CLUSTER_COLOCATION_PROFILES)
        self._pods = world.informers.of(PODS)
        self._namespaces = world.informers.of(NAMESPACES)
        if not self._pods.has_index(_UNPLACED):
            self._pods.add_index(_UNPLACED, _unplaced)
        self._allowance = _Allowance(pace.rate, pace.burst, world.clock.monotonic())
        self._done: dict[tuple[str, str], float] = {}  # version of a profile and pod -> until when
        self._swept = world.clock.monotonic()
        self._quiet = QuietLog(_LOG, world.clock)
        self._queue: WorkQueue[str] = WorkQueue(world.clock, name=self.name)
        self._subscription: Subscription[ClusterColocationProfile] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the controller, also after `stop`: a replica may lead more than once."""
        self._queue = WorkQueue(self._clock, name=self.name)
        self._subscription = self._profiles.on(self._on_profile)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._subscription is not None:
            self._profiles.off(self._subscription)
            self._subscription = None
        self._queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reconcile(self, key: str) -> Outcome:
        profile = self._profiles.get("", key)
        if profile is None or not self._is_managed(profile):
            return Done()
        self._sweep()
        ready = coverage(profile, self._spared)
        if isinstance(ready, str):
            self._quiet.warning("profile %s is not applied to waiting pods: %s", key, ready)
            return Retry(self._pace.round_s)
        version = profile.metadata.resource_version
        for pod in sorted(self._pods.by_index(_UNPLACED, ""), key=lambda one: one.metadata.uid):
            known = version, pod.metadata.uid
            if self._done.get(known, 0.0) > self._clock.monotonic() or not self._covers(ready, pod):
                continue
            if not await self._bring_in_line(ready, pod):
                break  # the limit is used up: the others wait for the next round
            self._done[known] = self._clock.monotonic() + self._pace.remember_s
        return Retry(self._pace.round_s)

    async def _run(self) -> None:
        for informer in (self._profiles, self._pods, self._namespaces):
            await informer.wait_synced()
        await Controller(self.name, self._queue, self.reconcile).run()

    def _is_managed(self, profile: ClusterColocationProfile) -> bool:
        if profile.metadata.deletion_timestamp is not None:
            return False
        return self._pace.by_default or covers_running_pods(profile.metadata.labels)

    def _covers(self, ready: Coverage, pod: Pod) -> bool:
        around = self._namespaces.get("", pod.metadata.namespace)
        return covers(ready, pod, around.metadata.labels if around is not None else None)

    async def _bring_in_line(self, ready: Coverage, pod: Pod) -> bool:
        """Apply the profile to the pod. Return False when the rate limit forbids it for now."""
        meta = pod.metadata
        # Our view lacks fields that it does not know, so it can only say that nothing is to be done, not what.
        seen = to_dict(pod)
        if overlaid(seen, ready.profile) == seen:
            return True
        if not self._allowance.take(self._clock.monotonic()):
            return False
        for _ in range(_TRIES):
            whole = await self._client.plain.get(PODS, meta.name, meta.namespace)
            if isinstance(whole, Refused):
                return True  # it has gone
            if whole["metadata"].get("uid") != meta.uid or (whole.get("spec") or {}).get("nodeName"):
                return True
            made = overlaid(whole, ready.profile)
            if isinstance(made, Denied):
                self._quiet.warning(
                    "profile %s on pod %s/%s: %s", ready.profile.name, meta.namespace, meta.name, made.message
                )
                return True
            patch = merge_patch(whole, made)
            if not patch:
                return True
            answer = await self._client.patch(
                PODS,
                meta.name,
                patch,
                meta.namespace,
                kind="merge",
                uid=meta.uid,
                resource_version=whole["metadata"].get("resourceVersion"),
            )
            if not isinstance(answer, Refused) or answer.not_found:
                return True
            if not answer.conflict:
                self._quiet.warning(
                    "profile %s on pod %s/%s: %s", ready.profile.name, meta.namespace, meta.name, answer.message
                )
                return True
        return True

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept >= self._pace.forget_s:
            self._swept = now
            self._done = {known: until for known, until in self._done.items() if until > now}

    def _on_profile(self, change: Change[ClusterColocationProfile]) -> None:
        old = change.old
        if change.kind != "deleted" and (
            old is None or old.metadata.resource_version != change.object.metadata.resource_version
        ):
            self._queue.add(change.object.metadata.name)


def _unplaced(pod: Pod) -> tuple[str, ...]:
    return ("",) if not pod.spec.node_name else ()
