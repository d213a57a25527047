"""Every number and every enumerated value of every NodeSLO strategy has limits, and what lies beyond is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest

from koord.api.config.slo import defaults
from koord.api.config.slo.slo_validation import FIELD_CHOICES, strategy_errors
from koord.api.koordinator.slo import Extensions, NodeSLOSpec
from koord.api.model import convert
from koord.api.schema import unwrap_annotated

FREE_TEXT = {"name", "parentDir", "relativePath"}
ANY_NUMBER = {"evictEnabledPriorityThreshold"}  # a priority may be anything


def leaves(model: type[msgspec.Struct], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path and type of each value below a model; 0 is the first element of a list."""
    for field in msgspec.structs.fields(model):
        tp, rule = unwrap_annotated(field.type)
        here = (*path, field.encode_name)
        if get_origin(tp) is tuple:
            tp, here = get_args(tp)[0], (*here, 0)
        if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
            if tp is not Extensions:
                yield from leaves(tp, here)
        else:
            yield here, rule if rule.quantity or rule.int_or_string else tp


def spec(path: tuple[Any, ...], value: Any) -> NodeSLOSpec:
    for part in reversed(path):
        value = [value] if part == 0 else {part: value}
    return convert(value, NodeSLOSpec)


def shown(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)).replace(".0", "[0]")


def fields(check: Any) -> list[Any]:
    return [pytest.param(path, id=shown(path)) for path, tp in leaves(NodeSLOSpec) if check(path[-1], tp)]


NUMBERS = fields(lambda name, tp: tp is int and name not in ANY_NUMBER)
WORDS = fields(lambda name, tp: tp is str and name not in FREE_TEXT)
AMOUNTS = fields(lambda name, tp: tp not in (int, str, bool) and get_origin(tp) is None)


@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_far_below_is_refused(path: tuple[Any, ...]) -> None:
    assert [error.field for error in strategy_errors(spec(path, -(10**6)))] == [shown(path)]


@pytest.mark.parametrize("path", WORDS)
def test_an_unknown_word_is_refused_and_known_ones_are_not(path: tuple[Any, ...]) -> None:
    (error,) = strategy_errors(spec(path, "nonsense"))
    assert (error.field, error.value) == (shown(path), "nonsense")
    assert all(word in error.rule for word in FIELD_CHOICES[path[-1]])
    assert [strategy_errors(spec(path, word)) for word in ("", *FIELD_CHOICES[path[-1]])] == [[]] * (
        len(FIELD_CHOICES[path[-1]]) + 1
    )


@pytest.mark.parametrize("path", AMOUNTS)
def test_an_amount_that_is_negative_or_none_is_refused(path: tuple[Any, ...]) -> None:
    assert [error.field for error in strategy_errors(spec(path, "-1M"))] == [shown(path)]
    assert [error.field for error in strategy_errors(spec(path, "fast"))] == [shown(path)]
    assert strategy_errors(spec(path, "1M")) == []


@pytest.mark.parametrize(
    "field",
    [
        "cpuSuppressThresholdPercent",
        "memoryEvictThresholdPercent",
        "memoryEvictLowerPercent",
        "cpuEvictThresholdPercent",
        "cpuEvictLowerPercent",
        "cpuEvictBEUsageThresholdPercent",
        "memoryAllocatableEvictThresholdPercent",
        "cpuAllocatableEvictThresholdPercent",
        "cpuEvictTimeWindowSeconds",
    ],
)
def test_a_level_of_zero_is_not_off(field: str) -> None:
    (error,) = strategy_errors(spec(("resourceUsedThresholdWithBE", field), 0))
    assert error.field.endswith(field)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("cpuBurstStrategy", "cfsQuotaBurstPeriodSeconds"), -1, id="without-end"),
        pytest.param(("resourceUsedThresholdWithBE", "cpuSuppressMinPercent"), 0, id="no-least-share"),
        pytest.param(("resourceQOSStrategy", "beClass", "cpuQOS", "groupIdentity"), -1, id="idle"),
        pytest.param(("resourceUsedThresholdWithBE", "evictEnabledPriorityThreshold"), -5, id="any-priority"),
    ],
)
def test_edges_that_mean_something(path: tuple[Any, ...], value: int) -> None:
    assert strategy_errors(spec(path, value)) == []


def test_the_defaults_are_usable() -> None:
    for strategy in (defaults.THRESHOLD, defaults.CPU_BURST, defaults.SYSTEM_STRATEGY, defaults.qos_strategy()):
        assert strategy_errors(strategy) == []
