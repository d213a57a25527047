"""Memory and observations of the Interference strategy: samples of latency-sensitive containers, judged against their
own past and correlated with the CPU use of batch pods.

Each round takes one sample of every LS, LSR and LSE container: cycles per instruction, or its stalls where there are no
perf events for it.

The method is that of CPI² (Zhang et al., EuroSys 2013): a sample is an outlier above the mean by a number of standard
deviations, several outliers among the last few samples are an incident, and the culprit is whoever used CPU while the
samples were bad and did not while they were good. An outlier enters the baseline only up to its threshold, so that a
long disturbance does not become normal within minutes, while a lasting change does in the end.

The culprit of an incident is throttled or evicted, or it is said why not. Only batch pods are acted on, one on a node
in a stated time, and never one that is exempt. A throttled pod has its containers' quotas lowered to a share of what
they used; the pod's own quota stays, as cgroup v1 refuses to start a container with more than its pod has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.config.field_error import FieldError
from koord.api.config.slo.defaults import CFS_QUOTA
from koord.api.config.slo.slo_documents import EVICT, THROTTLE, InterferenceStrategy, interference_of_extensions
from koord.api.koordinator.protocol import BATCH, BE, FREE, KOORDLET_EVICTION_PREFIX, LS, LSE, LSR, PRIORITY_BANDS
from koord.host.cgroup.codec import cfs_quota_of_milli
from koord.host.cgroup.knob import CPU_QUOTA
from koord.koordlet.agent_status import InterferenceRecord
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.strategy import StrategyInputs
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


CPI = "cpi"
CPU_PSI, MEMORY_PSI, IO_PSI = "cpu-psi", "memory-psi", "io-psi"
PSI = {"cpu": CPU_PSI, "mem": MEMORY_PSI, "io": IO_PSI}  # by the name of the series
MIN_SAMPLES = 10  # below so many there is no baseline
INCIDENT_SAMPLES = 5
CORRELATION_SAMPLES = 10
# The smallest deviation: cycles per instruction, and percent of time. Differences below it are noise.
_FLOORS = {CPI: 0.05, CPU_PSI: 1.0, MEMORY_PSI: 1.0, IO_PSI: 1.0}
_LEAST_SHARE = 0.05  # of the mean, below which a deviation is noise too


class NormalRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    mean: float
    deviation: float

    def threshold(self, deviations: float) -> float:
        return self.mean + deviations * self.deviation


def normal_range(metric: str, values: Sequence[float]) -> NormalRange:
    """Return mean and standard deviation, which is never below what is noise for the metric."""
    count = max(len(values), 1)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count)
    return NormalRange(mean=mean, deviation=max(spread, _FLOORS[metric], _LEAST_SHARE * mean))


class JudgedSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    at_s: float  # of the round in which it was judged
    value: float
    outlier: bool


class MetricTrack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The past of one metric of one container. An incident is open while `since_s` is set; `normal` is the range from
    which it began.
    """

    baseline: tuple[float, ...] = ()
    recent: tuple[JudgedSample, ...] = ()
    seen_ms: int = -1  # the newest sample of the series that was judged
    since_s: float | None = None
    normal: NormalRange | None = None

    @property
    def is_known(self) -> bool:
        return len(self.baseline) >= MIN_SAMPLES

    @property
    def outliers(self) -> int:
        return sum(one.outlier for one in self.recent[-INCIDENT_SAMPLES:])


def judge_sample(
    track: MetricTrack,
    metric: str,
    at_s: float,
    seen_ms: int,
    value: float,
    *,
    deviations: float,
    outliers: int,
    baseline_samples: int,
) -> MetricTrack:
    """Return the track with one more sample. An incident begins with so many `outliers` among the last five samples,
    and ends when as many good samples came in a row.
    """
    now = normal_range(metric, track.baseline)
    threshold = now.threshold(deviations) if track.is_known else math.inf
    sample = JudgedSample(at_s=at_s, value=value, outlier=value > threshold)
    recent = (*track.recent, sample)[-CORRELATION_SAMPLES:]
    since_s, normal = track.since_s, track.normal
    bad = [one for one in recent[-INCIDENT_SAMPLES:] if one.outlier]
    if since_s is None and len(bad) >= outliers:
        since_s, normal = bad[0].at_s, now
    elif since_s is not None and not any(one.outlier for one in recent[-outliers:]):
        since_s, normal = None, None
    return MetricTrack(
        baseline=(*track.baseline, min(value, threshold))[-baseline_samples:],
        recent=recent,
        seen_ms=seen_ms,
        since_s=since_s,
        normal=normal,
    )


