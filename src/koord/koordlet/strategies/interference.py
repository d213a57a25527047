"""The Interference strategy: find latency-sensitive containers that batch pods disturb in ways that CPU control does
not mend (caches, memory bandwidth), name the culprit, and act on it as the NodeSLO says.

`interference_view` observes and judges samples, and throttles or evicts. What was learned is kept in memory only: a
new process starts without baselines, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.config.slo.slo_documents import EVICT, REPORT, InterferenceStrategy
from koord.koordlet.agent_status import InterferenceRecord, Suspect
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.interference_view import (
    CORRELATION_SAMPLES,
    CPI,
    PSI,
    InterferenceState,
    InterferenceView,
    MetricTrack,
    NodeSituation,
    TrackKey,
    correlation,
    eviction_request,
    judge_sample,
    make_throttle,
    normal_range,
    refuse_action,
    throttle_effects,
)
from koord.koordlet.strategies.strategy import Effect, StrategyPlan
from koord.values import timestamp

MAX_TRACKS = 600  # metrics of containers, each of 3 KB with a baseline of 60 samples
MAX_SUSPECTS = 100  # batch pods whose use is remembered, those that use most
MAX_ENDED = 50
_SHOWN_SUSPECTS = 5
_GOOD_SAMPLES = CORRELATION_SAMPLES // 2
_FORGET_S = 1800.0  # a container without samples

_User = tuple[PodMeta, Mapping[float, float]]  # a batch pod and the cores that it used, by round


def decide_interference(view: InterferenceView) -> StrategyPlan:
    """Judge the samples if a round is due, and keep throttled pods throttled until their time is over."""
    if view.waits:
        return StrategyPlan(why=view.why_off)
    if view.strategy is None:
        return StrategyPlan(
            why=view.why_off, complete=True, state=InterferenceState(started_s=view.now_s, why_off=view.why_off)
        )
    pods = {pod.uid: pod for pod in view.pods}
    state = view.state
    throttles = {
        uid: one
        for uid, one in state.throttles.items()
        if uid in pods and pods[uid].is_alive and view.now_s < one.until_s and not view.class_quota
    }
    if throttles != state.throttles:
        state = msgspec.structs.replace(state, throttles=throttles)
    requests: tuple[EvictionRequest, ...] = ()
    if view.due:
        state, requests = _decide_round(view, view.strategy, state, pods)
    effects: list[Effect] = [
        effect for uid, throttle in state.throttles.items() for effect in throttle_effects(pods[uid], throttle)
    ]
    return StrategyPlan(
        effects=(*effects, *requests),
        why="; ".join(record.why for record in state.incidents.values())
        or f"no incident in {len(state.tracks)} metrics",
        complete=True,
        state=state,
    )


def _decide_round(
    view: InterferenceView, strategy: InterferenceStrategy, state: InterferenceState, pods: Mapping[str, PodMeta]
) -> tuple[InterferenceState, tuple[EvictionRequest, ...]]:
    tracks, untracked = _judge(view, strategy, _remembered(view, state, pods))
    usage = _add_usage(view, state, pods)
    state = msgspec.structs.replace(
        state,
        round_s=view.now_s,
        tracks=tracks,
        usage=usage,
        untracked=untracked,
        action=strategy.action,
        why_off="",
    )
    state = _update_incidents(view, strategy, state, pods)
    return _act(view, strategy, state, pods)


def _remembered(
    view: InterferenceView, state: InterferenceState, pods: Mapping[str, PodMeta]
) -> dict[TrackKey, MetricTrack]:
    """Return the tracks without those of containers that are gone, silent for long, or have samples of the future."""
    there = {(pod.uid, one.name) for pod in pods.values() if pod.is_alive for one in pod.containers}
    return {
        key: track
        for key, track in state.tracks.items()
        if key[:2] in there and -60 <= view.now_s - track.seen_ms / 1000 <= _FORGET_S
    }


def _judge(
    view: InterferenceView, strategy: InterferenceStrategy, tracks: dict[TrackKey, MetricTrack]
) -> tuple[dict[TrackKey, MetricTrack], int]:
    untracked = 0
    for sample in view.samples:
        key = (sample.uid, sample.container, sample.metric)
        if key not in tracks and len(tracks) >= MAX_TRACKS:
            untracked += 1
            continue
        if sample.metric == CPI:  # where there are cycles, stalls need not stand in for them
            for metric in PSI.values():
                tracks.pop((sample.uid, sample.container, metric), None)
        tracks[key] = judge_sample(
            tracks.get(key, MetricTrack()),
            sample.metric,
            view.now_s,
            sample.seen_ms,
            sample.value,
            deviations=strategy.outlier_deviations or 0.0,
            outliers=strategy.outliers or 1,
            baseline_samples=strategy.baseline_samples or 1,
        )
    return tracks, untracked


def _add_usage(
    view: InterferenceView, state: InterferenceState, pods: Mapping[str, PodMeta]
) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return the use of batch pods in the rounds that are correlated. The largest users are remembered first."""
    users = sorted(view.used_cores, key=lambda uid: (-view.used_cores[uid], uid))[:MAX_SUSPECTS]
    found = {uid: (*state.usage.get(uid, ()), (view.now_s, view.used_cores[uid])) for uid in users}
    idle = {uid: past for uid, past in state.usage.items() if uid in pods and uid not in found}
    kept = list(idle.items())[: MAX_SUSPECTS - len(found)]
    return {uid: past[-CORRELATION_SAMPLES:] for uid, past in (*found.items(), *kept)}


