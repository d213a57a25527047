"""Tell of interference from the state of its strategy: the status that is served, and the news that become Events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from koord.api.annotations.pod_codecs import MetricInterference
from koord.koordlet.agent_status import (
    ContainerBaseline,
    InterferenceRecord,
    InterferenceStatus,
    ThrottledPod,
)
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.interference_view import InterferenceState, normal_range
from koord.values import timestamp

REASON_BEGIN, REASON_END = "InterferenceDetected", "InterferenceOver"
REASON_THROTTLED, REASON_RELEASED = "InterferenceThrottled", "InterferenceThrottleOver"
NOT_RUN = InterferenceStatus(why="the strategy has not run yet")
SWITCHED_OFF = InterferenceStatus(why="the gate InterferenceDetection is off")


class InterferenceNews(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One Event about a pod."""

    namespace: str
    pod: str
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def interference_news(before: InterferenceState | None, now: InterferenceState) -> list[InterferenceNews]:
    """Return what began, ended or was decided between two states."""
    known = {} if before is None else {one.number: one for one in (*before.incidents.values(), *before.ended)}
    news: list[InterferenceNews] = []
    for record in (*now.ended, *now.incidents.values()):
        old = known.get(record.number)
        if old is None or (record.culprit and record.culprit != old.culprit and not record.ended):
            began = msgspec.structs.replace(record, ended="")
            news.append(_of_record(record, "Warning", REASON_BEGIN, began.why))
        if record.ended and (old is None or not old.ended):
            news.append(_of_record(record, "Normal", REASON_END, record.why))
    earlier = {} if before is None else before.throttles
    for uid, one in now.throttles.items():
        if uid not in earlier:
            until = timestamp.unix_text(one.until_s)
            text = f"its CPU is limited to {one.milli}m until {until}, because it disturbs {one.victim}"
            news.append(_of_pod(one.namespace, one.pod, uid, "Warning", REASON_THROTTLED, text))
    for uid, one in earlier.items():
        if uid not in now.throttles:
            text = f"its CPU is no longer limited for what it did to {one.victim}"
            news.append(_of_pod(one.namespace, one.pod, uid, "Normal", REASON_RELEASED, text))
    return news


def _of_record(
    record: InterferenceRecord, type: Literal["Normal", "Warning"], reason: str, message: str
) -> InterferenceNews:
    return _of_pod(record.namespace, record.pod, record.uid, type, reason, message)


def _of_pod(
    namespace: str, pod: str, uid: str, type: Literal["Normal", "Warning"], reason: str, message: str
) -> InterferenceNews:
    return InterferenceNews(namespace=namespace, pod=pod, uid=uid, type=type, reason=reason, message=message)


def metric_notes(state: InterferenceState, uid: str) -> dict[str, MetricInterference]:
    """Return what the annotation of a pod says: the most disturbed container for each metric."""
    notes: dict[str, MetricInterference] = {}
    for (owner, container, metric), record in state.incidents.items():
        score = (record.value - record.mean) / record.deviation
        if owner != uid or (metric in notes and notes[metric].score >= score):
            continue
        since_s = state.tracks[owner, container, metric].since_s or 0.0
        notes[metric] = MetricInterference(
            baseline=round(record.mean, 4),
            spread=round(record.deviation, 4),
            now=round(record.value, 4),
            score=round(score, 2),
            since_s=int(since_s),
            culprit=record.culprit,
        )
    return notes


def interference_status(
    state: object, pods: Iterable[PodMeta], *, namespace: str = "", name: str = "", limits: str = ""
) -> InterferenceStatus:
    """Return the status, of all pods or of one as victim or culprit. `limits` is what keeps samples from coming."""
    if not isinstance(state, InterferenceState):
        return NOT_RUN
    if state.why_off:
        return InterferenceStatus(why=state.why_off)
    known = {pod.uid: pod for pod in pods}
    full = f"{namespace}/{name}"

    def wanted(record: InterferenceRecord) -> bool:
        return not name or full in (record.full_name, record.culprit)

    baselines = tuple(
        one for one in _baselines(state, known) if not name or (one.namespace, one.pod) == (namespace, name)
    )
    containers = {key[:2] for key in state.tracks}
    judged = {key[:2] for key, track in state.tracks.items() if track.is_known}
    full_up = f"{state.untracked} metrics are not followed: there is room for {len(state.tracks)}"
    why = "; ".join(filter(None, (full_up if state.untracked else "", limits)))
    return InterferenceStatus(
        enabled=True,
        why=why,
        action=state.action,
        metrics=tuple(sorted({key[2] for key in state.tracks})),
        since=timestamp.unix_text(state.started_s),
        watched=len(judged),
        learning=len(containers - judged),
        throttled=tuple(
            ThrottledPod(
                namespace=one.namespace,
                pod=one.pod,
                uid=one.uid,
                milli=one.milli,
                until=timestamp.unix_text(one.until_s),
                victim=one.victim,
            )
            for one in state.throttles.values()
        ),
        incidents=tuple(record for record in reversed(tuple(state.incidents.values())) if wanted(record)),
        ended=tuple(record for record in reversed(state.ended) if wanted(record)),
        baselines=baselines if name else (),
    )


def _baselines(state: InterferenceState, pods: Mapping[str, PodMeta]) -> Iterable[ContainerBaseline]:
    for (uid, container, metric), track in state.tracks.items():
        pod = pods.get(uid)
        if pod is None or not track.recent:
            continue
        normal = normal_range(metric, track.baseline)
        yield ContainerBaseline(
            namespace=pod.namespace,
            pod=pod.name,
            container=container,
            metric=metric,
            mean=normal.mean,
            deviation=normal.deviation,
            samples=len(track.baseline),
            latest=track.recent[-1].value,
            outliers=track.outliers,
            learning=not track.is_known,
        )
