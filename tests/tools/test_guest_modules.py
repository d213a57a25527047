"""The modules of a guest's kernel are loaded in the order that they need themselves."""

from __future__ import annotations

import pytest

from tools.guest import load_order


def module(*needs: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0retpoline=Y\0"


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param({"virtio": module(), "virtio_ring": module("virtio")}, id="older"),
        pytest.param({"virtio": module("virtio_ring"), "virtio_ring": module()}, id="newer"),
        pytest.param({"virtio_blk": module("virtio", "virtio_ring"), "virtio": module("virtio_ring")}, id="built-in"),
    ],
)
def test_a_module_comes_after_those_that_it_needs(modules: dict[str, bytes]) -> None:
    order = load_order(modules)
    assert sorted(order) == sorted(modules)
    for name, content in modules.items():
        needs = content.partition(b"depends=")[2].partition(b"\0")[0].decode().split(",")
        assert all(order.index(one) < order.index(name) for one in needs if one in modules)


def test_a_module_that_says_nothing_needs_nothing() -> None:
    assert load_order({"overlay": b"\x7fELF"}) == ["overlay"]
