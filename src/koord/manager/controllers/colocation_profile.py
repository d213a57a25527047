"""Applies profiles that ask for it to pods without a node, a few pods a second.

It runs behind the gate ColocationProfileController. A pod is checked once per version of a profile, and again only
after its cooldown; what the rate limit does not allow waits for the next resync. The steps are those of admission
without scheduler name, priority class and resource translation, which cannot be changed on an existing pod. Applying a
profile twice has the same result as applying it once.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from koord.api.annotations.pod_codecs import is_controller_managed
from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import to_dict
from koord.api.patch.merge_patch import create_merge_patch
from koord.kube.controller.controller import Done, ReconcileResult, RequeueAfter
from koord.kube.informer.cache import ObjectChange
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.manager.reconcile_loop import ManagerContext, ReconcileLoop
from koord.manager.webhooks.admission import (
    SYSTEM_NAMESPACES,
    AdmissionDenied,
    PlainObject,
    excluded_namespaces,
    readable,
    writable,
)
from koord.manager.webhooks.colocation_profile import (
    CompiledProfile,
    apply_profile,
    compile_profile,
    is_skipped_by_probability,
)
from koord.manager.webhooks.pod_mutating import POD_LAYOUT
from koord.values.selector import EVERYTHING, Selector, SelectorError
from koord.values.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)

_BY_UNSCHEDULED = "unplaced"
_MAX_TRIES = 4


class ProfileControllerOptions(msgspec.Struct, frozen=True, kw_only=True):
    all_profiles: bool = False  # also profiles that do not carry the label
    resync_s: float = 30.0
    pod_cooldown_s: float = 300.0  # how long a pod that was looked at is left alone
    sweep_period_s: float = 600.0  # how often the memory is swept
    pods_per_second: float = 10.0  # pods a second
    burst: int = 100


class ColocationProfileController:
    name: ClassVar[str] = "colocationprofile"
    gate: ClassVar[str] = "ColocationProfileController"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("config.koordinator.sh", ("clustercolocationprofiles",), READ_VERBS),
        RbacRule("", ("pods",), (*READ_VERBS, "patch")),
        RbacRule("", ("namespaces",), READ_VERBS),
    )

    def __init__(self, context: ManagerContext, options: ProfileControllerOptions = ProfileControllerOptions()) -> None:  # noqa: B008 - a frozen value
        self._client = context.client
        self._clock = context.clock
        self._options = options
        self._excluded_namespaces = excluded_namespaces(context.settings.namespace)
        self._profiles = context.informers.for_resource(CLUSTER_COLOCATION_PROFILES)
        self._pods = context.informers.for_resource(PODS)
        self._namespaces = context.informers.for_resource(NAMESPACES)
        if not self._pods.has_index(_BY_UNSCHEDULED):
            self._pods.add_index(_BY_UNSCHEDULED, _unscheduled_key)
        self._rate_limiter = TokenBucket(options.pods_per_second, options.burst, context.clock.monotonic())
        self._cooldown_until_s: dict[tuple[str, str], float] = {}  # version of a profile and pod -> until when
        self._swept_at_s = context.clock.monotonic()
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self._loop: ReconcileLoop[str] = ReconcileLoop(self.name, context.clock, self.reconcile)

    async def start(self) -> None:
        self._loop.start((self._profiles, self._pods, self._namespaces), ((self._profiles, self._on_profile),))

    async def stop(self) -> None:
        await self._loop.stop()

    async def reconcile(self, key: str) -> ReconcileResult:
        profile = self._profiles.get("", key)
        if profile is None or not self._is_managed(profile):
            return Done()
        self._sweep()
        ready = compile_coverage(profile, self._excluded_namespaces)
        if isinstance(ready, str):
            self._quiet.warning("profile %s is not applied to waiting pods: %s", key, ready)
            return RequeueAfter(self._options.resync_s)
        version = profile.metadata.resource_version
        for pod in sorted(self._pods.by_index(_BY_UNSCHEDULED, ""), key=lambda one: one.metadata.uid):
            known = version, pod.metadata.uid
            if self._cooldown_until_s.get(known, 0.0) > self._clock.monotonic() or not self._is_covered(ready, pod):
                continue
            if not await self._apply_to_pod(ready, pod):
                break  # the limit is used up: the others wait for the next round
            self._cooldown_until_s[known] = self._clock.monotonic() + self._options.pod_cooldown_s
        return RequeueAfter(self._options.resync_s)

    def _is_managed(self, profile: ClusterColocationProfile) -> bool:
        if profile.metadata.deletion_timestamp is not None:
            return False
        return self._options.all_profiles or is_controller_managed(profile.metadata.labels)

    def _is_covered(self, ready: ProfileCoverage, pod: Pod) -> bool:
        around = self._namespaces.get("", pod.metadata.namespace)
        return is_covered(ready, pod, around.metadata.labels if around is not None else None)

    async def _apply_to_pod(self, ready: ProfileCoverage, pod: Pod) -> bool:
        """Apply the profile to the pod. Return False when the rate limit forbids it for now."""
        meta = pod.metadata
        # Our view lacks fields that it does not know, so it can only say that nothing is to be done, not what.
        seen = to_dict(pod)
        if overlay_profile(seen, ready.profile) == seen:
            return True
        if not self._rate_limiter.allow(self._clock.monotonic()):
            return False
        for _ in range(_MAX_TRIES):
            whole = await self._client.dynamic.get(PODS, meta.name, meta.namespace)
            if isinstance(whole, ApiError):
                return True  # it has gone
            if whole["metadata"].get("uid") != meta.uid or (whole.get("spec") or {}).get("nodeName"):
                return True
            made = overlay_profile(whole, ready.profile)
            if isinstance(made, AdmissionDenied):
                self._quiet.warning(
                    "profile %s on pod %s/%s: %s", ready.profile.name, meta.namespace, meta.name, made.message
                )
                return True
            patch = create_merge_patch(whole, made)
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
            if not isinstance(answer, ApiError) or answer.not_found:
                return True
            if not answer.conflict:
                self._quiet.warning(
                    "profile %s on pod %s/%s: %s", ready.profile.name, meta.namespace, meta.name, answer.message
                )
                return True
        return True

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept_at_s >= self._options.sweep_period_s:
            self._swept_at_s = now
            self._cooldown_until_s = {known: until for known, until in self._cooldown_until_s.items() if until > now}

    def _on_profile(self, change: ObjectChange[ClusterColocationProfile]) -> None:
        old = change.old
        if change.kind != "deleted" and (
            old is None or old.metadata.resource_version != change.object.metadata.resource_version
        ):
            self._loop.queue.add(change.object.metadata.name)


def _unscheduled_key(pod: Pod) -> tuple[str, ...]:
    return ("",) if not pod.spec.node_name else ()


class ProfileCoverage(msgspec.Struct, frozen=True):
    """A profile compiled for existing pods. Unlike at admission, a profile without selector covers none."""

    profile: CompiledProfile
    pod_selector: Selector
    namespace_selector: Selector
    excluded_namespaces: frozenset[str]  # namespaces that no profile reaches


def compile_coverage(
    profile: ClusterColocationProfile, excluded_namespaces: frozenset[str] = SYSTEM_NAMESPACES
) -> ProfileCoverage | str:
    """Compile the profile, or return what is wrong with it."""
    made = compile_profile(profile)
    if made.bad_probability:
        return f"probability: {made.bad_probability}"
    try:
        pods = label_selector_as_selector(profile.spec.selector)
        namespaces = label_selector_as_selector(profile.spec.namespace_selector, absent=EVERYTHING)
    except SelectorError as error:
        return f"selector: {error}"
    movable = msgspec.structs.replace(made, scheduler_name="", priority_class_name="")
    return ProfileCoverage(movable, pods, namespaces, excluded_namespaces)


def is_covered(coverage: ProfileCoverage, pod: Pod, namespace_labels: Mapping[str, str] | None) -> bool:
    meta = pod.metadata
    if pod.spec.node_name or pod.status.phase not in ("", "Pending") or meta.deletion_timestamp is not None:
        return False
    if meta.namespace in coverage.excluded_namespaces or not coverage.pod_selector.matches(meta.labels):
        return False
    if not coverage.namespace_selector.is_everything() and (
        namespace_labels is None or not coverage.namespace_selector.matches(namespace_labels)
    ):
        return False
    return not is_skipped_by_probability(coverage.profile, lambda: stable_draw(coverage.profile.name, meta.uid))


def stable_draw(profile: str, uid: str) -> int:
    """Return 0 to 99, always the same for a pod: with a new draw each round half the pods would end as all of them."""
    return zlib.crc32(f"{profile}/{uid}".encode()) % 100


def overlay_profile(pod: PlainObject, profile: CompiledProfile) -> PlainObject | AdmissionDenied:
    """Return the pod with the profile applied; the given pod is not changed."""
    made = dict(pod)
    for key, suffix in profile.label_suffixes:
        value = readable(made, "metadata", "labels").get(key) or ""
        if suffix and value.endswith(suffix):  # it was appended before; the steps below append it again
            writable(made, "metadata", "labels")[key] = value.removesuffix(suffix)
    return apply_profile(made, profile, POD_LAYOUT, _no_priority_class)


def _no_priority_class(name: str) -> PriorityClass | None:
    raise AssertionError(f"priority class {name}: profiles for existing pods have none")
