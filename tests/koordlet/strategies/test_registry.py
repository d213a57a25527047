"""The table of strategies names known files, and one owner for each."""

from __future__ import annotations

from koord.host.cgroup import knob
from koord.host.cgroup.knob import KNOBS
from koord.koordlet.strategies.registry import STRATEGIES


def test_every_file_is_in_the_registry() -> None:
    assert {one for strategy in STRATEGIES for one in strategy.files} - set(KNOBS) == set()


def test_a_file_has_one_owner_at_each_place() -> None:
    """Hooks share quotas and CPUs with strategies: `file_ownership` decides for each pod, and the BE root is no pod."""
    owners: dict[str, list[str]] = {}
    for strategy in STRATEGIES:
        for one in strategy.files:
            owners.setdefault(one, []).append(strategy.name)
    shared = {one: names for one, names in owners.items() if len(names) > 1}
    assert shared == {
        knob.CPU_QUOTA: ["RuntimeHooks", "CPUSuppresss", "CPUBurst"],
        knob.CPUSET: ["RuntimeHooks", "CPUSuppresss"],
    }


def test_names_are_upstreams() -> None:
    ours = {"TimeSlice"}  # upstream has nothing like it
    assert [strategy.name for strategy in STRATEGIES if strategy.name not in ours] == [
        "RuntimeHooks",
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
