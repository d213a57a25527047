"""Detect latency-sensitive pods that run worse than their own past: more cycles per instruction, or more stalls.

A baseline is a mean and a spread that follow slowly; an outlier enters it only up to the edge, so that a long
disturbance does not become normal within minutes, while a lasting change does in the end. One bad sample is noise: a
finding takes several in a row, and ends after as many good ones. Whether to act on it is left to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from koord.api.koordinator.qos_class import LS, LSE, LSR
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore

HALF_LIFE_S = 3600.0
MIN_SAMPLES = 10


class MetricBaseline:
    """The normal range of one metric of one pod. `floor` is the smallest spread: below it, differences are noise."""

    __slots__ = ("_floor", "_half_life_s", "_last_s", "_mean", "_square", "_weight", "samples")

    def __init__(self, floor: float, half_life_s: float = HALF_LIFE_S) -> None:
        self._floor = floor
        self._half_life_s = half_life_s
        self._mean = 0.0
        self._square = 0.0  # the mean of squared distances
        self._weight = 0.0
        self._last_s = 0.0
        self.samples = 0

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def spread(self) -> float:
        """Return the standard deviation; never below the floor, nor below a twentieth of the mean."""
        return max(math.sqrt(max(self._square, 0.0)), self._floor, abs(self._mean) / 20)

    @property
    def is_known(self) -> bool:
        return self.samples >= MIN_SAMPLES

    @property
    def last_s(self) -> float:
        return self._last_s

    def score(self, value: float) -> float:
        """Return by how many spreads the value is above normal; negative below it."""
        return (value - self._mean) / self.spread

    def add(self, at_s: float, value: float, edge: float) -> None:
        """Add a sample; it counts as at most `edge` spreads above normal."""
        if self.is_known:
            value = min(value, self._mean + edge * self.spread)
        gap_s = max(at_s - self._last_s, 0.0) if self.samples else 0.0
        self._weight = self._weight * 0.5 ** (gap_s / self._half_life_s) + 1.0
        step = value - self._mean
        self._mean += step / self._weight
        self._square += (step * (value - self._mean) - self._square) / self._weight
        self._last_s = max(at_s, self._last_s)
        self.samples += 1


CPI = "cpi"
CPU_PSI, MEMORY_PSI, IO_PSI = "cpu-psi", "memory-psi", "io-psi"
_PSI = {"cpu": CPU_PSI, "mem": MEMORY_PSI, "io": IO_PSI}
_FLOORS = {CPI: 0.05, CPU_PSI: 1.0, MEMORY_PSI: 1.0, IO_PSI: 1.0}  # cycles per instruction; percent of time
_LEAST_INSTRUCTIONS = 1_000_000.0  # an idle container's ratio says nothing


class InterferenceSettings(msgspec.Struct, frozen=True, kw_only=True):
    edge: float = 3.0  # spreads above normal that make an outlier
    streak: int = 3  # outliers, or good samples, in a row
    window_s: float = 120.0  # how old the newest sample may be
    forget_s: float = 1800.0  # pods without samples


class InterferenceFinding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that is disturbed, or (`over`) no longer is."""

    uid: str
    namespace: str
    pod: str
    metric: str
    baseline: float
    spread: float
    now: float
    score: float  # spreads above the baseline
    samples: int  # that the baseline is made of
    since_s: float
    over: bool = False

    @property
    def why(self) -> str:
        """Return the measured value and its baseline in one sentence."""
        if self.over:
            return f"{self.metric} is {self.now:.3g} again, normal is {self.baseline:.3g} ± {self.spread:.2g}"
        return (
            f"{self.metric} is {self.now:.3g}, {self.score:.1f} spreads above its normal "
            f"{self.baseline:.3g} ± {self.spread:.2g} ({self.samples} samples)"
        )


class _MetricState:
    __slots__ = ("bad", "baseline", "first_bad_s", "good", "seen_ms", "told")

    def __init__(self, floor: float) -> None:
        self.baseline = MetricBaseline(floor)
        self.seen_ms = -1  # the sample that was judged last
        self.bad = 0
        self.good = 0
        self.first_bad_s = 0.0
        self.told: InterferenceFinding | None = None


