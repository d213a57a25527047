"""Usage models of pods, priority classes, the system and the node: a pair of decaying histograms each, by uid.

Training samples and times arrive from outside; keeping checkpoints in files is left to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from koord.api.koordinator.protocol import NONE, PRIORITY_CLASSES, PROD
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.model import decode_text
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders import reclaimable
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesKey, SeriesStore
from koord.policy.histogram import CPU_BUCKETS, MEMORY_BUCKETS, CompactHistogram, DecayingHistogram
from koord.values import timestamp
from koord.values.json_text import MalformedText
from koord.values.timestamp import TimestampError

NODE_UID = "__node__"
SYSTEM_UID = "__node-sys__"
CPU_PERCENTILE, MEMORY_PERCENTILE = 0.95, 0.98  # CPU can be throttled, memory cannot
EXPIRE_S = 30 * 60.0
CHECKPOINT_S = 10 * 60.0
CHECKPOINTS_PER_STEP = 12


def priority_class_uid(priority_class: str) -> str:
    """Return the uid of the model of all pods of a priority class; pods without one have an empty name inside."""
    return f"__node-{priority_class}__"


class UsageModelSettings(msgspec.Struct, frozen=True, kw_only=True):
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


class UsageModel:
    def __init__(self, settings: UsageModelSettings) -> None:
        self._cpu = DecayingHistogram(CPU_BUCKETS, settings.cpu_half_life_s)
        self._memory = DecayingHistogram(MEMORY_BUCKETS, settings.memory_half_life_s)
        self.updated_s = 0.0
        self.checkpointed_s = 0.0  # when it was last put into a checkpoint

    def add(self, at_s: float, cpu_cores: float, memory_bytes: float) -> None:
        self._cpu.add(cpu_cores, at_s)
        self._memory.add(memory_bytes, at_s)
        self.updated_s = at_s

    def percentile(self, cpu_share: float, memory_share: float) -> reclaimable.ResourceAmount:
        return reclaimable.ResourceAmount(
            int(self._cpu.percentile(cpu_share) * 1000), int(self._memory.percentile(memory_share))
        )

    def save(self, uid: str) -> CheckpointFile:
        cpu, memory = self._cpu.compact(), self._memory.compact()
        return CheckpointFile(UID=uid, CPU=_to_file(cpu), Memory=_to_file(memory), LastUpdated=_time(self.updated_s))

    @staticmethod
    def restored(saved: CheckpointFile, settings: UsageModelSettings) -> UsageModel:
        model = UsageModel(settings)
        model._cpu.expand(_from_file(saved.CPU))
        model._memory.expand(_from_file(saved.Memory))
        model.updated_s = timestamp.parse(saved.LastUpdated).timestamp()
        return model


class UsageModels:
    def __init__(self, settings: UsageModelSettings = UsageModelSettings()) -> None:  # noqa: B008 - a frozen value
        self._settings = settings
        self._models: dict[str, UsageModel] = {}

    def __len__(self) -> int:
        return len(self._models)

    def train(self, at_s: float, samples: Mapping[str, tuple[float, float]]) -> None:
        for uid, (cpu_cores, memory_bytes) in samples.items():
            model = self._models.get(uid)
            if model is None:
                model = self._models[uid] = UsageModel(self._settings)
            model.add(at_s, cpu_cores, memory_bytes)

    def peak(self, uid: str) -> reclaimable.ResourceAmount | None:
        """Return the predicted peak of a subject, or None without a model."""
        return self.percentile(uid, CPU_PERCENTILE, MEMORY_PERCENTILE)

    def percentile(self, uid: str, cpu_share: float, memory_share: float) -> reclaimable.ResourceAmount | None:
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
        longest = sorted(self._models.items(), key=lambda item: (item[1].checkpointed_s, item[0]))
        due = longest[: self._settings.checkpoints_per_step]
        saved: list[CheckpointFile] = []
        for uid, model in due:
            if model.checkpointed_s and now_s - model.checkpointed_s < self._settings.checkpoint_s:
                break
            model.checkpointed_s = now_s
            saved.append(model.save(uid))
        return saved

    def restore(self, saved: Iterable[CheckpointFile], known: frozenset[str], now_s: float) -> list[str]:
        """Restore the models of subjects that still exist; return the uids whose files are useless."""
        useless: list[str] = []
        for one in saved:
            if one.UID in known:
                model = self._models[one.UID] = UsageModel.restored(one, self._settings)
                model.checkpointed_s = now_s
            else:
                useless.append(one.UID)
        return useless


def read_checkpoint(uid: str, text: bytes) -> CheckpointFile | None:
    """Decode a checkpoint under the name of its file, whatever uid it says inside; None when it cannot be decoded."""
    saved = decode_text(text, CheckpointFile)
    if isinstance(saved, MalformedText):
        return None
    try:
        for time in (saved.LastUpdated, saved.CPU.reference_timestamp, saved.Memory.reference_timestamp):
            if time is not None:
                timestamp.parse(time)
    except TimestampError:
        return None
    return msgspec.structs.replace(saved, UID=uid)


def _to_file(compact: CompactHistogram) -> HistogramFile:
    return HistogramFile(
        reference_timestamp=_time(compact.reference_timestamp),
        bucket_weights=compact.bucket_weights,
        total_weight=compact.total_weight,
    )


def _from_file(saved: HistogramFile) -> CompactHistogram:
    at_s = 0.0 if saved.reference_timestamp is None else timestamp.parse(saved.reference_timestamp).timestamp()
    return CompactHistogram(
        reference_timestamp=at_s, bucket_weights=saved.bucket_weights, total_weight=saved.total_weight
    )


def _time(at_s: float) -> str:
    return timestamp.text(datetime.fromtimestamp(at_s, UTC))


TRAINING_WINDOW_S = 60.0
TRAINING_PERCENTILE = 0.9
_CLASSES = (*PRIORITY_CLASSES, NONE)


class PredictionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The safety margin and the cold start time of predictions."""

    margin_percent: int = reclaimable.MARGIN_PERCENT
    cold_start_s: float = reclaimable.COLD_START_S


