"""Selectors of devices see a device as Kubernetes shows it to them."""

from __future__ import annotations

import pytest

from koord.cel.device_selector import DeviceSelector, cel_device, compile_selector
from koord.cel.kubernetes_functions import parse_version
from koord.cel.syntax import CelError
from koord.values.quantity import Quantity

VERSION = parse_version("550.54.14")
assert VERSION is not None
DEVICE = cel_device(
    "gpu.example.com",
    {"model": "H100", "numaNode": 1, "healthy": True, "driverVersion": VERSION, "other.example.com/rank": 7},
    {"memory": Quantity.parse("80Gi")},
)


def matches(text: str) -> bool | CelError:
    selector = compile_selector(text)
    assert isinstance(selector, DeviceSelector), selector
    return selector.matches(DEVICE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.attributes["gpu.example.com"].model == "H100"', True),
        ('device.attributes["other.example.com"].rank == 7', True),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0', True),
        ('device.attributes["gpu.example.com"].driverVersion.isGreaterThan(semver("555.0.0"))', False),
        ('"rank" in device.attributes["unknown.example.com"]', False),
        ('has(device.attributes["gpu.example.com"].healthy)', True),
        ('cel.bind(mine, device.attributes["gpu.example.com"], mine.numaNode == 1 && mine.model == "H100")', True),
    ],
)
def test_devices_are_chosen(text: str, expected: bool) -> None:
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('device.attributes["unknown.example.com"].rank == 7', "no such key: rank"),
        ('device.attributes["gpu.example.com"].model', "must evaluate to bool"),
        ("[1, 2, 3].all(x, lists.range(50000).all(y, y >= 0))", "actual cost limit exceeded"),
    ],
)
def test_what_cannot_be_told_is_an_error(text: str, why: str) -> None:
    found = matches(text)
    assert isinstance(found, CelError)
    assert why in found.message


@pytest.mark.parametrize("text", ["", "device.driver ==", "pod.name == 'x'", "device.driver.nothing()", "1", "[true]"])
def test_what_does_not_compile_is_an_error(text: str) -> None:
    assert isinstance(compile_selector(text), CelError)
