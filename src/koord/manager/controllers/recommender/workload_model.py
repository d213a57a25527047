"""Recommend requests for the pods of a workload, learnt from samples of their usage, and find the pods that a
Recommendation is about: one lookup per pod, however many Recommendations there are. Pure.

CPU can be throttled, so the 95th percentile is enough; missing memory kills, so the highest use that has not faded
counts. Both get a margin on top.
"""

from __future__ import annotations

import math
import re

import msgspec

from koord.api.koordinator.profiles import TARGET_POD_SELECTOR, TARGET_WORKLOAD, Recommendation
from koord.api.kubernetes.meta import OwnerReference, label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.kube.informer.cache import ObjectKey
from koord.policy.histogram import CPU_BUCKETS, MEMORY_BUCKETS, DecayingHistogram, HistogramCheckpoint
from koord.values.selector import Selector, SelectorError

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


L_TEMPLATE_HASH = "pod-template-hash"
_SCHEDULED_JOB = re.compile(r"(.+)-\d+")


class WorkloadTarget(msgspec.Struct, frozen=True):
    """A workload by group, kind and name: API versions differ between owner references and users, groups do not."""

    namespace: str
    group: str
    kind: str
    name: str


class SelectorTarget(msgspec.Struct, frozen=True):
    namespace: str
    selector: Selector


class UnsupportedTarget(msgspec.Struct, frozen=True):
    why: str


RecommendationTarget = WorkloadTarget | SelectorTarget | UnsupportedTarget


def parse_target(recommendation: Recommendation) -> RecommendationTarget:
    namespace, target = recommendation.metadata.namespace, recommendation.spec.target
    if target.type == TARGET_WORKLOAD:
        workload = target.workload
        if workload is None or not workload.kind or not workload.name:
            return UnsupportedTarget("spec.target.workload needs a kind and a name")
        return WorkloadTarget(namespace, _api_group(workload.api_version), workload.kind, workload.name)
    if target.type == TARGET_POD_SELECTOR:
        given = target.pod_selector
        if given is None:
            return UnsupportedTarget("spec.target.podSelector is missing")
        try:
            return SelectorTarget(namespace, label_selector_as_selector(given))
        except SelectorError as error:
            return UnsupportedTarget(f"spec.target.podSelector: {error}")
    return UnsupportedTarget(f"spec.target.type is {target.type!r}")


def workloads_of_pod(pod: Pod) -> list[WorkloadTarget]:
    """Return the pod's owner, and that owner's owner where its name tells: no other object needs to be read."""
    namespace = pod.metadata.namespace
    found: list[WorkloadTarget] = []
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        group = _api_group(owner.api_version)
        found.append(WorkloadTarget(namespace, group, owner.kind, owner.name))
        above = _owner_of_owner(owner, pod.metadata.labels.get(L_TEMPLATE_HASH, ""))
        if above is not None:
            found.append(WorkloadTarget(namespace, group, *above))
    return found


def _owner_of_owner(owner: OwnerReference, template_hash: str) -> tuple[str, str] | None:
    if owner.kind == "ReplicaSet" and template_hash and owner.name.endswith(f"-{template_hash}"):
        return "Deployment", owner.name.removesuffix(f"-{template_hash}")
    if owner.kind == "Job" and (scheduled := _SCHEDULED_JOB.fullmatch(owner.name)):
        return "CronJob", scheduled[1]
    return None


def _api_group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


class TargetIndex:
    def __init__(self) -> None:
        self._targets: dict[ObjectKey, RecommendationTarget] = {}
        self._by_workload: dict[WorkloadTarget, set[ObjectKey]] = {}
        self._by_selector: dict[str, dict[ObjectKey, Selector]] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def put(self, key: ObjectKey, target: RecommendationTarget) -> None:
        self.drop(key)
        self._targets[key] = target
        match target:
            case WorkloadTarget():
                self._by_workload.setdefault(target, set()).add(key)
            case SelectorTarget(namespace, selector):
                self._by_selector.setdefault(namespace, {})[key] = selector

    def drop(self, key: ObjectKey) -> None:
        target = self._targets.pop(key, None)
        match target:
            case WorkloadTarget():
                self._by_workload[target].discard(key)
                if not self._by_workload[target]:
                    del self._by_workload[target]
            case SelectorTarget(namespace, _):
                self._by_selector[namespace].pop(key)
                if not self._by_selector[namespace]:
                    del self._by_selector[namespace]

    def recommendations_of_pod(self, pod: Pod) -> set[ObjectKey]:
        found: set[ObjectKey] = set()
        for workload in workloads_of_pod(pod):
            found |= self._by_workload.get(workload, set())
            # A target without an API version means the kind of any group.
            found |= self._by_workload.get(msgspec.structs.replace(workload, group=""), set())
        for key, selector in self._by_selector.get(pod.metadata.namespace, {}).items():
            if selector.matches(pod.metadata.labels):
                found.add(key)
        return found
