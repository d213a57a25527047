"""What a selector reads of a device is told from its text, or not at all."""

from __future__ import annotations

import pytest

from koord.cel.device_selector import driver_required, names_read
from koord.cel.syntax import CelError, Node, parse


def tree_of(text: str) -> Node:
    found = parse(text)
    assert not isinstance(found, CelError), found
    return found


MODEL, MEMORY = ("attributes", "a.example/model"), ("capacity", "a.example/memory")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('device.driver == "a.example"', set()),
        ("device.allowMultipleAllocations", set()),
        ('device.attributes["a.example"].model == "x"', {MODEL}),
        ('device.attributes["a.example"]["model"] == "x"', {MODEL}),
        ('has(device.attributes["a.example"].model)', {MODEL}),
        ('"model" in device.attributes["a.example"]', {MODEL}),
        ('device.attributes["a.example"].?model.orValue("x") == "x"', {MODEL}),
        ('device.attributes["a.example"][?"model"].orValue("x") == "x"', {MODEL}),
        ('["x"].exists(m, m == device.attributes["a.example"].model)', {MODEL}),
        (
            'device.attributes["a.example"].model == "x" || '
            'device.capacity["a.example"].memory.compareTo(quantity("1Gi")) >= 0',
            {MODEL, MEMORY},
        ),
        ('device.attributes["a.example"].size() == 0', None),
        ('"a.example" in device.attributes', None),
        ('cel.bind(d, device, d.driver == "a.example")', None),
        ('[1].all(device, device.attributes["a.example"].model == "x")', None),
    ],
)
def test_the_names_that_a_selector_reads(text: str, names: set[tuple[str, str]] | None) -> None:
    assert names_read(tree_of(text)) == names


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ('device.driver == "a.example"', "a.example"),
        ('"a.example" == device.driver && device.attributes["a.example"].model == "x"', "a.example"),
        ('has(device.attributes["a"].b) && (device.driver == "a.example" && true)', "a.example"),
        ('device.driver == "a.example" || true', None),
        ('!(device.driver == "a.example")', None),
        ('device.driver != "a.example"', None),
        ('device.driver == device.attributes["a"].b', None),
        ('device.driver.startsWith("a.example")', None),
    ],
)
def test_the_driver_without_which_a_selector_is_false(text: str, driver: str | None) -> None:
    assert driver_required(tree_of(text)) == driver
