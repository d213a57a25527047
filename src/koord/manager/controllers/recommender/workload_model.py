"""Recommend requests for the pods of a workload, learnt from samples of their usage.

CPU can be throttled, so the 95th percentile is enough; missing memory kills, so the highest use that has not faded
counts. Both get a margin on top.
"""

from __future__ import annotations

import math

import msgspec

from koord.policy.histogram import CPU_BUCKETS, MEMORY_BUCKETS, DecayingHistogram, HistogramCheckpoint

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_MIB = 2**20

# A sample weighs this little after six and a half half-lives: a peak is remembered for about a week.
FADED_WEIGHT = 0.01
NODE_REPORT_RETENTION_S = _HOUR_S  # how long it is remembered which report of a node was the last


class WorkloadModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    cpu_half_life_s: float = 12 * _HOUR_S
    memory_half_life_s: float = _DAY_S
    cpu_share: float = 0.95
    margin: float = 0.15
    samples_a_day: int = 1440  # one a minute: what a full day of history has


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one pod, as its node reported it at that time."""

    node: str
    cpu_cores: float
    memory_bytes: float
    at: float


class WorkloadEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The recommendation for one pod, with the numbers that it was made from."""

    cpu_milli: int
    memory_bytes: int
    cpu_percentile_cores: float
    memory_peak_bytes: float
    margin: float
    samples: int
    history_s: float
    confidence: float  # days of history, or as many days as the samples would fill; 1 and more is enough


class WorkloadCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cpu: HistogramCheckpoint
    memory: HistogramCheckpoint
    first_s: float
    last_s: float
    samples: int
    nodes: dict[str, float] = {}


class WorkloadModel:
    def __init__(self, settings: WorkloadModelSettings = WorkloadModelSettings()) -> None:  # noqa: B008 - a frozen value
        self._settings = settings
        self._cpu = DecayingHistogram(CPU_BUCKETS, settings.cpu_half_life_s)
        self._memory = DecayingHistogram(MEMORY_BUCKETS, settings.memory_half_life_s)
        self._first_s = 0.0
        self._last_s = 0.0
        self._samples = 0
        self._nodes: dict[str, float] = {}

    @property
    def last_s(self) -> float:
        return self._last_s

    def has_seen_report(self, node: str, at: float) -> bool:
        """Return whether this report of the node was taken in already: reports are seen again after a restart."""
        return at <= self._nodes.get(node, 0.0)

    def add_samples(self, node: str, samples: list[UsageSample]) -> None:
        """Add all samples of one report of a node."""
        for sample in samples:
            self._cpu.add(max(sample.cpu_cores, 0.0), sample.at)
            self._memory.add(max(sample.memory_bytes, 0.0), sample.at)
            self._first_s = min(self._first_s, sample.at) if self._samples else sample.at
            self._last_s = max(self._last_s, sample.at)
            self._samples += 1
            self._nodes[node] = max(self._nodes.get(node, 0.0), sample.at)
        horizon = self._last_s - NODE_REPORT_RETENTION_S
        self._nodes = {known: at for known, at in self._nodes.items() if at >= horizon}

    def estimate(self) -> WorkloadEstimate | None:
        """Return the recommendation; None until there is a sample."""
        if not self._samples:
            return None
        settings = self._settings
        cpu = self._cpu.percentile(settings.cpu_share)
        memory = self._memory.peak(self._last_s, FADED_WEIGHT)
        history_s = self._last_s - self._first_s
        return WorkloadEstimate(
            cpu_milli=math.ceil(round(cpu * (1 + settings.margin) * 1000, 6)),
            memory_bytes=math.ceil(memory * (1 + settings.margin) / _MIB) * _MIB,
            cpu_percentile_cores=cpu,
            memory_peak_bytes=memory,
            margin=settings.margin,
            samples=self._samples,
            history_s=history_s,
            confidence=min(history_s / _DAY_S, self._samples / settings.samples_a_day),
        )

    def save(self) -> WorkloadCheckpoint:
        return WorkloadCheckpoint(
            cpu=self._cpu.save(),
            memory=self._memory.save(),
            first_s=self._first_s,
            last_s=self._last_s,
            samples=self._samples,
            nodes=dict(sorted(self._nodes.items())),
        )

    @staticmethod
    def from_checkpoint(
        checkpoint: WorkloadCheckpoint,
        settings: WorkloadModelSettings = WorkloadModelSettings(),  # noqa: B008 - a frozen value
    ) -> WorkloadModel:
        model = WorkloadModel(settings)
        model._cpu.restore(checkpoint.cpu)
        model._memory.restore(checkpoint.memory)
        model._first_s, model._last_s = checkpoint.first_s, checkpoint.last_s
        model._samples = checkpoint.samples
        model._nodes = dict(checkpoint.nodes)
        return model
