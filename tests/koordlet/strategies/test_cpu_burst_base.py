"""A burst belongs to the limit from which it started: another ratio, another limit and a new process end it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.koordlet.inputs.node_inputs import NodeProperties
from koord.koordlet.strategies.cpu_burst import BurstState, held_quota_us
from tests.koordlet.cgroup_writer.executor_fixture import FEW
from tests.koordlet.strategies.runner_fixture import (
    GATES,
    LS_BOX,
    LS_POD,
    NODE,
    RunnerFixture,
    be_pod,
    burst_by,
    ls_pod,
)

NORMALIZED = GATES | {"CPUNormalization"}
IDLE_MILLI, BUSY_MILLI = 400, 3_900  # of the node's four CPUs; half of them is the threshold
MOVING = ("auto", "cfsQuotaBurstOnly")


class BurstNode:
    """A service with a limit of one CPU on a node whose CPU normalization ratio changes."""

    def __init__(self, root: Path, version: int = 1) -> None:
        self.runner = RunnerFixture(root, version, gates=NORMALIZED, only=FEW)
        self.ratio: float | None = None
        self.policy = "auto"
        self.limit_milli = 1_000

    def tick(self, times: int = 1, *, throttled: float = 0.0, node_milli: int = IDLE_MILLI) -> tuple[int, int]:
        """Run some seconds and return the quota of the pod and of its container."""
        for _ in range(times):
            self.runner.measure(node_milli, {"ls": min(node_milli, 400)}, throttled=throttled)
            pods = (be_pod(), ls_pod(self.limit_milli))
            self.runner.tick(burst_by(self.policy), node=node_with(self.ratio), pods=pods)
        return self.runner.quota(LS_POD), self.runner.quota(LS_BOX)

    def restart(self) -> None:
        self.runner.start(NORMALIZED)

    def write(self, quota_us: int) -> None:
        """Write both quotas as somebody else on the machine would."""
        tree, kernel = self.runner.world.tree, self.runner.world.kernel
        version = self.runner.world.machine.version
        name, text = ("cpu.cfs_quota_us", f"{quota_us}") if version == 1 else ("cpu.max", f"{quota_us} 100000")
        growing = quota_us > self.runner.quota(LS_BOX)
        for group in (LS_POD, LS_BOX) if growing else (LS_BOX, LS_POD):
            assert kernel.write(f"{tree.group_path('cpu', group)}/{name}", text) is None


def node_with(ratio: float | None) -> NodeProperties:
    if ratio is None:
        return NODE
    return msgspec.structs.replace(NODE, normalization_ratio=ratio, has_normalization_ratio=True)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> BurstNode:
    return BurstNode(tmp_path, request.param)


@pytest.mark.parametrize("policy", MOVING)
@pytest.mark.parametrize(
    ("before", "after", "quota"),
    [
        pytest.param(None, 1.2, 83_334, id="comes"),
        pytest.param(1.2, 2.5, 40_000, id="rises"),
        pytest.param(2.5, 1.2, 83_334, id="falls"),
        pytest.param(2.5, None, 100_000, id="goes"),
    ],
)
class TestAnotherRatio:
    def test_an_idle_service_has_the_new_quota(
        self, node: BurstNode, policy: str, before: float | None, after: float | None, quota: int
    ) -> None:
        node.policy, node.ratio = policy, before
        node.tick(3)
        node.ratio = after
        assert node.tick() == (quota, quota)
        assert node.tick(5) == (quota, quota), "and keeps it"

    def test_a_burst_in_progress_ends(
        self, node: BurstNode, policy: str, before: float | None, after: float | None, quota: int
    ) -> None:
        node.policy, node.ratio = policy, before
        node.tick()
        assert node.tick(2, throttled=0.5)[1] > node.limit_milli * 100 / (before or 1), "it bursts"
        node.ratio = after
        assert node.tick() == (quota, quota)

    def test_a_throttled_service_bursts_from_the_new_quota(
        self, node: BurstNode, policy: str, before: float | None, after: float | None, quota: int
    ) -> None:
        node.policy, node.ratio = policy, before
        node.tick()
        node.tick(4, throttled=0.5)
        node.ratio = after
        grown = int(quota * 1.2)
        assert node.tick(throttled=0.5) == (grown, grown)
        assert node.tick(12, throttled=0.5) == (quota * 3, quota * 3)

    def test_an_overloaded_node_gives_no_more_than_the_new_quota(
        self, node: BurstNode, policy: str, before: float | None, after: float | None, quota: int
    ) -> None:
        node.policy, node.ratio = policy, before
        node.tick()
        node.tick(2, throttled=0.5)
        node.ratio = after
        assert node.tick(12, throttled=0.5, node_milli=BUSY_MILLI) == (quota, quota)

    def test_a_new_process_starts_from_the_new_quota(
        self, node: BurstNode, policy: str, before: float | None, after: float | None, quota: int
    ) -> None:
        node.policy, node.ratio = policy, before
        node.tick()
        node.tick(2, throttled=0.5)
        node.ratio = after
        node.restart()
        assert node.tick() == (quota, quota)


@pytest.mark.parametrize("limit_milli", [500, 2_000])
def test_a_resized_limit_ends_a_burst(node: BurstNode, limit_milli: int) -> None:
    node.ratio = 1.25
    node.tick()
    node.tick(3, throttled=0.5)
    node.limit_milli = limit_milli
    assert node.tick() == (limit_milli * 80, limit_milli * 80)


def test_a_new_process_takes_a_quota_above_the_limit_for_no_burst(node: BurstNode) -> None:
    assert node.tick(4, throttled=0.5)[1] > 100_000
    node.restart()
    assert node.tick() == (100_000, 100_000)
    assert node.tick(throttled=0.5) == (120_000, 120_000)


@pytest.mark.parametrize(
    ("written", "quota"),
    [
        pytest.param(290_000, 144_000, id="more-is-not-a-burst"),
        pytest.param(120_000, 120_000, id="less-is-what-is-left-of-it"),
        pytest.param(60_000, 100_000, id="below-the-limit-ends-it"),
    ],
)
def test_what_somebody_else_writes_makes_no_burst(node: BurstNode, written: int, quota: int) -> None:
    node.policy = "cfsQuotaBurstOnly"  # without a buffer, below which no quota can be written
    node.tick()
    assert node.tick(2, throttled=0.5) == (144_000, 144_000)
    node.write(written)
    node.runner.world.clock.advance(120)
    assert node.tick() == (quota, quota)


def test_a_burst_that_was_only_decided_is_none(node: BurstNode) -> None:
    """In safe mode nothing is written, so that the first write after it starts from the limit."""
    node.tick()
    for _ in range(5):
        node.runner.measure(IDLE_MILLI, {"ls": 400}, throttled=0.5)
        node.runner.tick(burst_by("auto"), safe_mode=True)
    assert node.tick(throttled=0.5) == (120_000, 120_000)


@pytest.mark.parametrize(
    ("before", "now", "held"),
    [
        pytest.param(None, 150_000, 100_000, id="new-process"),
        pytest.param((100_000, 144_000), 144_000, 144_000, id="own-burst"),
        pytest.param((100_000, 144_000), None, 144_000, id="unreadable"),
        pytest.param((100_000, 144_000), -1, 100_000, id="freed"),
        pytest.param((83_334, 120_000), 120_000, 100_000, id="other-base"),
    ],
)
def test_where_the_next_step_starts(before: tuple[int, int] | None, now: int | None, held: int) -> None:
    state = None if before is None else BurstState(base_us=before[0], quota_us=before[1])
    assert held_quota_us(state, 100_000, now) == held


_RATIOS = st.sampled_from([None, 1.0, 1.2, 1.25, 2.5, 8.0])
_SECONDS = st.lists(
    st.tuples(_RATIOS, st.sampled_from([0.0, 0.5]), st.sampled_from([IDLE_MILLI, BUSY_MILLI]), st.booleans()),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(version=st.sampled_from([1, 2]), policy=st.sampled_from(MOVING), story=_SECONDS, last=_RATIOS)
@example(version=1, policy="auto", story=[(2.5, 0.0, IDLE_MILLI, False)], last=None)
def test_any_sequence_of_ratios_ends_where_a_fresh_start_would(
    version: int, policy: str, story: Sequence[tuple[float | None, float, int, bool]], last: float | None
) -> None:
    """A service that is idle since the last change of the ratio has the quota that it would have had from the start."""
    with tempfile.TemporaryDirectory() as lived, tempfile.TemporaryDirectory() as fresh:
        node, other = BurstNode(Path(lived), version), BurstNode(Path(fresh), version)
        node.policy = other.policy = policy
        for ratio, throttled, node_milli, restarts in story:
            node.ratio = ratio
            node.tick(throttled=throttled, node_milli=node_milli)
            if restarts:
                node.restart()
        node.ratio = 1.6  # so that the last one is a change
        node.tick()
        node.ratio = other.ratio = last
        assert node.tick(2) == other.tick(2)
        assert node.runner.values() == other.runner.values()
