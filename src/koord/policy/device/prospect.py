"""How useful what is left on nodes is to the pods one expects: the scores of `fragmentation.descent` from tables.

    usefulness(room)   the sum over expected pods of weight x idle thousandths that such a pod could use
    fragmentation      idle - usefulness
    gain               fragmentation before - after  =  taken - (usefulness before - after)
    score              100 / (1 + e^-gain), the gain in cards, rounded down

What a card is worth depends on what is left of it and on which pods the node's CPU is enough for, so it is looked up.
Weights are whole numbers: the form for one room and the one for many give the same to the last bit. Cards are counted
in percent, which is as fine as pods can ask.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from koord.policy.device.fragmentation import CARD_MILLI, Choice, Shape, Typical

Ints = npt.NDArray[np.int64]

WHOLE = 100
_STEP = CARD_MILLI // WHOLE  # thousandths in a percent
_ONE = 1 << 30  # the weight of all pods together
# The least gain for each score: where the curve passes it.
_LEAST = tuple(math.ceil(CARD_MILLI * _ONE * math.log(score / (100 - score))) for score in range(1, 100))
_LEAST_COLUMN: Ints = np.asarray(_LEAST, np.int64)
NO_ROOM = -1


class Prospect:
    """Of nodes of one kind: those on which the same expected pods may run."""

    __slots__ = ("_column", "_cpus", "_cpus_column", "_several", "_worth")

    def __init__(self, expected: Sequence[Typical], takes: Callable[[Shape], bool]) -> None:
        served = [one for one in expected if one.shape.gpu_count and one.shape.gpu_milli and takes(one.shape)]
        self._cpus = sorted({one.shape.cpu_milli for one in served})
        self._cpus_column = np.asarray(self._cpus, np.int64)
        self._column: Ints = np.zeros((len(self._cpus) + 1, WHOLE + 1), np.int64)
        several = []
        for one in served:
            shape, weight = one.shape, round(one.weight * _ONE)
            if shape.gpu_count == 1:
                self._column[bisect_left(self._cpus, shape.cpu_milli) + 1 :, percent_of(shape) :] += weight
            else:
                several.append((shape.cpu_milli, percent_of(shape), shape.gpu_count, weight))
        self._column *= _STEP * np.arange(WHOLE + 1)
        self._several = tuple(several)
        self._worth: list[list[int]] = self._column.tolist()

    # One room ----------------------------------------------------------------------------------------------------

    def usefulness(self, cpu_milli: int, percents: Sequence[int]) -> int:
        worth = self._worth[bisect_right(self._cpus, cpu_milli)]
        total = sum([worth[left] for left in percents])
        for cpu, percent, count, weight in self._several:
            if cpu <= cpu_milli:
                large = [left for left in percents if left >= percent]
                if len(large) >= count:
                    total += weight * _STEP * sum(large)
        return total

    def choice(self, cpu_milli: int, percents: Sequence[int], shape: Shape) -> Choice | None:
        """The score and the cards by index; None where the pod does not fit."""
        need = percent_of(shape) if shape.gpu_count else 0
        fitting = [card for card, left in enumerate(percents) if left >= need] if need else []
        if shape.cpu_milli > cpu_milli or len(fitting) < shape.gpu_count:
            return None
        before, cpu_after = self.usefulness(cpu_milli, percents), cpu_milli - shape.cpu_milli
        taken = _ONE * _STEP * need * shape.gpu_count
        after = list(percents)
        if not is_share(shape):
            cards = tuple(fitting[: shape.gpu_count])
            for card in cards:
                after[card] -= need
            return Choice(bisect_right(_LEAST, taken - before + self.usefulness(cpu_after, after)), cards)
        best: Choice | None = None
        seen: set[int] = set()  # cards with equally much left are equally good
        for card in fitting:
            if percents[card] not in seen:
                seen.add(percents[card])
                after[card] -= need
                score = bisect_right(_LEAST, taken - before + self.usefulness(cpu_after, after))
                after[card] += need
                if best is None or score > best.score:
                    best = Choice(score, (card,))
        return best

    # Many --------------------------------------------------------------------------------------------------------

    def usefulness_column(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Of rooms with a row of cards each; places without a card hold 0."""
        levels = np.searchsorted(self._cpus_column, cpu_milli, side="right")
        total: Ints = self._column[levels[:, None], percents].sum(axis=1)
        for cpu, percent, count, weight in self._several:
            large = percents >= percent
            enough = (np.count_nonzero(large, axis=1) >= count) & (cpu <= cpu_milli)
            total += np.where(enough, weight * _STEP * (percents * large).sum(axis=1), 0)
        return total

    def scores(self, cpu_milli: Ints, percents: Ints, shape: Shape) -> Ints:
        """`choice(...).score` of each room; `NO_ROOM` where there is none."""
        need = percent_of(shape) if shape.gpu_count else 0
        fitting = percents >= max(need, 1)
        fits = (cpu_milli >= shape.cpu_milli) & (np.count_nonzero(fitting, axis=1) >= shape.gpu_count)
        cpu_after = cpu_milli - shape.cpu_milli
        before = self.usefulness_column(cpu_milli, percents)
        taken = _ONE * _STEP * need * shape.gpu_count
        if is_share(shape):
            after = self._best_after(cpu_after, percents, fitting, need)
        elif need:
            first = fitting & (np.cumsum(fitting, axis=1) <= shape.gpu_count)
            after = self.usefulness_column(cpu_after, percents - need * first)
        else:
            after = self.usefulness_column(cpu_after, percents)
        scores = np.searchsorted(_LEAST_COLUMN, taken - before + after, side="right")
        return np.where(fits, scores, NO_ROOM)

    def _best_after(self, cpu_after: Ints, percents: Ints, fitting: npt.NDArray[np.bool_], need: int) -> Ints:
        """The most useful of what a share could leave, over the cards that it could come from."""
        levels = np.searchsorted(self._cpus_column, cpu_after, side="right")[:, None]
        left = np.where(fitting, percents - need, percents)
        values = self._column[levels, percents]
        after: Ints = values.sum(axis=1)[:, None] - values + self._column[levels, left]
        for cpu, percent, count, weight in self._several:
            large, still = percents >= percent, left >= percent
            cards = np.count_nonzero(large, axis=1)[:, None] - large + still
            sums = (percents * large).sum(axis=1)[:, None] - percents * large + left * still
            after = after + np.where((cards >= count) & (cpu <= cpu_after)[:, None], weight * _STEP * sums, 0)
        best: Ints = np.where(fitting, after, -1).max(axis=1)
        return best


def percent_of(shape: Shape) -> int:
    return -(-shape.gpu_milli // _STEP)


def is_share(shape: Shape) -> bool:
    return shape.gpu_count == 1 and 0 < shape.gpu_milli < CARD_MILLI
