"""FGD scores from precomputed tables: how useful what is left on nodes is to the expected pods.

    usefulness(node)   the sum over expected pods of weight x idle thousandths that such a pod could use
    balance(node)      idle thousandths that have CPU beside them, at the rate at which expected pods ask for both
    worth(node)        (100 - B) % of usefulness and B % of balance; B is 0 for plain fragmentation
    gain               taken - (worth before - worth after); without balance: fragmentation before - after
    score              100 / (1 + e^-gain), the gain in cards, rounded down

The worth of a card depends on what is left of it and on which pods the node's CPU suffices for, so it is
looked up. Weights are integers: the form for one node and the one for many give the same to the last bit.
Cards are counted in percent, which is as fine as pods can ask.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    CARD_MILLI,
    GpuChoice,
    GpuPodShape,
    TypicalPod,
    is_gpu_share,
)

Ints = npt.NDArray[np.int64]

FULL_GPU_PERCENT = 100
_MILLI_PER_PERCENT = CARD_MILLI // FULL_GPU_PERCENT  # thousandths in a percent
_WEIGHT_SCALE = 1 << 30  # the weight of all pods together
# The least gain for each score: where the curve passes it.
_SCORE_THRESHOLDS = tuple(
    math.ceil(100 * CARD_MILLI * _WEIGHT_SCALE * math.log(score / (100 - score))) for score in range(1, 100)
)
_SCORE_THRESHOLD_COLUMN: Ints = np.asarray(_SCORE_THRESHOLDS, np.int64)
DOES_NOT_FIT = -1
_IMPOSSIBLE = -(1 << 50)
_MOST_PER_CPU = 1000  # of pods that ask for hardly any CPU


class FgdScorer:
    """Scores nodes of one kind: those on which the same expected pods may run."""

    __slots__ = ("_balance", "_column", "_cpus", "_cpus_column", "_per_cpu", "_several", "_table", "_whole")

    def __init__(self, expected: Sequence[TypicalPod], takes: Callable[[GpuPodShape], bool], balance: int = 0) -> None:
        """Build the tables. `balance` is the percentage of a node's worth that depends on the CPU beside its cards."""
        self._balance = balance
        self._per_cpu = _gpu_milli_per_cpu_milli(expected)
        served = [one for one in expected if one.shape.gpu_count and one.shape.gpu_milli and takes(one.shape)]
        self._cpus = sorted({one.shape.cpu_milli for one in served})
        self._cpus_column = np.asarray(self._cpus, np.int64)
        self._column: Ints = np.zeros((len(self._cpus) + 1, FULL_GPU_PERCENT + 1), np.int64)
        most = max((one.shape.gpu_count for one in served), default=1)
        # By level of CPU and number of idle cards: the weight of pods that take several of these.
        self._whole: Ints = np.zeros((len(self._cpus) + 1, most + 1), np.int64)
        several = []
        for one in served:
            shape, weight = one.shape, round(one.weight * _WEIGHT_SCALE)
            level = bisect_left(self._cpus, shape.cpu_milli) + 1
            if shape.gpu_count == 1:
                self._column[level:, gpu_percent(shape) :] += weight
            elif gpu_percent(shape) == FULL_GPU_PERCENT:
                self._whole[level:, shape.gpu_count :] += weight
            else:
                several.append((shape.cpu_milli, gpu_percent(shape), shape.gpu_count, weight))
        self._column *= _MILLI_PER_PERCENT * np.arange(FULL_GPU_PERCENT + 1)
        self._several = tuple(several)
        self._table: list[list[int]] = self._column.tolist()

    # One node ----------------------------------------------------------------------------------------------------

    def usefulness(self, cpu_milli: int, percents: Sequence[int]) -> int:
        level = bisect_right(self._cpus, cpu_milli)
        values = self._table[level]
        total = sum([values[left] for left in percents])
        if self._whole.shape[1] > 2:
            idle = percents.count(FULL_GPU_PERCENT)
            total += CARD_MILLI * idle * int(self._whole[level, min(idle, self._whole.shape[1] - 1)])
        for cpu, percent, count, weight in self._several:
            if cpu <= cpu_milli:
                large = [left for left in percents if left >= percent]
                if len(large) >= count:
                    total += weight * _MILLI_PER_PERCENT * sum(large)
        return total

    def worth(self, cpu_milli: int, percents: Sequence[int]) -> int:
        """Return the worth of one node, in hundredths."""
        found = (100 - self._balance) * self.usefulness(cpu_milli, percents)
        if self._balance:
            found += self._balance * min(
                _WEIGHT_SCALE * _MILLI_PER_PERCENT * sum(percents), self._per_cpu * max(cpu_milli, 0)
            )
        return found

    def choose(self, cpu_milli: int, percents: Sequence[int], shape: GpuPodShape) -> GpuChoice | None:
        """Return the score and the card indexes; None where the pod does not fit."""
        need = gpu_percent(shape) if shape.gpu_count else 0
        fitting = [card for card, left in enumerate(percents) if left >= need] if need else []
        if shape.cpu_milli > cpu_milli or len(fitting) < shape.gpu_count:
            return None
        before, cpu_after = self.worth(cpu_milli, percents), cpu_milli - shape.cpu_milli
        taken = 100 * _WEIGHT_SCALE * _MILLI_PER_PERCENT * need * shape.gpu_count
        after = list(percents)
        if not is_gpu_share(shape):
            cards = tuple(fitting[: shape.gpu_count])
            for card in cards:
                after[card] -= need
            return GpuChoice(bisect_right(_SCORE_THRESHOLDS, taken - before + self.worth(cpu_after, after)), cards)
        best: GpuChoice | None = None
        seen: set[int] = set()  # cards with equally much left are equally good
        for card in fitting:
            if percents[card] not in seen:
                seen.add(percents[card])
                after[card] -= need
                score = bisect_right(_SCORE_THRESHOLDS, taken - before + self.worth(cpu_after, after))
                after[card] += need
                if best is None or score > best.score:
                    best = GpuChoice(score, (card,))
        return best

    # Many nodes --------------------------------------------------------------------------------------------------

    def usefulness_column(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Compute usefulness of nodes with a row of cards each; places without a card hold 0."""
        levels = np.searchsorted(self._cpus_column, cpu_milli, side="right")
        total: Ints = self._values(levels, percents).sum(axis=1)
        if self._whole.shape[1] > 2:
            total += self._of_whole(levels, np.count_nonzero(percents == FULL_GPU_PERCENT, axis=1))
        for cpu, percent, count, weight in self._several:
            large = percents >= percent
            enough = (np.count_nonzero(large, axis=1) >= count) & (cpu <= cpu_milli)
            total += np.where(enough, weight * _MILLI_PER_PERCENT * (percents * large).sum(axis=1), 0)
        return total

    def _values(self, levels: npt.NDArray[np.intp], percents: Ints) -> Ints:
        found: Ints = self._column.ravel().take(levels[:, None] * (FULL_GPU_PERCENT + 1) + percents)
        return found

    def _of_whole(self, levels: npt.NDArray[np.intp], idle: npt.NDArray[np.intp]) -> Ints:
        weights = self._whole[levels, np.minimum(idle, self._whole.shape[1] - 1)]
        found: Ints = CARD_MILLI * idle * weights
        return found

    def worth_column(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Compute the worth of each node."""
        return self._worth_column(cpu_milli, percents.sum(axis=1), self.usefulness_column(cpu_milli, percents))

    def score_column(self, cpu_milli: Ints, percents: Ints, shape: GpuPodShape, before: Ints | None = None) -> Ints:
        """Compute the score of each node, `DOES_NOT_FIT` where the pod does not. `before`: known worths."""
        need = gpu_percent(shape) if shape.gpu_count else 0
        fitting = percents >= max(need, 1)
        fits = (cpu_milli >= shape.cpu_milli) & (np.count_nonzero(fitting, axis=1) >= shape.gpu_count)
        cpu_after = cpu_milli - shape.cpu_milli
        idle: Ints = percents.sum(axis=1)
        if before is None:
            before = self.worth_column(cpu_milli, percents)
        taken = 100 * _WEIGHT_SCALE * _MILLI_PER_PERCENT * need * shape.gpu_count
        if is_gpu_share(shape):
            best_after = self._best_of_several if self._several else self._best_after
            useful = best_after(cpu_after, percents, need)
        else:
            first = fitting & (np.cumsum(fitting, axis=1) <= shape.gpu_count)
            useful = self.usefulness_column(cpu_after, percents - need * first)
        after = self._worth_column(cpu_after, idle - need * shape.gpu_count, useful)
        scores = np.searchsorted(_SCORE_THRESHOLD_COLUMN, taken - before + after, side="right")
        return np.where(fits, scores, DOES_NOT_FIT)

    def _worth_column(self, cpu_milli: Ints, idle: Ints, useful: Ints) -> Ints:
        found = (100 - self._balance) * useful
        if self._balance:
            found += self._balance * np.minimum(
                _WEIGHT_SCALE * _MILLI_PER_PERCENT * idle, self._per_cpu * np.maximum(cpu_milli, 0)
            )
        return found

    def _best_after(self, cpu_after: Ints, percents: Ints, need: int) -> Ints:
        """Return the most useful remainder of a share over the cards that it could come from.

        What a card loses is looked up; only whether it is an idle one matters to the others.
        """
        levels = np.searchsorted(self._cpus_column, cpu_after, side="right")
        places = levels[:, None] * (FULL_GPU_PERCENT + 1) + percents
        lost = np.full_like(self._column, _IMPOSSIBLE)
        lost[:, need:] = self._column[:, : FULL_GPU_PERCENT + 1 - need] - self._column[:, need:]
        of_idle = lost[levels, FULL_GPU_PERCENT]
        lost[:, FULL_GPU_PERCENT] = _IMPOSSIBLE
        of_partial = lost.ravel().take(places).max(axis=1)
        idle = np.count_nonzero(percents == FULL_GPU_PERCENT, axis=1)
        kept, one_less = self._of_whole(levels, idle), self._of_whole(levels, np.maximum(idle - 1, 0))
        best: Ints = np.maximum(of_partial + kept, np.where(idle > 0, of_idle + one_less, _IMPOSSIBLE))
        best += self._column.ravel().take(places).sum(axis=1)
        return best

    def _best_of_several(self, cpu_after: Ints, percents: Ints, need: int) -> Ints:
        """Return the same where pods are expected that want parts of several cards: each card is tried."""
        best = np.full(len(percents), _IMPOSSIBLE, np.int64)
        for card in range(percents.shape[1]):
            left = percents.copy()
            left[:, card] -= need
            fits = left[:, card] >= 0
            useful = self.usefulness_column(cpu_after, np.maximum(left, 0))
            best = np.maximum(best, np.where(fits, useful, _IMPOSSIBLE))
        return best


def _gpu_milli_per_cpu_milli(expected: Sequence[TypicalPod]) -> int:
    """Return the thousandths of cards that GPU pods request per thousandth of a CPU, times the total weight."""
    with_gpus = [one for one in expected if one.shape.gpu_count]
    cpu = sum(one.weight * one.shape.cpu_milli for one in with_gpus)
    gpu = sum(one.weight * one.shape.gpu_milli * one.shape.gpu_count for one in with_gpus)
    return round(_WEIGHT_SCALE * min(gpu / cpu, _MOST_PER_CPU)) if cpu else _WEIGHT_SCALE * _MOST_PER_CPU


def gpu_percent(shape: GpuPodShape) -> int:
    return -(-shape.gpu_milli // _MILLI_PER_PERCENT)
