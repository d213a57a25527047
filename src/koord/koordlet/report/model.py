"""Usage models of pods, priority classes, the system and the node: a pair of decaying histograms each, by uid.

Training samples and times arrive from outside; keeping checkpoints in files is left to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from koord.policy.prediction.buckets import CPU_CORES, MEMORY_BYTES
from koord.policy.prediction.histogram import Compact, DecayingHistogram
from koord.policy.prediction.reclaimable import Amount
from koord.values import instant
from koord.values.instant import InstantError

NODE = "__node__"
SYSTEM = "__node-sys__"
CPU_SHARE, MEMORY_SHARE = 0.95, 0.98  # CPU can be throttled, memory cannot
EXPIRE_S = 30 * 60.0
CHECKPOINT_S = 10 * 60.0
CHECKPOINTS_PER_STEP = 12


def class_model(priority_class: str) -> str:
    """Return the uid of the model of all pods of a priority class; that of pods without one has an empty name inside.

    """
    return f"__node-{priority_class}__"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of usage models."""
    cpu_half_life_s: float = 12 * 3600.0
    memory_half_life_s: float = 24 * 3600.0
    expire_s: float = EXPIRE_S
    checkpoint_s: float = CHECKPOINT_S
    checkpoints_per_step: int = CHECKPOINTS_PER_STEP


class HistogramFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    reference_timestamp: str | None = None
    bucket_weights: dict[int, int] = {}
    total_weight: float = 0.0


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of one model, in a file named by its uid."""

    UID: str
    CPU: HistogramFile
    Memory: HistogramFile
    LastUpdated: str


class Model:
    """The CPU and memory histograms of one subject."""

    def __init__(self, settings: Settings) -> None:
        self._cpu = DecayingHistogram(CPU_CORES, settings.cpu_half_life_s)
        self._memory = DecayingHistogram(MEMORY_BYTES, settings.memory_half_life_s)
        self.updated_s = 0.0
        self.kept_s = 0.0  # when it was last put into a checkpoint

    def feed(self, at_s: float, cpu_cores: float, memory_bytes: float) -> None:
        self._cpu.add(cpu_cores, at_s)
        self._memory.add(memory_bytes, at_s)
        self.updated_s = at_s

    def percentile(self, cpu_share: float, memory_share: float) -> Amount:
        return Amount(int(self._cpu.percentile(cpu_share) * 1000), int(self._memory.percentile(memory_share)))

    def save(self, uid: str) -> CheckpointFile:
        cpu, memory = self._cpu.compact(), self._memory.compact()
        return CheckpointFile(UID=uid, CPU=_written(cpu), Memory=_written(memory), LastUpdated=_time(self.updated_s))

    @staticmethod
    def restored(saved: CheckpointFile, settings: Settings) -> Model:
        model = Model(settings)
        model._cpu.expand(_read(saved.CPU))
        model._memory.expand(_read(saved.Memory))
        model.updated_s = instant.parse(saved.LastUpdated).timestamp()
        return model


class Models:
    """All usage models by uid."""
    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 - a frozen value
        self._settings = settings
        self._models: dict[str, Model] = {}

    def __len__(self) -> int:
        return len(self._models)

    def train(self, at_s: float, samples: Mapping[str, tuple[float, float]]) -> None:
        """Add one sample of cores and bytes per uid."""
        for uid, (cpu_cores, memory_bytes) in samples.items():
            model = self._models.get(uid)
            if model is None:
                model = self._models[uid] = Model(self._settings)
            model.feed(at_s, cpu_cores, memory_bytes)

    def peak(self, uid: str) -> Amount | None:
        """Return the predicted peak of a subject, or None without a model."""
        return self.percentile(uid, CPU_SHARE, MEMORY_SHARE)

    def percentile(self, uid: str, cpu_share: float, memory_share: float) -> Amount | None:
        model = self._models.get(uid)
        return None if model is None else model.percentile(cpu_share, memory_share)

    def expire(self, now_s: float) -> list[str]:
        """Forget models that were not trained for long; return their uids, so that their files can be removed."""
        old = [uid for uid, model in self._models.items() if now_s - model.updated_s > self._settings.expire_s]
        for uid in old:
            del self._models[uid]
        return old

    def checkpoints(self, now_s: float) -> list[CheckpointFile]:
        """Return the checkpoints of a few models, those that waited longest first; none is saved again too soon."""
        longest = sorted(self._models.items(), key=lambda item: (item[1].kept_s, item[0]))
        due = longest[: self._settings.checkpoints_per_step]
        saved: list[CheckpointFile] = []
        for uid, model in due:
            if model.kept_s and now_s - model.kept_s < self._settings.checkpoint_s:
                break
            model.kept_s = now_s
            saved.append(model.save(uid))
        return saved

    def restore(self, saved: Iterable[CheckpointFile], known: frozenset[str], now_s: float) -> list[str]:
        """Restore the models of subjects that still exist; return the uids whose files are useless."""
        useless: list[str] = []
        for one in saved:
            if one.UID in known:
                model = self._models[one.UID] = Model.restored(one, self._settings)
                model.kept_s = now_s
            else:
                useless.append(one.UID)
        return useless


def read_checkpoint(uid: str, text: bytes) -> CheckpointFile | None:
    """Decode a checkpoint under the name of its file, whatever uid it says inside; None when it cannot be decoded."""
    try:
        saved = msgspec.json.decode(text, type=CheckpointFile)
        for time in (saved.LastUpdated, saved.CPU.reference_timestamp, saved.Memory.reference_timestamp):
            if time is not None:
                instant.parse(time)
    except (msgspec.DecodeError, InstantError):
        return None
    return msgspec.structs.replace(saved, UID=uid)


def _written(compact: Compact) -> HistogramFile:
    return HistogramFile(
        reference_timestamp=_time(compact.reference_timestamp),
        bucket_weights=compact.bucket_weights,
        total_weight=compact.total_weight,
    )


def _read(saved: HistogramFile) -> Compact:
    at_s = 0.0 if saved.reference_timestamp is None else instant.parse(saved.reference_timestamp).timestamp()
    return Compact(reference_timestamp=at_s, bucket_weights=saved.bucket_weights, total_weight=saved.total_weight)


def _time(at_s: float) -> str:
    return instant.text(datetime.fromtimestamp(at_s, UTC))
