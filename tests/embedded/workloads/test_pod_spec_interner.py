"""Interning pod specs changes nothing that a reader sees, and keeps one of each."""

from __future__ import annotations

from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.embedded.workloads.controller_context import MAX_INTERNED_SPECS, PodSpecInterner


def pod(name: str, image: str, node: str = "") -> Pod:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": image, "env": [{"name": "A", "value": "1"}]}]}
    return convert({"metadata": {"name": name}, "spec": spec}, Pod)


def test_pods_read_as_they_were() -> None:
    pool = PodSpecInterner()
    for seen in (pod("a", "i:1"), pod("b", "i:1", "n1"), pod("c", "i:2", "n2")):
        assert pool.intern(seen) == seen


def test_equal_specs_are_one_in_memory() -> None:
    pool = PodSpecInterner()
    first, second = pool.intern(pod("a", "i:1", "n1")), pool.intern(pod("b", "i:1", "n2"))
    assert first.spec.containers is second.spec.containers
    assert pool.intern(pod("c", "i:2")).spec.containers is not first.spec.containers


def test_the_table_does_not_grow_with_pods_that_all_differ() -> None:
    pool = PodSpecInterner()
    for i in range(MAX_INTERNED_SPECS + 10):
        pool.intern(pod("a", f"i:{i}"))
    assert len(pool._known) <= MAX_INTERNED_SPECS
