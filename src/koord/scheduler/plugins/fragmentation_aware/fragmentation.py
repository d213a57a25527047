"""GPU fragmentation and the two published scores that keep it low: fragmentation gradient descent (FGD) and best fit.

Cards are counted in thousandths. A node's fragmentation is the idle part of its cards that the expected pods cannot
use, weighted by how common each of them is. The pods of the cluster are counted by what they request, to know which to
expect: their CPU and GPU shape, and where they may run, are all that fragmentation depends on. Scores are integers from
0 to 100 on purpose: the ties that rounding makes are part of the published results, and finer scores place fewer pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import CPU, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.node_match import RequiredNodeAffinity, required_node_selector
from koord.scheduler.cache import pod_shape as state_shape
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod, deterministic_bytes, is_terminal
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT
from koord.scheduler.plugins.device_share.request import GpuRequest, device_requests, gpu_request_of, normalize_requests

CARD_MILLI = 1000
_LARGEST_CPU_MILLI = 128_000
_LARGEST_GPU_MILLI = 8 * CARD_MILLI
_TYPICAL_SHARE = 95  # percent of the pods


class GpuPodShape(msgspec.Struct, frozen=True, order=True):
    """The requests of pods of one kind. `gpu_spec` lists acceptable models joined by "|"; empty accepts any."""

    cpu_milli: int
    gpu_milli: int  # of each card
    gpu_count: int
    gpu_spec: str = ""

    def accepts_model(self, model: str) -> bool:
        return not self.gpu_spec or model in self.gpu_spec.split("|")


class NodeFreeGpus(msgspec.Struct, frozen=True):
    """The free CPU and GPUs of a node."""

    cpu_milli: int
    gpu_milli: tuple[int, ...]  # by card
    model: str = ""

    def after(self, shape: GpuPodShape, cards: Sequence[int]) -> NodeFreeGpus:
        left = list(self.gpu_milli)
        for card in cards:
            left[card] -= shape.gpu_milli
        return NodeFreeGpus(self.cpu_milli - shape.cpu_milli, tuple(left), self.model)


class TypicalPod(msgspec.Struct, frozen=True):
    shape: GpuPodShape
    weight: float


class GpuChoice(msgspec.Struct, frozen=True):
    score: int
    cards: tuple[int, ...]


def typical_pods(shapes: Iterable[GpuPodShape]) -> tuple[TypicalPod, ...]:
    """Return the commonest pod shapes that make up at least 95 % of all pods, with weights that add up to 1."""
    counts = Counter(shapes)
    ranked = sorted(counts.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)
    total = sum(counts.values())
    kept: list[tuple[GpuPodShape, int]] = []
    covered = 0
    for shape, count in ranked:
        if covered * 100 >= total * _TYPICAL_SHARE:
            break
        kept.append((shape, count))
        covered += count
    return tuple(TypicalPod(shape, count / covered) for shape, count in kept)


def fitting_gpus(room: NodeFreeGpus, shape: GpuPodShape) -> list[int]:
    """Return the indexes of the cards that could serve; empty when the node cannot take the pod."""
    if shape.cpu_milli > room.cpu_milli or not shape.accepts_model(room.model):
        return []
    cards = [index for index, left in enumerate(room.gpu_milli) if left >= shape.gpu_milli]
    return cards if len(cards) >= shape.gpu_count else []


def fits(room: NodeFreeGpus, shape: GpuPodShape) -> bool:
    if not shape.gpu_count:
        return shape.cpu_milli <= room.cpu_milli and shape.accepts_model(room.model)
    return bool(fitting_gpus(room, shape))


def choose_by_best_fit(room: NodeFreeGpus, shape: GpuPodShape) -> GpuChoice | None:
    """Choose cards by best fit: the less is left, the better. A share goes to the card with the least free."""
    if not fits(room, shape):
        return None
    cards = fitting_gpus(room, shape) if shape.gpu_count else []
    if is_gpu_share(shape):
        cards = sorted(cards, key=lambda card: (room.gpu_milli[card], card))
    taken = tuple(cards[: shape.gpu_count])
    left = room.after(shape, taken)
    remains = 0.5 * left.cpu_milli / _LARGEST_CPU_MILLI + 0.5 * sum(left.gpu_milli) / _LARGEST_GPU_MILLI
    return GpuChoice(max(int(100 * (1 - remains)), 0), taken)


def is_gpu_share(shape: GpuPodShape) -> bool:
    return shape.gpu_count == 1 and 0 < shape.gpu_milli < CARD_MILLI


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
