"""GPU fragmentation and the two published scores that keep it low: fragmentation gradient descent (FGD) and best fit.

Cards are counted in thousandths. A node's fragmentation is the idle part of its cards that the expected pods cannot
use, weighted by how common each of them is. The pods of the cluster are counted by what they request, to know which to
expect: their CPU and GPU shape, and where they may run, are all that fragmentation depends on. Scores are integers from
0 to 100 on purpose: the ties that rounding makes are part of the published results, and finer scores place fewer pods.

FGD scores from precomputed tables: how useful what is left on nodes is to the expected pods.

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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import CPU, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.node_match import RequiredNodeAffinity, required_node_selector
from koord.scheduler.cache import pod_info as state_shape
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