class InterferenceDetector:
    """The detector keeps one baseline per pod and metric."""

    def __init__(self, settings: InterferenceSettings = InterferenceSettings()) -> None:  # noqa: B008 - a frozen value
        self._settings = settings
        self._states: dict[tuple[str, str], _MetricState] = {}  # by pod and metric

    def __len__(self) -> int:
        return len(self._states)

    @property
    def disturbed(self) -> tuple[InterferenceFinding, ...]:
        return tuple(state.told for state in self._states.values() if state.told is not None)

    def detect(self, now_s: float, pods: Iterable[PodMeta], store: SeriesStore) -> list[InterferenceFinding]:
        """Return what began or ended since the last call. Each sample is judged once, however often this is called."""
        found: list[InterferenceFinding] = []
        there: set[str] = set()
        for pod in pods:
            if pod.qos_with_default not in (LS, LSR, LSE) or not pod.is_alive:
                continue
            there.add(pod.uid)
            for metric, (at_ms, value) in self._samples(pod, now_s, store).items():
                finding = self._judge(pod, metric, at_ms, value)
                if finding is not None:
                    found.append(finding)
        self._forget(now_s, there)
        return found

    def _samples(self, pod: PodMeta, now_s: float, store: SeriesStore) -> Mapping[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}
        cpi = self._cpi(pod, now_s, store)
        if cpi is not None:
            found[CPI] = cpi
        for name, metric in _PSI.items():
            window = store.window((metric_kind.POD_PSI, pod.uid, name, "10", "some"), now_s, self._settings.window_s)
            if window.last is not None:
                found[metric] = (window.last_ms, window.last)
        return found

    def _cpi(self, pod: PodMeta, now_s: float, store: SeriesStore) -> tuple[int, float] | None:
        """Return the CPI of all containers of the pod together; only counts of the same moment are combined."""
        cycles, instructions, at_ms = 0.0, 0.0, -1
        for one in pod.containers:
            spent = store.window((metric_kind.CONTAINER_CPI, one.id, "cycle"), now_s, self._settings.window_s)
            done = store.window((metric_kind.CONTAINER_CPI, one.id, "instruction"), now_s, self._settings.window_s)
            if spent.last is None or done.last is None or spent.last_ms != done.last_ms:
                continue
            if spent.last_ms > at_ms:
                cycles, instructions, at_ms = 0.0, 0.0, spent.last_ms
            if spent.last_ms == at_ms:
                cycles += spent.last
                instructions += done.last
        return (at_ms, cycles / instructions) if instructions >= _LEAST_INSTRUCTIONS else None

    def _judge(self, pod: PodMeta, metric: str, at_ms: int, value: float) -> InterferenceFinding | None:
        state = self._states.get((pod.uid, metric))
        if state is None:
            state = self._states[pod.uid, metric] = _MetricState(_FLOORS[metric])
        if at_ms <= state.seen_ms:
            return None
        state.seen_ms = at_ms
        baseline, settings = state.baseline, self._settings
        score = baseline.score(value) if baseline.is_known else 0.0
        finding = InterferenceFinding(
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            metric=metric,
            baseline=baseline.mean,
            spread=baseline.spread,
            now=value,
            score=score,
            samples=baseline.samples,
            since_s=state.first_bad_s,
        )
        baseline.add(at_ms / 1000, value, settings.edge)
        if score >= settings.edge:
            state.first_bad_s = state.first_bad_s if state.bad else at_ms / 1000
            state.bad, state.good = state.bad + 1, 0
            told = msgspec.structs.replace(finding, since_s=state.first_bad_s)
            news = state.told is None and state.bad >= settings.streak
            if news or state.told is not None:
                state.told = told
            return told if news else None
        state.good, state.bad = state.good + 1, 0
        if state.told is None or state.good < settings.streak:
            return None
        ended = msgspec.structs.replace(finding, since_s=state.told.since_s, over=True)
        state.told = None
        return ended

    def _forget(self, now_s: float, there: set[str]) -> None:
        """Forget pods that are gone, and those without a recent sample or with samples in the future."""
        old = [
            key
            for key, state in self._states.items()
            if key[0] not in there or not -60 <= now_s - state.seen_ms / 1000 <= self._settings.forget_s
        ]
        for key in old:
            del self._states[key]
