"""QoS and priority classes of pods are resolved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import PRIORITY_BANDS, PRIORITY_CLASSES, QOS_CLASSES
from koord.policy.qos import (
    illegal_combination,
    is_legal,
    priority_class_of_value,
    priority_class_raw,
    priority_class_with_default,
    priority_value_with_default,
    qos_raw,
    qos_with_default,
)

QOS = "koordinator.sh/qosClass"
CLASS = "koordinator.sh/priority-class"


@pytest.mark.parametrize(
    ("label", "raw"),
    [*((q, q) for q in QOS_CLASSES), ("", ""), ("be", ""), ("Guaranteed", "")],
    ids=[*QOS_CLASSES, "empty", "wrong-case", "native-name"],
)
def test_qos_label(label: str, raw: str) -> None:
    assert qos_raw({QOS: label}) == raw


@pytest.mark.parametrize(
    ("labels", "native", "qos"),
    [
        pytest.param({}, "Guaranteed", "LSR", id="guaranteed"),
        pytest.param({}, "Burstable", "LS", id="burstable"),
        pytest.param({}, "BestEffort", "BE", id="best-effort"),
        pytest.param({}, "", "", id="unknown"),
        pytest.param({QOS: "BE"}, "Guaranteed", "BE", id="label-wins"),
        pytest.param({QOS: "nonsense"}, "Burstable", "LS", id="unknown-label-falls-through"),
    ],
)
def test_qos_with_default(labels: dict[str, str], native: str, qos: str) -> None:
    assert qos_with_default(labels, native) == qos


@pytest.mark.parametrize(
    ("value", "name"),
    [
        pytest.param(None, "", id="none"),
        pytest.param(0, "", id="zero"),
        pytest.param(2999, "", id="below-free"),
        pytest.param(3000, "koord-free", id="free-low"),
        pytest.param(3999, "koord-free", id="free-high"),
        pytest.param(4000, "", id="gap-free-batch"),
        pytest.param(5000, "koord-batch", id="batch-low"),
        pytest.param(5999, "koord-batch", id="batch-high"),
        pytest.param(6500, "", id="gap-batch-mid"),
        pytest.param(7000, "koord-mid", id="mid-low"),
        pytest.param(7999, "koord-mid", id="mid-high"),
        pytest.param(8000, "", id="gap-mid-prod"),
        pytest.param(9000, "koord-prod", id="prod-low"),
        pytest.param(9999, "koord-prod", id="prod-high"),
        pytest.param(10000, "", id="above-prod"),
        pytest.param(2_000_001_000, "", id="system-critical"),
        pytest.param(-1, "", id="negative"),
    ],
)
def test_bands(value: int | None, name: str) -> None:
    assert priority_class_of_value(value) == name


@pytest.mark.parametrize(
    ("labels", "value", "name"),
    [
        pytest.param({CLASS: "koord-mid"}, 9500, "koord-mid", id="label-beats-value"),
        pytest.param({CLASS: "gold"}, 9500, "", id="unknown-label-does-not-fall-back"),
        pytest.param({CLASS: ""}, 9500, "", id="empty-label-does-not-fall-back"),
        pytest.param({}, 9500, "koord-prod", id="value"),
    ],
)
def test_raw_priority_class(labels: dict[str, str], value: int | None, name: str) -> None:
    assert priority_class_raw(labels, value) == name


@pytest.mark.parametrize(
    ("labels", "value", "native", "name", "number"),
    [
        pytest.param({}, None, "Guaranteed", "koord-prod", 9500, id="guaranteed"),
        pytest.param({}, None, "Burstable", "koord-prod", 9500, id="burstable"),
        pytest.param({}, None, "BestEffort", "koord-batch", 5500, id="best-effort"),
        pytest.param({QOS: "SYSTEM"}, None, "BestEffort", "koord-prod", 9500, id="system"),
        pytest.param({QOS: "LSE"}, None, "", "koord-prod", 9500, id="lse"),
        pytest.param({}, 0, "", "", 0, id="nothing-known"),
        pytest.param({}, 7100, "BestEffort", "koord-mid", 7100, id="value-stays"),
        pytest.param({}, 0, "BestEffort", "koord-batch", 5500, id="zero-counts-as-absent"),
        pytest.param({}, 42, "Burstable", "koord-prod", 42, id="value-outside-bands-stays"),
        pytest.param({CLASS: "koord-free"}, None, "Burstable", "koord-free", 3500, id="label"),
    ],
)
def test_priority_with_default(labels: dict[str, str], value: int | None, native: str, name: str, number: int) -> None:
    assert priority_class_with_default(labels, value, native) == name
    assert priority_value_with_default(labels, value, native) == number


LEGAL = {
    "LSE": "prod mid batch free none",
    "LSR": "prod",
    "LS": "prod mid batch free none",
    "BE": "mid batch free",
    "SYSTEM": "prod mid batch free none",
    "": "prod mid batch free none",
}


@pytest.mark.parametrize("qos", list(LEGAL), ids=lambda q: q or "no-qos")
@pytest.mark.parametrize("priority", ["prod", "mid", "batch", "free", "none"])
def test_legality(qos: str, priority: str) -> None:
    name = "" if priority == "none" else f"koord-{priority}"
    assert is_legal(qos, name) is (priority in LEGAL[qos].split())


def test_the_refusal_names_both_classes() -> None:
    assert (
        illegal_combination("BE", "koord-prod")
        == "koordinator.sh/qosClass=BE and priorityClass=koord-prod cannot be used in combination"
    )


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_value_is_in_at_most_one_band(value: int) -> None:
    held = [name for name, band in PRIORITY_BANDS.items() if band.low <= value <= band.high]
    assert held == [name for name in [priority_class_of_value(value)] if name]


@pytest.mark.parametrize("name", PRIORITY_CLASSES)
def test_default_and_shipped_values_lie_in_their_band(name: str) -> None:
    assert priority_class_of_value(PRIORITY_BANDS[name].default) == name
    assert priority_class_of_value(PRIORITY_BANDS[name].shipped) == name
