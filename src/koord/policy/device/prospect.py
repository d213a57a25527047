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

from koord.policy.device.fragmentation import CARD_MILLI, Choice, Shape, Typical

Ints = npt.NDArray[np.int64]

WHOLE = 100
_STEP = CARD_MILLI // WHOLE  # thousandths in a percent
_ONE = 1 << 30  # the weight of all pods together
# The least gain for each score: where the curve passes it.
_LEAST = tuple(math.ceil(100 * CARD_MILLI * _ONE * math.log(score / (100 - score))) for score in range(1, 100))
_LEAST_COLUMN: Ints = np.asarray(_LEAST, np.int64)
NO_ROOM = -1
_NEVER = -(1 << 50)
_MOST_PER_CPU = 1000  # of pods that ask for hardly any CPU


class Prospect:
    """Scores nodes of one kind: those on which the same expected pods may run."""

    __slots__ = ("_balance", "_column", "_cpus", "_cpus_column", "_per_cpu", "_several", "_table", "_whole")

    def __init__(self, expected: Sequence[Typical], takes: Callable[[Shape], bool], balance: int = 0) -> None:
        """Build the tables. `balance` is the percentage of a node's worth that depends on the CPU beside its cards."""
        self._balance = balance
        self._per_cpu = _per_cpu(expected)
        served = [one for one in expected if one.shape.gpu_count and one.shape.gpu_milli and takes(one.shape)]
        self._cpus = sorted({one.shape.cpu_milli for one in served})
        self._cpus_column = np.asarray(self._cpus, np.int64)
        self._column: Ints = np.zeros((len(self._cpus) + 1, WHOLE + 1), np.int64)
        most = max((one.shape.gpu_count for one in served), default=1)
        # By level of CPU and number of idle cards: the weight of pods that take several of these.
        self._whole: Ints = np.zeros((len(self._cpus) + 1, most + 1), np.int64)
        several = []
        for one in served:
            shape, weight = one.shape, round(one.weight * _ONE)
            level = bisect_left(self._cpus, shape.cpu_milli) + 1
            if shape.gpu_count == 1:
                self._column[level:, percent_of(shape) :] += weight
            elif percent_of(shape) == WHOLE:
                self._whole[level:, shape.gpu_count :] += weight
            else:
                several.append((shape.cpu_milli, percent_of(shape), shape.gpu_count, weight))
        self._column *= _STEP * np.arange(WHOLE + 1)
        self._several = tuple(several)
        self._table: list[list[int]] = self._column.tolist()

    # One node ----------------------------------------------------------------------------------------------------

    def usefulness(self, cpu_milli: int, percents: Sequence[int]) -> int:
        level = bisect_right(self._cpus, cpu_milli)
        values = self._table[level]
        total = sum([values[left] for left in percents])
        if self._whole.shape[1] > 2:
            idle = percents.count(WHOLE)
            total += CARD_MILLI * idle * int(self._whole[level, min(idle, self._whole.shape[1] - 1)])
        for cpu, percent, count, weight in self._several:
            if cpu <= cpu_milli:
                large = [left for left in percents if left >= percent]
                if len(large) >= count:
                    total += weight * _STEP * sum(large)
        return total

    def worth(self, cpu_milli: int, percents: Sequence[int]) -> int:
        """Return the worth of one node, in hundredths."""
        found = (100 - self._balance) * self.usefulness(cpu_milli, percents)
        if self._balance:
            found += self._balance * min(_ONE * _STEP * sum(percents), self._per_cpu * max(cpu_milli, 0))
        return found

    def choice(self, cpu_milli: int, percents: Sequence[int], shape: Shape) -> Choice | None:
        """Return the score and the card indexes; None where the pod does not fit."""
        need = percent_of(shape) if shape.gpu_count else 0
        fitting = [card for card, left in enumerate(percents) if left >= need] if need else []
        if shape.cpu_milli > cpu_milli or len(fitting) < shape.gpu_count:
            return None
        before, cpu_after = self.worth(cpu_milli, percents), cpu_milli - shape.cpu_milli
        taken = 100 * _ONE * _STEP * need * shape.gpu_count
        after = list(percents)
        if not is_share(shape):
            cards = tuple(fitting[: shape.gpu_count])
            for card in cards:
                after[card] -= need
            return Choice(bisect_right(_LEAST, taken - before + self.worth(cpu_after, after)), cards)
        best: Choice | None = None
        seen: set[int] = set()  # cards with equally much left are equally good
        for card in fitting:
            if percents[card] not in seen:
                seen.add(percents[card])
                after[card] -= need
                score = bisect_right(_LEAST, taken - before + self.worth(cpu_after, after))
                after[card] += need
                if best is None or score > best.score:
                    best = Choice(score, (card,))
        return best

    # Many nodes --------------------------------------------------------------------------------------------------

    def usefulness_column(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Compute usefulness of nodes with a row of cards each; places without a card hold 0."""
        levels = np.searchsorted(self._cpus_column, cpu_milli, side="right")
        total: Ints = self._values(levels, percents).sum(axis=1)
        if self._whole.shape[1] > 2:
            total += self._of_whole(levels, np.count_nonzero(percents == WHOLE, axis=1))
        for cpu, percent, count, weight in self._several:
            large = percents >= percent
            enough = (np.count_nonzero(large, axis=1) >= count) & (cpu <= cpu_milli)
            total += np.where(enough, weight * _STEP * (percents * large).sum(axis=1), 0)
        return total

    def _values(self, levels: npt.NDArray[np.intp], percents: Ints) -> Ints:
        found: Ints = self._column.ravel().take(levels[:, None] * (WHOLE + 1) + percents)
        return found

    def _of_whole(self, levels: npt.NDArray[np.intp], idle: npt.NDArray[np.intp]) -> Ints:
        weights = self._whole[levels, np.minimum(idle, self._whole.shape[1] - 1)]
        found: Ints = CARD_MILLI * idle * weights
        return found

    def worths(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Compute the worth of each node."""
        return self._worth_column(cpu_milli, percents.sum(axis=1), self.usefulness_column(cpu_milli, percents))

    def scores(self, cpu_milli: Ints, percents: Ints, shape: Shape, before: Ints | None = None) -> Ints:
        """Compute the score of each node, `NO_ROOM` where the pod does not fit. `before` holds their worths, where
        known.
        """
        need = percent_of(shape) if shape.gpu_count else 0
        fitting = percents >= max(need, 1)
        fits = (cpu_milli >= shape.cpu_milli) & (np.count_nonzero(fitting, axis=1) >= shape.gpu_count)
        cpu_after = cpu_milli - shape.cpu_milli
        idle: Ints = percents.sum(axis=1)
        if before is None:
            before = self.worths(cpu_milli, percents)
        taken = 100 * _ONE * _STEP * need * shape.gpu_count
        if is_share(shape):
            best_after = self._best_of_several if self._several else self._best_after
            useful = best_after(cpu_after, percents, need)
        else:
            first = fitting & (np.cumsum(fitting, axis=1) <= shape.gpu_count)
            useful = self.usefulness_column(cpu_after, percents - need * first)
        after = self._worth_column(cpu_after, idle - need * shape.gpu_count, useful)
        scores = np.searchsorted(_LEAST_COLUMN, taken - before + after, side="right")
        return np.where(fits, scores, NO_ROOM)

    def _worth_column(self, cpu_milli: Ints, idle: Ints, useful: Ints) -> Ints:
        found = (100 - self._balance) * useful
        if self._balance:
            found += self._balance * np.minimum(_ONE * _STEP * idle, self._per_cpu * np.maximum(cpu_milli, 0))
        return found

    def _best_after(self, cpu_after: Ints, percents: Ints, need: int) -> Ints:
        """Return the most useful remainder of a share over the cards that it could come from.

        What a card loses is looked up; only whether it is an idle one matters to the others.
        """
        levels = np.searchsorted(self._cpus_column, cpu_after, side="right")
        places = levels[:, None] * (WHOLE + 1) + percents
        lost = np.full_like(self._column, _NEVER)
        lost[:, need:] = self._column[:, : WHOLE + 1 - need] - self._column[:, need:]
        of_idle = lost[levels, WHOLE]
        lost[:, WHOLE] = _NEVER
        of_partial = lost.ravel().take(places).max(axis=1)
        idle = np.count_nonzero(percents == WHOLE, axis=1)
        kept, one_less = self._of_whole(levels, idle), self._of_whole(levels, np.maximum(idle - 1, 0))
        best: Ints = np.maximum(of_partial + kept, np.where(idle > 0, of_idle + one_less, _NEVER))
        best += self._column.ravel().take(places).sum(axis=1)
        return best

    def _best_of_several(self, cpu_after: Ints, percents: Ints, need: int) -> Ints:
        """Return the same where pods are expected that want parts of several cards: each card is tried."""
        best = np.full(len(percents), _NEVER, np.int64)
        for card in range(percents.shape[1]):
            left = percents.copy()
            left[:, card] -= need
            fits = left[:, card] >= 0
            useful = self.usefulness_column(cpu_after, np.maximum(left, 0))
            best = np.maximum(best, np.where(fits, useful, _NEVER))
        return best


def _per_cpu(expected: Sequence[Typical]) -> int:
    """Return the thousandths of cards that GPU pods request per thousandth of a CPU, times the total weight."""
    with_gpus = [one for one in expected if one.shape.gpu_count]
    cpu = sum(one.weight * one.shape.cpu_milli for one in with_gpus)
    gpu = sum(one.weight * one.shape.gpu_milli * one.shape.gpu_count for one in with_gpus)
    return round(_ONE * min(gpu / cpu, _MOST_PER_CPU)) if cpu else _ONE * _MOST_PER_CPU


def percent_of(shape: Shape) -> int:
    return -(-shape.gpu_milli // _STEP)


def is_share(shape: Shape) -> bool:
    return shape.gpu_count == 1 and 0 < shape.gpu_milli < CARD_MILLI
