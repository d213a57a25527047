"""Finds latency-sensitive pods that run worse than their own past: more cycles per instruction, or more stalls.

One bad sample is noise; a finding takes several in a row, and ends after as many good ones. It says what was measured
against what; whoever acts on it decides whether to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.qos_class import LS, LSE, LSR
from koord.koordlet.interference.baseline import Baseline
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store

CPI = "cpi"
CPU_PSI, MEMORY_PSI, IO_PSI = "cpu-psi", "memory-psi", "io-psi"
_PSI = {"cpu": CPU_PSI, "mem": MEMORY_PSI, "io": IO_PSI}
_FLOORS = {CPI: 0.05, CPU_PSI: 1.0, MEMORY_PSI: 1.0, IO_PSI: 1.0}  # cycles per instruction; percent of time
_LEAST_INSTRUCTIONS = 1_000_000.0  # an idle container's ratio says nothing


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the interference detector."""
    edge: float = 3.0  # spreads above normal that make an outlier
    streak: int = 3  # outliers, or good samples, in a row
    window_s: float = 120.0  # how old the newest sample may be
    forget_s: float = 1800.0  # pods without samples


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class _State:
    __slots__ = ("bad", "baseline", "first_bad_s", "good", "seen_ms", "told")

    def __init__(self, floor: float) -> None:
        self.baseline = Baseline(floor)
        self.seen_ms = -1  # the sample that was judged last
        self.bad = 0
        self.good = 0
        self.first_bad_s = 0.0
        self.told: Finding | None = None


class Detector:
    """The detector keeps one baseline per pod and metric."""
    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 - a frozen value
        self._settings = settings
        self._states: dict[tuple[str, str], _State] = {}  # by pod and metric

    def __len__(self) -> int:
        return len(self._states)

    @property
    def disturbed(self) -> tuple[Finding, ...]:
        return tuple(state.told for state in self._states.values() if state.told is not None)

    def look(self, now_s: float, pods: Iterable[PodView], store: Store) -> list[Finding]:
        """Return what began or ended since the last call. Each sample is judged once, however often this is called."""
        found: list[Finding] = []
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

    def _samples(self, pod: PodView, now_s: float, store: Store) -> Mapping[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}
        cpi = self._cpi(pod, now_s, store)
        if cpi is not None:
            found[CPI] = cpi
        for name, metric in _PSI.items():
            window = store.window((kind.POD_PSI, pod.uid, name, "10", "some"), now_s, self._settings.window_s)
            if window.last is not None:
                found[metric] = (window.last_ms, window.last)
        return found

    def _cpi(self, pod: PodView, now_s: float, store: Store) -> tuple[int, float] | None:
        """Return the CPI of all containers of the pod together; only counts of the same moment are combined."""
        cycles, instructions, at_ms = 0.0, 0.0, -1
        for one in pod.containers:
            spent = store.window((kind.CONTAINER_CPI, one.id, "cycle"), now_s, self._settings.window_s)
            done = store.window((kind.CONTAINER_CPI, one.id, "instruction"), now_s, self._settings.window_s)
            if spent.last is None or done.last is None or spent.last_ms != done.last_ms:
                continue
            if spent.last_ms > at_ms:
                cycles, instructions, at_ms = 0.0, 0.0, spent.last_ms
            if spent.last_ms == at_ms:
                cycles += spent.last
                instructions += done.last
        return (at_ms, cycles / instructions) if instructions >= _LEAST_INSTRUCTIONS else None

    def _judge(self, pod: PodView, metric: str, at_ms: int, value: float) -> Finding | None:
        state = self._states.get((pod.uid, metric))
        if state is None:
            state = self._states[pod.uid, metric] = _State(_FLOORS[metric])
        if at_ms <= state.seen_ms:
            return None
        state.seen_ms = at_ms
        baseline, settings = state.baseline, self._settings
        score = baseline.score(value) if baseline.known else 0.0
        finding = Finding(
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
