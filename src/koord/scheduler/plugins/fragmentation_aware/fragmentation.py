"""GPU fragmentation and the two published scores that keep it low: fragmentation gradient descent (FGD) and
best fit.

Cards are counted in thousandths. A node's fragmentation is the idle part of its cards that the expected
pods cannot use, weighted by how common each of them is. Scores are integers from 0 to 100 on purpose: the
ties that rounding makes are part of the published results, and finer scores place fewer pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

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
