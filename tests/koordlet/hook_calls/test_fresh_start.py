"""Whatever pods and rules went through, a node ends as an agent leaves it that starts with what they are at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.koordlet.hooks.registry import HOOKS
from tests.koordlet.hook_calls.hooks_node import APPLICATION, GATES, HooksNode, NodeWish, PodWish

_PODS = st.builds(
    PodWish,
    batch_milli=st.sampled_from([None, 500, 1500]),
    qos=st.sampled_from(["LS", "LSR", ""]),
    cpuset=st.sampled_from(["", "1", "2-3"]),
    score=st.sampled_from([None, 100, 500]),
    cache_percent=st.sampled_from([None, 50, 100]),
    egress=st.sampled_from(["", "5M"]),
    group=st.sampled_from(["", "a"]),
    card=st.booleans(),
)
_NODES = st.builds(
    NodeWish,
    ratio=st.sampled_from([None, 1.2, 2.0]),
    cpu_policy=st.sampled_from(["groupIdentity", "coreSched"]),
    identity=st.booleans(),
    idle=st.booleans(),
    network_policy=st.sampled_from(["", "tc", "terway-qos"]),
    application=st.booleans(),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), _PODS),
        st.tuples(st.just("node"), _NODES),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 15)),
    ),
    max_size=5,
)
EVERYTHING = (
    PodWish(batch_milli=500, qos="LSR", cpuset="1", score=500, cache_percent=50, egress="5M", group="a", card=True),
    NodeWish(ratio=1.2, cpu_policy="coreSched", identity=True, idle=True, network_policy="tc", application=True),
)
NOTHING = (PodWish(), NodeWish())


def live(node: HooksNode, steps: Sequence[tuple[str, Any]]) -> None:
    for what, value in steps:
        if what == "pods":
            node.pods = value
        elif what == "node":
            node.node = value
        elif what == "restart":
            node.restart()
        node.tick(value if what == "wait" else 1.0)
    node.settle()


@given(version=st.sampled_from([1, 2]), driver=st.sampled_from(["cgroupfs", "systemd"]), steps=_STEPS)
@example(version=1, driver="systemd", steps=[("pods", EVERYTHING[0]), ("node", EVERYTHING[1])])
@example(version=2, driver="systemd", steps=[("pods", EVERYTHING[0]), ("node", EVERYTHING[1]), ("restart", None)])
@example(
    version=1,
    driver="cgroupfs",
    steps=[("pods", EVERYTHING[0]), ("node", EVERYTHING[1]), ("pods", NOTHING[0]), ("node", NOTHING[1])],
)
@settings(max_examples=20, deadline=None)
def test_any_story_ends_where_a_fresh_start_would(version: int, driver: str, steps: Sequence[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as lived, tempfile.TemporaryDirectory() as fresh:
        node = HooksNode(Path(lived), version, driver)
        live(node, steps)
        other = HooksNode(Path(fresh), version, driver)
        other.pods, other.node = node.pods, node.node
        live(other, [])
        assert node.outcome() == other.outcome()


def test_the_story_has_a_part_for_every_hook() -> None:
    """Each hook changes something of the outcome, on the kernels that have what it writes."""
    changed: set[str] = set()
    for version, driver in ((1, "cgroupfs"), (2, "systemd")):
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as without:
            full, bare = HooksNode(Path(root), version, driver), HooksNode(Path(without), version, driver)
            for node in (full, bare):
                node.settle()
            for policies in ({}, {"cpu_policy": "groupIdentity"}, {"network_policy": "terway-qos"}):
                full.pods = EVERYTHING[0]
                full.node = msgspec.structs.replace(EVERYTHING[1], **policies)
                full.settle()
                changed |= _differences(full.outcome(), bare.outcome())
                full.pods = msgspec.structs.replace(EVERYTHING[0], qos="LS", cpuset="")
                full.settle()
                changed |= _differences(full.outcome(), bare.outcome())
    assert changed == {
        *("batch", "normalized", "cpuset", "application", "idle", "identity", "classid"),
        *("scores", "resctrl", "cookies", "switch", "traffic", "terway", "card"),
    }
    assert len(HOOKS) == len(GATES) == 11


def _differences(found: Any, bare: Any) -> set[str]:
    parts = {
        name for name in ("scores", "resctrl", "cookies", "switch", "traffic", "terway") if found[name] != bare[name]
    }
    paths = {path for path, text in found["cgroups"].items() if bare["cgroups"].get(path) != text}
    words = {
        "batch": ("podbe", ("memory.limit_in_bytes", "memory.max")),
        "normalized": ("podls", ("cpu.cfs_quota_us", "cpu.max")),
        "cpuset": ("podls", ("cpuset.cpus",)),
        "application": (APPLICATION, ("cpuset.cpus",)),
        "idle": ("podbe", ("cpu.idle",)),
        "identity": ("podls", ("cpu.bvt_warp_ns",)),
        "classid": ("podbe", ("net_cls.classid",)),
    }
    for word, (group, files) in words.items():
        if any(group in path and path.endswith(files) for path in paths):
            parts.add(word)
    env = {} if found["answers"]["ls"] is None else found["answers"]["ls"].env
    return parts | ({"card"} if "NVIDIA_VISIBLE_DEVICES" in env else set())
