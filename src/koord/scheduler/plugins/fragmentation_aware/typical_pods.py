"""This module counts the pods of the cluster by what they request, to know which pods to expect.

The CPU and GPU shape of a pod, and where it may run, are all that fragmentation depends on.
"""

from __future__ import annotations

from collections import Counter

from koord.api.koordinator import device as wire
from koord.api.koordinator.resource_name import CPU, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.node_match import RequiredNodeAffinity, required_node_selector
from koord.scheduler.cache import pod_shape as state_shape
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod, deterministic_bytes, is_terminal
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT
from koord.scheduler.plugins.device_share.request import GpuRequest, device_requests, gpu_request_of, normalize_requests
from koord.scheduler.plugins.fragmentation_aware.fragmentation import CARD_MILLI, GpuPodShape, TypicalPod, typical_pods

PLUGIN_NAME = "FragmentationAware"
_ASSUMED_CARD_MEMORY_BYTES = 16 << 30  # for pods that ask for bytes, before any card is known


def gpu_shape_of(spec: state_shape.PodShape) -> GpuPodShape:
    """Return the CPU and GPU shape of a pod template; `gpu_spec` stands for node selector and required affinity."""
    known = spec.memo.get(PLUGIN_NAME)
    if known is None:
        known = spec.memo[PLUGIN_NAME] = _shape(_gpu_need(spec), spec.requests.get(CPU, 0), _node_constraint_key(spec))
    found: GpuPodShape = known
    return found


def _node_constraint_key(spec: state_shape.PodShape) -> str:
    selector, affinity = spec.spec.node_selector, required_node_selector(spec.spec)
    return deterministic_bytes((selector, affinity)).hex() if selector or affinity is not None else ""


def _gpu_need(spec: state_shape.PodShape) -> GpuRequest | None:
    asked = device_requests(spec.requests)
    found = normalize_requests(dict(asked)) if asked else None
    return gpu_request_of(found[wire.GPU]) if isinstance(found, dict) and wire.GPU in found else None


def _shape(need: GpuRequest | None, cpu_milli: int, where: str) -> GpuPodShape:
    if need is None:
        return GpuPodShape(cpu_milli, 0, 0, where)
    ratio = need.each.get(GPU_MEMORY_RATIO)
    if ratio is None:
        ratio = min(need.each.get(GPU_MEMORY, 0) * FULL_CARD_PERCENT // _ASSUMED_CARD_MEMORY_BYTES, FULL_CARD_PERCENT)
    return GpuPodShape(cpu_milli, max(ratio, 1) * CARD_MILLI // FULL_CARD_PERCENT, need.count, where)


_MIN_CHANGES = 16


class TypicalPodMix:
    """The expected pods. `version` changes when a tenth of the pods has changed; until then they are the same."""

    def __init__(self, state: ClusterState) -> None:
        self._shapes = state.shapes
        self._counts: Counter[GpuPodShape] = Counter()
        self._total = 0
        self._with_gpus = 0
        self._required: dict[str, RequiredNodeAffinity] = {}  # by `Shape.gpu_spec`
        self._changes = 0
        self._expected: tuple[TypicalPod, ...] = ()
        self.version = 0
        self._claimed = False

    def claim_feed(self) -> bool:
        """Return True for the first caller, who must feed the counts: profiles share them."""
        first, self._claimed = not self._claimed, True
        return first

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before = self._shape(old)
        after = self._shape(new)
        if before == after:
            return
        for shape, by in ((before, -1), (after, 1)):
            if shape is not None:
                self._counts[shape] += by
                self._total += by
                self._with_gpus += by if shape.gpu_count else 0
                self._changes += 1
        if self._changes * 10 > self._total + _MIN_CHANGES or (self._with_gpus and not self._expected):
            self._changes = 0
            self._update_expected()

    def _shape(self, pod: Pod | None) -> GpuPodShape | None:
        if pod is None or is_terminal(pod):
            return None
        spec = self._shapes.shape_of(pod)
        shape = gpu_shape_of(spec)
        if shape.gpu_spec and shape.gpu_spec not in self._required:
            self._required[shape.gpu_spec] = RequiredNodeAffinity.from_spec(spec.spec)
        return shape

    def _update_expected(self) -> None:
        self.version += 1
        self._counts = +self._counts
        self._expected = typical_pods(self._counts.elements()) if self._with_gpus else ()
        named = {shape.gpu_spec for shape in self._counts}
        self._required = {key: held for key, held in self._required.items() if key in named}

    def expected(self) -> tuple[TypicalPod, ...]:
        """Return the expected pods; none while there are no pods with GPUs."""
        return self._expected

    def constraints(self) -> dict[str, RequiredNodeAffinity]:
        """Return where the expected pods may run, by `GpuPodShape.gpu_spec`."""
        named = dict.fromkeys(
            one.shape.gpu_spec for one in self._expected if one.shape.gpu_spec and one.shape.gpu_count
        )
        return {key: self._required[key] for key in named}
