"""Whatever happens on a node, and wherever the agent is killed: the rules between groups hold after every single write,
files come back to what they were, and more load of services never buys best-effort work more CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.slo import NodeSLOSpec
from koord.host.cgroup import knob
from koord.values.cpuset import CPUSet
from tests.koordlet.cgroup_writer.executor_fixture import FEW
from tests.koordlet.strategies.runner_fixture import (
    BE_BOX,
    BE_POD,
    GROUPS,
    LS_BOX,
    LS_POD,
    TOP,
    RunnerFixture,
    burst_by,
    suppress_by,
)

CHAINS = ((TOP, BE_POD, BE_BOX), ("kubepods/burstable", LS_POD, LS_BOX))


class Killed(BaseException):
    """Nothing catches this, as nothing catches SIGKILL."""


def order(policy: str, burst: str, enable: bool, percent: int) -> NodeSLOSpec:
    return msgspec.structs.replace(
        suppress_by(policy, percent, enable=enable), cpu_burst_strategy=burst_by(burst).cpu_burst_strategy
    )


ORDERS = st.builds(
    order,
    st.sampled_from(["cpuset", "cfsQuota"]),
    st.sampled_from(["none", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly"]),
    st.booleans(),
    st.sampled_from([30, 65, 90]),
)
MOMENTS = st.tuples(
    ORDERS,
    st.integers(0, 4_000),  # of services
    st.integers(0, 1_000),  # of best-effort work
    st.sampled_from([0.0, 0.5]),  # throttled
)
STORIES = st.lists(MOMENTS, min_size=1, max_size=6)


@contextmanager
def staged(version: int) -> Iterator[RunnerFixture]:
    with tempfile.TemporaryDirectory() as folder:
        yield RunnerFixture(Path(folder), version, only=FEW)


def play(stage: RunnerFixture, moment: tuple[NodeSLOSpec, int, int, float]) -> None:
    spec, services, batch, throttled = moment
    stage.measure(services + batch + 100, {"ls": services, "be": batch}, throttled=throttled)
    stage.tick(spec)


def fits(stage: RunnerFixture) -> None:
    """A parent allows at least what each of its children has."""
    for chain in CHAINS:
        above_quota, above_cpus = float("inf"), CPUSet.parse("0-7")
        for group in chain:
            quota = stage.quota(group)
            own = above_quota if quota < 0 else quota
            assert own <= above_quota, (group, own, above_quota)
            cpus = CPUSet.parse(stage.cpus(group)) or above_cpus
            assert cpus <= above_cpus, (group, cpus, above_cpus)
            burst = int(stage.world.value(knob.CPU_BURST, group))
            assert quota < 0 or burst <= quota, (group, burst, quota)
            above_quota, above_cpus = own, cpus


@settings(max_examples=40, deadline=None)
@given(story=STORIES, version=st.sampled_from([1, 2]))
def test_no_single_write_breaks_a_rule_and_the_way_back_is_whole(
    story: list[tuple[NodeSLOSpec, int, int, float]], version: int
) -> None:
    with staged(version) as stage:
        before = stage.values()
        stage.world.kernel.after_write = lambda: fits(stage)
        for moment in story:
            play(stage, moment)
        stage.start(frozenset())
        stage.measure(100)
        stage.tick(NodeSLOSpec())
        assert stage.values() == before


@settings(max_examples=40, deadline=None)
@given(story=STORIES, kill=st.integers(0, 30), after=st.booleans(), version=st.sampled_from([1, 2]))
def test_killed_anywhere_the_next_process_ends_where_the_first_would_have(
    story: list[tuple[NodeSLOSpec, int, int, float]], kill: int, after: bool, version: int
) -> None:
    last = (order("cfsQuota", "none", True, 65), 1_000, 0, 0.0)
    with staged(version) as stage:
        before = stage.values()
        arm(stage, kill, after=after)
        with suppress(Killed):
            for moment in story:
                play(stage, moment)
        stage.world.kernel.trouble = stage.world.kernel.after_write = None
        stage.world.kernel.after_write = lambda: fits(stage)
        stage.start()
        for _ in range(12):  # growth is limited to a tenth of the node a second
            play(stage, last)
        # 65% of 4000m, less 1000m of services and 100m of the system.
        assert abs(stage.quota(TOP) - 150_000) < 4_000
        assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (100_000, 100_000)
        stage.start(frozenset())
        stage.measure(100)
        stage.tick(NodeSLOSpec())
        assert stage.values() == before


def arm(stage: RunnerFixture, kill: int, *, after: bool) -> None:
    left = kill

    def count() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise Killed

    def refuse(path: str, text: str) -> int | None:
        if not after:
            count()
        return None

    stage.world.kernel.trouble = refuse
    stage.world.kernel.after_write = count if after else None


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(["cpuset", "cfsQuota"]),
    percent=st.integers(10, 100),
    services=st.integers(0, 4_000),
    more=st.integers(0, 2_000),
    batch=st.integers(0, 1_000),
)
def test_more_load_of_services_never_buys_be_more_cpu(
    policy: str, percent: int, services: int, more: int, batch: int
) -> None:
    found = []
    for load in (services, services + more):
        with staged(1) as stage:
            play(stage, (suppress_by(policy, percent), load, batch, 0.0))
            found.append(stage.quota(TOP) if policy == "cfsQuota" else len(CPUSet.parse(stage.cpus(TOP))))
    quiet, busy = found
    assert 0 < busy <= quiet


@settings(max_examples=12, deadline=None)
@given(story=STORIES)
def test_the_same_story_ends_the_same(story: list[tuple[NodeSLOSpec, int, int, float]]) -> None:
    ends = []
    for _ in range(2):
        with staged(2) as stage:
            for moment in story:
                play(stage, moment)
            ends.append({(knob, group): value for (knob, group), value in stage.values().items() if group in GROUPS})
    assert ends[0] == ends[1]
