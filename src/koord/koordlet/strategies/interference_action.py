"""Act on the culprit of an incident: throttle or evict it, or say why not.

Only batch pods are acted on, one on a node in a stated time, and never one that is exempt. A throttled pod has its
containers' quotas lowered to a share of what they used; the pod's own quota stays, as cgroup v1 refuses to start a
container with more than its pod has.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.config.slo.interference import EVICT, THROTTLE, InterferenceStrategy
from koord.api.koordinator.protocol import BATCH, BE, FREE, KOORDLET_EVICTION_PREFIX, PRIORITY_BANDS
from koord.host.cgroup.codec import cfs_quota_of_milli
from koord.host.cgroup.knob import CPU_QUOTA
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.interference_status import InterferenceRecord
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.victim_selection import REASON, USED
from koord.policy.eviction import KOORDLET, EvictionRecord
from koord.values import timestamp

EVICT_RULE = "InterferenceEvict"
THROTTLE_CAUSE = "InterferenceThrottle"
_HIGHEST_PRIORITY = PRIORITY_BANDS[BATCH].high
_LEAST_MILLI = 10  # the kernel takes no quota below a millisecond of a period


class Throttle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One throttled pod: how much CPU each of its containers may use, and until when."""

    uid: str
    namespace: str
    pod: str
    victim: str  # NAMESPACE/POD
    milli: int
    container_milli: Mapping[str, int]  # by name
    until_s: float

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.pod} is throttled to {self.milli}m until {timestamp.unix_text(self.until_s)}"


class NodeSituation(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of actions on a node at one moment."""

    now_s: float
    last_action_s: float | None = None
    safe_mode: bool = False
    class_quota: bool = False  # the BE class has a quota, below which cgroup v1 takes no larger ones
    leaving: frozenset[str] = frozenset()
    barred: Mapping[str, str] = {}


def refuse_action(pod: PodMeta, strategy: InterferenceStrategy, situation: NodeSituation) -> str:
    """Return why the pod is not acted on; "" when it may be."""
    if pod_codecs.is_interference_exempt(pod.annotations):
        return f"the pod has the annotation {pod_codecs.A_INTERFERENCE_EXEMPT}"
    if pod.qos != BE:
        return "it has no label that makes it BE"
    if pod.priority_class not in (BATCH, FREE) or pod.priority_value > _HIGHEST_PRIORITY:
        return f"its priority {pod.priority_value} is above that of batch pods"
    if pod.terminating or pod.uid in situation.leaving:
        return "it is leaving already"
    if strategy.action == EVICT and not pod_codecs.allows_eviction_by(pod.annotations, EVICT_RULE):
        return f"its eviction policy does not name {EVICT_RULE}"
    if strategy.action == EVICT and pod.uid in situation.barred:
        return f"its eviction was refused: {situation.barred[pod.uid]}"
    if strategy.action == THROTTLE and situation.class_quota:
        return "on cgroup v1 its quota would stand in the way of that of the BE class (cpuSuppressPolicy cfsQuota)"
    if situation.safe_mode:
        return "safe mode: nothing is written and nobody is evicted"
    last_s, interval_s = situation.last_action_s, strategy.action_interval_seconds or 0
    if last_s is not None and 0 <= situation.now_s - last_s < interval_s:
        return f"the last action was {situation.now_s - last_s:.0f}s ago, and there is one in {interval_s}s"
    return ""


def make_throttle(
    pod: PodMeta, record: InterferenceRecord, strategy: InterferenceStrategy, now_s: float, cores: Mapping[str, float]
) -> Throttle:
    """Lower the pod to a share of what it used. `cores` is what each container uses, by id; one that was not measured
    gets an equal part.
    """
    share = (strategy.throttle_percent or 0) / 100
    milli = max(round(1000 * share * record.suspects[0].cores), _LEAST_MILLI)
    containers = [one for one in pod.containers if one.id and one.group]
    total = sum(cores.get(one.id, 0.0) for one in containers)
    parts = {
        one.name: max(
            round(milli * (cores.get(one.id, 0.0) / total if total > 0 else 1 / len(containers))), _LEAST_MILLI
        )
        for one in containers
    }
    return Throttle(
        uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        victim=record.full_name,
        milli=milli,
        container_milli=parts,
        until_s=now_s + (strategy.throttle_seconds or 0),
    )


def throttle_effects(pod: PodMeta, throttle: Throttle) -> list[WriteCgroup]:
    """Return the quotas of the pod's containers; one that started since gets an equal part of the pod's."""
    containers = [one for one in pod.containers if one.id and one.group]
    return [
        WriteCgroup(
            group=one.group,
            file=CPU_QUOTA,
            value=str(
                cfs_quota_of_milli(throttle.container_milli.get(one.name, throttle.milli // len(containers) or 1))
            ),
            owner=file_ownership.INTERFERENCE,
            cause=THROTTLE_CAUSE,
            why=f"it disturbs {throttle.victim}: {throttle.milli}m until {timestamp.unix_text(throttle.until_s)}",
            takes_over=_EARLIER_OWNERS,
        )
        for one in containers
    ]


_EARLIER_OWNERS = file_ownership.earlier_owners(CPU_QUOTA, file_ownership.INTERFERENCE)


def eviction_request(pod: PodMeta, record: InterferenceRecord, strategy: InterferenceStrategy) -> EvictionRequest:
    message = f"{KOORDLET_EVICTION_PREFIX}{EVICT_RULE}, kill pod: {pod.name}"
    suspect = record.suspects[0]
    return EvictionRequest(
        reason=REASON,
        message=message,
        record=EvictionRecord(
            actor=KOORDLET,
            rule=EVICT_RULE,
            reason=message,
            measured=f"{record.metric} of {record.full_name}/{record.container} is {record.value:.3g}",
            threshold=f"{record.threshold:.3g}, normal is {record.mean:.3g} ± {record.deviation:.2g}",
            frees={f"{USED}cpu": round(1000 * suspect.cores)},
            rank=f"1 of {len(record.suspects)} suspects",
            why_this_pod=f"correlation {suspect.score:.2f}, named from {strategy.correlation_threshold}",
            request=f"Pod {record.full_name}",
            request_uid=record.uid,
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
        ),
    )