def training_samples(store: SeriesStore, now_s: float, pods: Iterable[PodMeta]) -> dict[str, tuple[float, float]]:
    """Return what each model learns now: cores and bytes, the 90th percentile of the last minute.

    What was not measured is not learned: neither a pod, nor the system while the node is unknown.
    """
    found: dict[str, tuple[float, float]] = {}
    classes = dict.fromkeys(_CLASSES, (0.0, 0.0))
    everything = (0.0, 0.0)
    for pod in pods:
        used = _used(store, now_s, (metric_kind.POD_CPU, pod.uid), (metric_kind.POD_MEMORY, pod.uid))
        if used is not None:
            found[pod.uid] = used
            classes[pod.priority_class] = _plus(classes[pod.priority_class], used)
            everything = _plus(everything, used)
    found |= {priority_class_uid(name): used for name, used in classes.items()}
    node = _used(store, now_s, (metric_kind.NODE_CPU,), (metric_kind.NODE_MEMORY,))
    if node is not None:
        found[NODE_UID] = node
        found[SYSTEM_UID] = (max(0.0, node[0] - everything[0]), max(0.0, node[1] - everything[1]))
    return found


def model_uids(pods: Iterable[PodMeta]) -> frozenset[str]:
    return frozenset(
        {NODE_UID, SYSTEM_UID, *(priority_class_uid(name) for name in _CLASSES), *(pod.uid for pod in pods)}
    )


def reclaimable_view(
    models: UsageModels,
    now_s: float,
    pods: Iterable[PodMeta],
    allocatable: reclaimable.ResourceAmount | None,
    limits: PredictionLimits,
) -> reclaimable.ReclaimableView:
    """Build the view of the reclaimable decision. `allocatable` is the one before amplification."""
    return reclaimable.ReclaimableView(
        allocatable=allocatable,
        pods=tuple(
            reclaimable.ProdPod(
                uid=pod.uid,
                request=reclaimable.ResourceAmount(pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0)),
                age_s=now_s - pod.created_s,
                ending=pod.terminating or not pod.is_alive,
                peak=models.peak(pod.uid),
            )
            for pod in pods
            if pod.priority_class in (PROD, NONE)
        ),
        prod_peak=models.peak(priority_class_uid(PROD)),
        unclassed_peak=models.peak(priority_class_uid(NONE)),
        system_peak=models.peak(SYSTEM_UID),
        margin_percent=limits.margin_percent,
        cold_start_s=limits.cold_start_s,
    )


def _used(store: SeriesStore, now_s: float, cpu: SeriesKey, memory: SeriesKey) -> tuple[float, float] | None:
    cores = store.window(cpu, now_s, TRAINING_WINDOW_S).percentile(TRAINING_PERCENTILE)
    held = store.window(memory, now_s, TRAINING_WINDOW_S).percentile(TRAINING_PERCENTILE)
    return None if cores is None or held is None else (cores, held)


def _plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]
