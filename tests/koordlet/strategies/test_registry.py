"""The table of strategies names known files, and one owner for each."""

from __future__ import annotations

from koord.host.cgroup import knob
from koord.host.cgroup.knob import KNOBS
from koord.koordlet.strategies.registry import STRATEGIES


def test_every_file_is_in_the_registry() -> None:
    assert {one for strategy in STRATEGIES for one in strategy.files} - set(KNOBS) == set()


def test_a_file_has_one_owner_at_each_place() -> None:
    """The quota has two: one for the BE root, one for pods that may burst, which never are below it."""
    owners: dict[str, list[str]] = {}
    for strategy in STRATEGIES:
        for one in strategy.files:
            owners.setdefault(one, []).append(strategy.name)
    shared = {one: names for one, names in owners.items() if len(names) > 1}
    assert shared == {knob.CPU_QUOTA: ["CPUSuppresss", "CPUBurst"]}


def test_names_are_upstreams() -> None:
    assert [strategy.name for strategy in STRATEGIES] == [
        "CPUSuppresss",
        "CPUBurst",
        "CPUEvict",
        "memoryEvict",
        "ResctrlReconcile",
        "BlkioReconcile",
        "CgroupReconcile",
        "SystemConfigReconcile",
        "GroupIdentity",
    ]