def correlation(samples: Sequence[JudgedSample], threshold: float, usage: Mapping[float, float]) -> float:
    """Return how well CPU use explains the samples, from -1 to 1. `usage` is by the time of a sample.

    Each sample counts by the share of the use that fell on it: for the suspect by how far it lies above the threshold,
    against the suspect by how far it lies below.
    """
    total = math.fsum(usage.get(one.at_s, 0.0) for one in samples)
    if total <= 0 or threshold <= 0:
        return 0.0
    score = 0.0
    for one in samples:
        share = usage.get(one.at_s, 0.0) / total
        if one.value > threshold:
            score += share * (1 - threshold / one.value)
        else:
            score += share * (one.value / threshold - 1)
    return score


OWNER = file_ownership.INTERFERENCE
GATE = "InterferenceDetection"
_LEAST_INSTRUCTIONS = 1_000_000.0  # an idle container's ratio says nothing
_EDGE_S = 0.001
_SLACK_S = 0.05  # a tick that comes a little early still counts

TrackKey = tuple[str, str, str]  # the pod's uid, the container's name, the metric


class VictimSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    uid: str
    container: str
    metric: str
    seen_ms: int
    value: float


class InterferenceState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered between two rounds; every map is bounded."""

    started_s: float
    round_s: float | None = None  # the last round
    tracks: Mapping[TrackKey, MetricTrack] = {}
    usage: Mapping[str, tuple[tuple[float, float], ...]] = {}  # round and cores, by the uid of a batch pod
    incidents: Mapping[TrackKey, InterferenceRecord] = {}
    ended: tuple[InterferenceRecord, ...] = ()  # the newest last
    throttles: Mapping[str, Throttle] = {}  # by uid
    last_action_s: float | None = None
    counts: Mapping[tuple[str, str], int] = {}  # incidents and actions, by metric and action
    last_number: int = 0
    untracked: int = 0  # metrics for which there was no room in the last round
    action: str = ""  # the setting
    why_off: str = ""  # why nothing is detected


class InterferenceView(msgspec.Struct, frozen=True, kw_only=True):
    """`strategy` is None where detection is off, and `why_off` says why. Samples and uses are read when a round is due.

    `waits`: no NodeSLO was seen yet, so what an earlier process throttled stays.
    """

    now_s: float
    state: InterferenceState
    strategy: InterferenceStrategy | None = None
    why_off: str = ""
    waits: bool = False
    due: bool = False
    pods: tuple[PodMeta, ...] = ()
    samples: tuple[VictimSample, ...] = ()
    used_cores: Mapping[str, float] = {}  # by uid of a batch pod, on average since the last round
    container_cores: Mapping[str, float] = {}  # of containers of batch pods, by id
    safe_mode: bool = False
    class_quota: bool = False  # see NodeSituation
    leaving: frozenset[str] = frozenset()
    barred: Mapping[str, str] = {}


def throttled_pods(state: Any) -> frozenset[str]:
    """Return the uids of throttled pods, whose quotas belong to this strategy. `state` is what its last plan left."""
    return frozenset(state.throttles) if isinstance(state, InterferenceState) else frozenset()


def observe_interference(inputs: StrategyInputs) -> InterferenceView:
    """Observe the samples of latency-sensitive containers and the CPU use of batch pods since the last round."""
    now_s, slo = inputs.now_s, inputs.slo
    state = inputs.states.get(OWNER)
    state = state if isinstance(state, InterferenceState) else InterferenceState(started_s=now_s)
    if slo is None:
        return InterferenceView(now_s=now_s, state=state, why_off="no NodeSLO was seen yet", waits=True)
    strategy = interference_of_extensions(slo.extensions)
    if isinstance(strategy, FieldError):
        return InterferenceView(now_s=now_s, state=state, why_off=f"the NodeSLO cannot be used: {strategy}")
    if not strategy.enable:
        return InterferenceView(now_s=now_s, state=state, why_off="the NodeSLO switches it off")
    since_s, sample_s = state.round_s, float(strategy.sample_seconds or 1)
    due = since_s is None or now_s < since_s or now_s - since_s >= sample_s - _SLACK_S
    # Windows have both their ends, and the sample of the last round belongs to that.
    span_s = (sample_s if since_s is None or now_s < since_s else now_s - since_s) - _EDGE_S
    victims = [pod for pod in inputs.pods if pod.is_alive and pod.qos_with_default in (LS, LSR, LSE)] if due else []
    suspects = [pod for pod in inputs.pods if pod.is_alive and pod.qos_with_default == BE] if due else []
    return InterferenceView(
        now_s=now_s,
        state=state,
        strategy=strategy,
        due=due,
        pods=inputs.pods,
        samples=tuple(sample for pod in victims for sample in _samples(inputs, state, pod, span_s)),
        used_cores=_average(inputs, ((pod.uid, metric_kind.POD_CPU) for pod in suspects), span_s),
        container_cores=_average(
            inputs,
            ((one.id, metric_kind.CONTAINER_CPU) for pod in suspects for one in pod.containers if one.id),
            span_s,
        ),
        safe_mode=inputs.node_inputs.safe_mode,
        class_quota=inputs.machine.shape.cgroup_version == 1 and _class_has_quota(inputs),
        leaving=inputs.eviction_tracker.leaving,
        barred=inputs.eviction_tracker.barred,
    )


def _class_has_quota(inputs: StrategyInputs) -> bool:
    suppresses = file_ownership.SUPPRESS_GATE in inputs.gates and bool(inputs.threshold_enabled)
    return suppresses and inputs.threshold.cpu_suppress_policy == CFS_QUOTA


def _average(inputs: StrategyInputs, subjects: Iterable[tuple[str, str]], span_s: float) -> dict[str, float]:
    averages = ((name, inputs.store.window((kind, name), inputs.now_s, span_s).avg) for name, kind in subjects)
    return {name: value for name, value in averages if value is not None}


def _samples(inputs: StrategyInputs, state: InterferenceState, pod: PodMeta, span_s: float) -> list[VictimSample]:
    found: list[VictimSample] = []
    for one in pod.containers:
        if not one.id:
            continue
        cpi = _cpi_sample(inputs, state, pod, one, span_s)
        if cpi is not None:
            found.append(cpi)
        elif (pod.uid, one.name, CPI) not in state.tracks:
            found += _psi_samples(inputs, state, pod, one, span_s)
    return found


def _cpi_sample(
    inputs: StrategyInputs, state: InterferenceState, pod: PodMeta, one: ContainerMeta, span_s: float
) -> VictimSample | None:
    length_s = _unseen_s(inputs, state, (pod.uid, one.name, CPI), span_s)
    cycles, instructions = (
        inputs.store.window((metric_kind.CONTAINER_CPI, one.id, name), inputs.now_s, length_s)
        for name in ("cycle", "instruction")
    )
    spent, done = (cycles.avg or 0.0) * cycles.count, (instructions.avg or 0.0) * instructions.count
    if cycles.count != instructions.count or done < _LEAST_INSTRUCTIONS:
        return None
    return VictimSample(uid=pod.uid, container=one.name, metric=CPI, seen_ms=cycles.last_ms, value=spent / done)


def _psi_samples(
    inputs: StrategyInputs, state: InterferenceState, pod: PodMeta, one: ContainerMeta, span_s: float
) -> list[VictimSample]:
    found: list[VictimSample] = []
    for name, metric in PSI.items():
        length_s = _unseen_s(inputs, state, (pod.uid, one.name, metric), span_s)
        window = inputs.store.window((metric_kind.CONTAINER_PSI, one.id, name, "10", "some"), inputs.now_s, length_s)
        if window.avg is not None:
            found.append(
                VictimSample(uid=pod.uid, container=one.name, metric=metric, seen_ms=window.last_ms, value=window.avg)
            )
    return found


def _unseen_s(inputs: StrategyInputs, state: InterferenceState, key: TrackKey, span_s: float) -> float:
    """Return how far back the samples reach that were not judged yet."""
    track = state.tracks.get(key)
    unseen_s = span_s if track is None else inputs.now_s - track.seen_ms / 1000 - _EDGE_S
    return max(min(unseen_s, span_s), 0.0)
