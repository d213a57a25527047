"""Judge samples of a container against its own past, and correlate them with the CPU use of batch pods.

The method is that of CPI² (Zhang et al., EuroSys 2013): a sample is an outlier above the mean by a number of standard
deviations, several outliers among the last few samples are an incident, and the culprit is whoever used CPU while the
samples were bad and did not while they were good. An outlier enters the baseline only up to its threshold, so that a
long disturbance does not become normal within minutes, while a lasting change does in the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

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
