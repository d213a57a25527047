"""Interning pod specs changes nothing that a reader sees, and keeps one of each."""

from __future__ import annotations

from koord.api.model import convert
from koord.api.pod import Pod
from koord.embedded.workloads.spec_pool import MOST_SPECS, SpecPool


def pod(name: str, image: str, node: str = "") -> Pod:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": image, "env": [{"name": "A", "value": "1"}]}]}
    return convert({"metadata": {"name": name}, "spec": spec}, Pod)


def test_pods_read_as_they_were() -> None:
    pool = SpecPool()
    for seen in (pod("a", "i:1"), pod("b", "i:1", "n1"), pod("c", "i:2", "n2")):
        assert pool.shared(seen) == seen


def test_equal_specs_are_one_in_memory() -> None:
    pool = SpecPool()
    first, second = pool.shared(pod("a", "i:1", "n1")), pool.shared(pod("b", "i:1", "n2"))
    assert first.spec.containers is second.spec.containers
    assert pool.shared(pod("c", "i:2")).spec.containers is not first.spec.containers


def test_the_table_does_not_grow_with_pods_that_all_differ() -> None:
    pool = SpecPool()
    for i in range(MOST_SPECS + 10):
        pool.shared(pod("a", f"i:{i}"))
    assert len(pool._known) <= MOST_SPECS