def _update_incidents(
    view: InterferenceView, strategy: InterferenceStrategy, state: InterferenceState, pods: Mapping[str, PodMeta]
) -> InterferenceState:
    incidents: dict[TrackKey, InterferenceRecord] = {}
    suspects = [(pods[uid], dict(past)) for uid, past in state.usage.items() if uid in pods and any(c for _, c in past)]
    ended, counts, number = list(state.ended), dict(state.counts), state.last_number
    for key, track in state.tracks.items():
        if track.since_s is None:
            continue
        known = state.incidents.get(key)
        if known is None:
            number += 1
            counts[key[2], REPORT] = counts.get((key[2], REPORT), 0) + 1
        incidents[key] = _incident(
            strategy, known, pods, suspects, key, track, number if known is None else known.number
        )
    at = timestamp.unix_text(view.now_s)
    for key, record in state.incidents.items():
        if key not in incidents:
            latest = state.tracks.get(key)
            value = record.value if latest is None else latest.recent[-1].value
            ended.append(msgspec.structs.replace(record, value=value, ended=at))
    return msgspec.structs.replace(
        state, incidents=incidents, ended=tuple(ended[-MAX_ENDED:]), counts=counts, last_number=number
    )


def _incident(
    strategy: InterferenceStrategy,
    known: InterferenceRecord | None,
    pods: Mapping[str, PodMeta],
    users: Sequence[_User],
    key: TrackKey,
    track: MetricTrack,
    number: int,
) -> InterferenceRecord:
    uid, container, metric = key
    pod = pods[uid]
    normal = track.normal or normal_range(metric, track.baseline)
    threshold = normal.threshold(strategy.outlier_deviations or 0.0)
    suspects = () if known is None else known.suspects
    if _gives_evidence(track) or not suspects or suspects[0].uid not in pods:
        found = _rank_suspects(users, track, threshold)
        if not suspects or suspects[0].uid not in pods or (found and found[0].score > suspects[0].score):
            suspects = found
    named = bool(suspects) and suspects[0].score >= (strategy.correlation_threshold or 0.0)
    return InterferenceRecord(
        number=number,
        namespace=pod.namespace,
        pod=pod.name,
        uid=uid,
        container=container,
        metric=metric,
        value=track.recent[-1].value,
        mean=normal.mean,
        deviation=normal.deviation,
        threshold=threshold,
        samples=len(track.baseline),
        since=timestamp.unix_text(track.since_s or 0.0),
        suspects=suspects,
        culprit=suspects[0].full_name if named else "",
        action=strategy.action,
        outcome="" if known is None else known.outcome,
    )


def _gives_evidence(track: MetricTrack) -> bool:
    """Return whether there are good samples beside the bad ones: among bad ones alone, every pod that runs steadily
    looks guilty.
    """
    return sum(not one.outlier for one in track.recent) >= _GOOD_SAMPLES


def _rank_suspects(users: Sequence[_User], track: MetricTrack, threshold: float) -> tuple[Suspect, ...]:
    scores = [(correlation(track.recent, threshold, usage), pod, usage) for pod, usage in users]
    scores.sort(key=lambda one: (-one[0], one[1].full_name))
    bad = [one.at_s for one in track.recent if one.outlier]
    return tuple(
        Suspect(
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            score=round(score, 4),
            cores=sum(usage.get(at_s, 0.0) for at_s in bad) / max(len(bad), 1),
        )
        for score, pod, usage in scores[:_SHOWN_SUSPECTS]
    )


def _act(
    view: InterferenceView, strategy: InterferenceStrategy, state: InterferenceState, pods: Mapping[str, PodMeta]
) -> tuple[InterferenceState, tuple[EvictionRequest, ...]]:
    """Act on the culprits, the highest score first; how often that may be, `refuse_action` knows."""
    throttles, counts, last_s = dict(state.throttles), dict(state.counts), state.last_action_s
    incidents, requests = dict(state.incidents), list[EvictionRequest]()
    ranked = sorted(incidents.items(), key=lambda item: -item[1].suspects[0].score if item[1].suspects else 1.0)
    for key, record in ranked:
        outcome = "reported"
        if strategy.action != REPORT and not record.culprit:
            outcome = record.outcome or "no pod to act on"
        elif strategy.action != REPORT:
            pod = pods[record.suspects[0].uid]
            asked = next((one for one in requests if one.uid == pod.uid), None)
            situation = NodeSituation(
                now_s=view.now_s,
                last_action_s=last_s,
                safe_mode=view.safe_mode,
                class_quota=view.class_quota,
                leaving=view.leaving,
                barred=view.barred,
            )
            if pod.uid in throttles:
                outcome = throttles[pod.uid].text
            elif asked is not None:
                outcome = f"{pod.full_name} is evicted"
            elif refusal := refuse_action(pod, strategy, situation):
                # A pod that was evicted for it stays for a while.
                leaving = record.outcome and (pod.terminating or pod.uid in view.leaving)
                outcome = record.outcome if leaving else f"{pod.full_name} is left alone: {refusal}"
            else:
                last_s = view.now_s
                counts[record.metric, strategy.action] = counts.get((record.metric, strategy.action), 0) + 1
                if strategy.action == EVICT:
                    requests.append(eviction_request(pod, record, strategy))
                    outcome = f"{pod.full_name} is evicted"
                else:
                    throttle = make_throttle(pod, record, strategy, view.now_s, view.container_cores)
                    throttles[pod.uid] = throttle
                    outcome = throttle.text
        incidents[key] = msgspec.structs.replace(record, outcome=outcome)
    state = msgspec.structs.replace(
        state, incidents=incidents, throttles=throttles, counts=counts, last_action_s=last_s
    )
    return state, tuple(requests)
