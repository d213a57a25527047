"""Fragmentation gradient descent as it was published, one node at a time: what the columns of FgdScorer must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    CARD_MILLI,
    GpuChoice,
    GpuPodShape,
    NodeFreeGpus,
    TypicalPod,
    fits,
    fitting_gpus,
    is_gpu_share,
)


def fragmentation_milli(room: NodeFreeGpus, expected: Sequence[TypicalPod]) -> float:
    """Compute the idle and unusable thousandths of cards, on average over the expected pods."""
    return sum(one.weight * unusable_milli(room, one.shape) for one in expected)


def unusable_milli(room: NodeFreeGpus, shape: GpuPodShape) -> int:
    """Return the idle thousandths that such a pod cannot use: all when it does not fit, else small remainders."""
    idle = sum(room.gpu_milli)
    if (
        not shape.gpu_count
        or not shape.gpu_milli
        or shape.cpu_milli > room.cpu_milli
        or not shape.accepts_model(room.model)
    ):
        return idle
    large = [left for left in room.gpu_milli if left >= shape.gpu_milli]
    if len(large) < shape.gpu_count:
        return idle
    return idle - sum(large)


def choose_by_fgd(room: NodeFreeGpus, shape: GpuPodShape, expected: Sequence[TypicalPod]) -> GpuChoice | None:
    """Choose cards by FGD: the less fragmentation a placement adds, the better; so for a share of a card."""
    if not fits(room, shape):
        return None
    before = fragmentation_milli(room, expected)
    if not is_gpu_share(shape):
        cards = tuple(fitting_gpus(room, shape)[: shape.gpu_count]) if shape.gpu_count else ()
        return GpuChoice(_sigmoid_score(before - fragmentation_milli(room.after(shape, cards), expected)), cards)
    best: GpuChoice | None = None
    seen: set[int] = set()  # cards with equally much left are equally good
    for card in fitting_gpus(room, shape):
        if room.gpu_milli[card] in seen:
            continue
        seen.add(room.gpu_milli[card])
        score = _sigmoid_score(before - fragmentation_milli(room.after(shape, (card,)), expected))
        if best is None or score > best.score:
            best = GpuChoice(score, (card,))
    return best


def _sigmoid_score(gain_milli: float) -> int:
    return int(100 / (1 + math.exp(-gain_milli / CARD_MILLI)))
