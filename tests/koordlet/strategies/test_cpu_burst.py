"""CPU burst: the buffer, the quota that grows and shrinks, and the order in which they may be written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.slo.defaults import CPU_BURST as DEFAULT
from koord.api.koordinator.protocol import A_CPU_BURST, BE, LS, LSR
from koord.api.koordinator.resource_name import CPU
from koord.api.koordinator.slo import CPUBurst
from koord.host.cgroup.knob import CPU_BURST, CPU_QUOTA
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.cpu_burst import (
    BurstState,
    BurstTokens,
    CpuBurstView,
    SharePool,
    SharePoolState,
    SharePoolView,
    check_burst_allowance,
    classify_share_pool,
    decide_cpu_burst,
    initial_token_share,
    spend_tokens,
)
from tests.koordlet.strategies.builders import container, pod, writes

POD = "kubepods/podls"
BOX = "kubepods/podls/main"
ID = "containerd://ls-main"


def ls_pod(**changes: Any) -> PodMeta:
    box = container("main", of="ls", limits={CPU: 2_000})
    return msgspec.structs.replace(pod("ls", LS, limits={CPU: 2_000}, containers=(box,)), **changes)


def view(
    now: int = 200_000,
    *,
    state: SharePoolState = "idle",
    throttled: float | None = None,
    policy: str = "auto",
    **changes: Any,
) -> CpuBurstView:
    """A quota above the limit is a burst of the strategy's own, unless `bursts` says otherwise."""
    config = {name: changes.pop(name) for name in CPUBurst.__struct_fields__ if name in changes}
    seen = CpuBurstView(
        strategy=msgspec.structs.replace(DEFAULT, policy=policy, **config),
        pool=SharePool(state=state, why=state),
        now_s=100.0,
        pods=(ls_pod(),),
        quota_us={POD: now, BOX: now},
        throttled={} if throttled is None else {ID: throttled},
        bursts={ID: BurstState(base_us=200_000, quota_us=now)},
    )
    return msgspec.structs.replace(seen, **changes)


@pytest.mark.parametrize(
    ("seen", "quota"),
    [
        pytest.param(view(400_000, policy="none"), 200_000, id="policy-none-resets"),
        pytest.param(view(400_000, policy="cpuBurstOnly", throttled=0.5), 200_000, id="burst-only-resets"),
        pytest.param(view(400_000, throttled=0.5, state="cooling"), None, id="cooling-does-not-grow"),
        pytest.param(view(400_000, throttled=0.5, state="unknown"), None, id="unknown-does-not-grow"),
        pytest.param(view(202_000, throttled=0.5, state="overload"), 200_000, id="overload-down-to-the-limit"),
        pytest.param(view(400_000, throttled=0.5, state="overload"), 320_000, id="overload-by-a-fifth"),
        pytest.param(view(400_000, state="overload"), 320_000, id="overload-without-throttling"),
        pytest.param(view(400_000, cfs_quota_burst_period_seconds=0), 320_000, id="no-tokens-at-all"),
        pytest.param(view(400_000, cfs_quota_burst_percent=90), 200_000, id="ceiling-is-the-limit"),
        pytest.param(view(580_000, throttled=0.0), None, id="not-throttled-stays"),
        pytest.param(view(580_000), None, id="throttling-unknown-stays"),
        pytest.param(view(580_000, throttled=0.5), 600_000, id="up-to-the-ceiling"),
        pytest.param(view(200_000, throttled=0.5), 240_000, id="up-by-a-fifth"),
        pytest.param(view(200_000, throttled=0.5, policy="cfsQuotaBurstOnly"), 240_000, id="quota-only"),
        pytest.param(view(150_000, throttled=0.0), 200_000, id="below-the-limit-is-repaired"),
    ],
)
def test_quota(seen: CpuBurstView, quota: int | None) -> None:
    expected = [] if quota is None else [str(quota)]
    plan = decide_cpu_burst(seen)
    assert [value for group, value in writes(plan, CPU_QUOTA) if group == BOX] == expected
    assert [value for group, value in writes(plan, CPU_QUOTA) if group == POD] == expected


def test_a_pod_holds_what_its_containers_have() -> None:
    two, three = (container(n, of="ls", limits={CPU: m}) for n, m in (("two", 2_000), ("three", 3_000)))
    owner = ls_pod(containers=(two, three), limits={CPU: 5_000})
    seen = view(
        pods=(owner,),
        quota_us={POD: 500_000, two.group: 200_000, three.group: 300_000},
        policy="cfsQuotaBurstOnly",
    )
    seen = msgspec.structs.replace(seen, throttled={two.id: 0.1, three.id: 0.1})
    assert writes(decide_cpu_burst(seen), CPU_QUOTA) == [
        (POD, "600000"),
        (two.group, "240000"),
        (three.group, "360000"),
    ]


def test_a_pod_without_a_bound_keeps_none() -> None:
    seen = view(quota_us={POD: -1, BOX: 200_000}, throttled=0.5)
    assert writes(decide_cpu_burst(seen), CPU_QUOTA) == [(BOX, "240000")]


def test_a_container_without_a_bound_was_freed_on_purpose() -> None:
    seen = view(quota_us={POD: -1, BOX: -1}, throttled=0.5, policy="none")
    assert writes(decide_cpu_burst(seen), CPU_QUOTA) == []


def test_a_quota_that_cannot_be_read_is_left_alone() -> None:
    assert writes(decide_cpu_burst(view(quota_us={}, throttled=0.5)), CPU_QUOTA) == []


def test_a_pod_that_drifted_is_put_where_its_containers_are() -> None:
    seen = view(policy="none", quota_us={POD: 440_000, BOX: 200_000})
    assert writes(decide_cpu_burst(seen), CPU_QUOTA) == [(POD, "200000")]


def test_normalised_limits_are_the_ones_that_count() -> None:
    seen = view(policy="none", normalization_ratio=1.2, quota_us={POD: 200_000, BOX: 166_667})
    plan = decide_cpu_burst(seen)
    assert writes(plan, CPU_QUOTA) == [(POD, "166667"), (BOX, "166667")]
    originals = {one.original for one in plan.effects if isinstance(one, WriteCgroup) and one.file == CPU_QUOTA}
    assert originals == {"200000"}, "what comes back is the limit's, though the container started with less"


@pytest.mark.parametrize(
    ("policy", "percent", "within", "burst"),
    [
        pytest.param("auto", 100, True, 200_000, id="auto"),
        pytest.param("cpuBurstOnly", 50, True, 100_000, id="buffer-only"),
        pytest.param("auto", 1_000, True, 200_000, id="never-above-the-quota"),
        pytest.param("auto", 1_000, False, 2_000_000, id="kernel-that-takes-any"),
        pytest.param("none", 1_000, True, 0, id="none"),
        pytest.param("cfsQuotaBurstOnly", 1_000, True, 0, id="quota-only"),
    ],
)
def test_buffer(policy: str, percent: int, within: bool, burst: int) -> None:
    plan = decide_cpu_burst(view(policy=policy, cpu_burst_percent=percent, burst_within_quota=within))
    assert writes(plan, CPU_BURST) == [(BOX, str(burst)), (POD, str(burst))]


def test_a_container_without_a_limit_has_no_buffer() -> None:
    owner = ls_pod(containers=(container("main", of="ls"),), limits={})
    plan = decide_cpu_burst(view(pods=(owner,), quota_us={POD: -1, BOX: -1}))
    assert writes(plan, CPU_BURST) == [(BOX, "0"), (POD, "0")]
    assert writes(plan, CPU_QUOTA) == []


def order(seen: CpuBurstView) -> list[tuple[str, str, str]]:
    return [(w.group, w.file, w.value) for w in decide_cpu_burst(seen).effects if isinstance(w, WriteCgroup)]


def test_going_down_the_buffer_goes_first_and_the_pod_last() -> None:
    assert order(view(600_000, policy="none")) == [
        (BOX, CPU_BURST, "0"),
        (POD, CPU_BURST, "0"),
        (BOX, CPU_QUOTA, "200000"),
        (POD, CPU_QUOTA, "200000"),
    ]


def test_going_up_the_pod_goes_first_and_the_buffer_last() -> None:
    assert order(view(throttled=0.5)) == [
        (POD, CPU_QUOTA, "240000"),
        (BOX, CPU_QUOTA, "240000"),
        (BOX, CPU_BURST, "240000"),
        (POD, CPU_BURST, "240000"),
    ]


@pytest.mark.parametrize(
    ("owner", "touched"),
    [
        pytest.param(ls_pod(), True, id="ls"),
        pytest.param(pod("ls", containers=ls_pod().containers), True, id="without-class"),
        pytest.param(pod("ls", LSR, containers=ls_pod().containers), False, id="lsr"),
        pytest.param(pod("ls", BE, containers=ls_pod().containers), False, id="be"),
        pytest.param(ls_pod(phase="Succeeded"), False, id="over"),
    ],
)
def test_who_may_burst(owner: PodMeta, touched: bool) -> None:
    assert bool(decide_cpu_burst(view(pods=(owner,))).effects) is touched


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        pytest.param('{"policy":"auto"}', "240000", id="own-policy-wins"),
        pytest.param('{"policy":"auto","cfsQuotaBurstPercent":110}', "220000", id="own-ceiling"),
        pytest.param("{bad", "200000", id="unreadable-is-the-node's"),
    ],
)
def test_the_pods_own_word(text: str, quota: str) -> None:
    owner = ls_pod(annotations={A_CPU_BURST: text})
    seen = view(policy="none", throttled=0.5, pods=(owner,), quota_us={POD: 200_000, BOX: 200_000})
    found = writes(decide_cpu_burst(seen), CPU_QUOTA)
    assert (found or [(POD, "200000")])[0][1] == quota


def test_without_a_node_slo_nothing_changes() -> None:
    seen = msgspec.structs.replace(view(400_000), strategy=None)
    found = decide_cpu_burst(seen)
    assert found.effects == ()
    assert found.state == seen.bursts


@pytest.mark.parametrize(
    ("capacity", "left", "usage", "after"),
    [
        pytest.param(5_000, 5_000, 150, 4_500, id="costs"),
        pytest.param(5_000, 50, 200, -950, id="overdrawn"),
        pytest.param(500, 5, 200, -500, id="never-below-minus-capacity"),
        pytest.param(5_000, 500, 40, 1_100, id="earns"),
        pytest.param(5_000, 4_500, 40, 5_000, id="never-above-capacity"),
        pytest.param(5_000, 500, 80, 500, id="neither"),
    ],
)
def test_tokens_over_ten_seconds(capacity: int, left: float, usage: int, after: float) -> None:
    assert spend_tokens(BurstTokens(capacity=capacity, left=left, at_s=0.0), 10.0, usage).left == after


def test_ticks_that_come_early_count_too() -> None:
    tokens = BurstTokens(capacity=5_000, left=5_000, at_s=0.0)
    for tick in range(1, 11):
        tokens = spend_tokens(tokens, tick * 0.9, 200)
    assert tokens.left == pytest.approx(5_000 - 900)


def test_a_clock_that_goes_back_costs_nothing() -> None:
    assert spend_tokens(BurstTokens(capacity=100, left=50, at_s=10.0), 5.0, 300).left == 50


def test_a_changed_period_opens_a_new_account() -> None:
    before = BurstTokens(capacity=600 * 200, left=1.0, at_s=0.0)
    config = CPUBurst(cfs_quota_burst_percent=200, cfs_quota_burst_period_seconds=300)
    found = check_burst_allowance(config, "c", before, 10.0, 100)
    assert found.tokens is not None
    assert found.tokens.capacity == 30_000
    assert found.tokens.left == initial_token_share("c") * 30_000


@pytest.mark.parametrize(
    ("percent", "period", "allowed"),
    [
        pytest.param(300, -1, True, id="for-ever"),
        pytest.param(300, None, True, id="not-said"),
        pytest.param(90, 60, False, id="below-the-limit"),
        pytest.param(None, 60, False, id="no-percent"),
        pytest.param(300, 0, False, id="no-time"),
    ],
)
def test_limiter_without_an_account(percent: int | None, period: int | None, allowed: bool) -> None:
    config = CPUBurst(cfs_quota_burst_percent=percent, cfs_quota_burst_period_seconds=period)
    assert check_burst_allowance(config, "c", None, 0.0, 100).allowed is allowed


def test_accounts_of_gone_containers_are_closed() -> None:
    tokens = BurstTokens(capacity=1, left=1, at_s=0)
    gone = {"gone": BurstState(base_us=200_000, quota_us=200_000, tokens=tokens)}
    assert set(decide_cpu_burst(view(cfs_quota_burst_period_seconds=60, bursts=gone)).state) == {ID}


def test_an_account_is_kept_from_tick_to_tick() -> None:
    seen = view(cfs_quota_burst_period_seconds=60, used_milli={ID: 3_000})
    first = decide_cpu_burst(seen).state
    second = decide_cpu_burst(msgspec.structs.replace(seen, bursts=first, now_s=101.0)).state
    assert first[ID].tokens.left - second[ID].tokens.left == 50


@pytest.mark.parametrize(
    ("lsr_used", "state"),
    [
        pytest.param(7_000, "idle", id="3-of-8"),
        pytest.param(5_000, "overload", id="5-of-8"),
        pytest.param(6_250, "cooling", id="just-under"),
    ],
)
def test_share_pool(lsr_used: int, state: str) -> None:
    seen = SharePoolView(
        processors=16,
        threshold_percent=50,
        node_used_milli=10_000,
        pods=(pod("r", LSR, requests={CPU: 8_000}),),
        pod_used_milli={"r": lsr_used},
    )
    assert classify_share_pool(seen).state == state


def test_share_pool_without_a_measurement_is_unknown() -> None:
    assert (
        classify_share_pool(SharePoolView(processors=16, threshold_percent=50, node_used_milli=None)).state == "unknown"
    )


def test_share_pool_without_cpus_is_full() -> None:
    owner = pod("r", LSR, requests={CPU: 4_000})
    seen = SharePoolView(processors=4, threshold_percent=50, node_used_milli=0, pods=(owner,))
    assert classify_share_pool(seen).state == "overload"


@settings(max_examples=80)
@given(used=st.integers(0, 40_000), more=st.integers(0, 20_000))
def test_more_load_never_calms_the_pool(used: int, more: int) -> None:
    rank = {"idle": 0, "cooling": 1, "overload": 2}
    low, high = (
        rank[classify_share_pool(SharePoolView(processors=16, threshold_percent=50, node_used_milli=n)).state]
        for n in (used, used + more)
    )
    assert high >= low


@settings(max_examples=100)
@given(
    now=st.integers(1_000, 1_000_000),
    pod_now=st.one_of(st.just(-1), st.integers(1_000, 1_000_000)),
    throttled=st.one_of(st.none(), st.floats(0, 1)),
    state=st.sampled_from(["idle", "cooling", "overload", "unknown"]),
    policy=st.sampled_from(["auto", "none", "cpuBurstOnly", "cfsQuotaBurstOnly"]),
    percent=st.integers(50, 1_000),
)
def test_no_single_write_breaks_the_kernels_rules(
    now: int, pod_now: int, throttled: float | None, state: SharePoolState, policy: str, percent: int
) -> None:
    """From any state the kernel can be in: container quota within the pod's, buffer within its quota."""
    if pod_now > 0:
        pod_now = max(pod_now, now)
    seen = view(now, state=state, throttled=throttled, policy=policy, cpu_burst_percent=percent)
    seen = msgspec.structs.replace(seen, quota_us={POD: pod_now, BOX: now})
    quota = {POD: pod_now, BOX: now}
    burst = {POD: 0 if pod_now < 0 else pod_now, BOX: now}  # as large as the kernel can have let them be
    for write in decide_cpu_burst(seen).effects:
        assert isinstance(write, WriteCgroup)
        (quota if write.file == CPU_QUOTA else burst)[write.group] = int(write.value)
        assert quota[POD] == -1 or quota[BOX] <= quota[POD]
        assert all(quota[group] == -1 or burst[group] <= quota[group] for group in (POD, BOX))
    assert 200_000 <= quota[BOX] <= 600_000
    after = msgspec.structs.replace(seen, quota_us=quota, strategy=msgspec.structs.replace(DEFAULT, policy="none"))
    reset = decide_cpu_burst(after)
    assert writes(reset, CPU_QUOTA) == [] or writes(reset, CPU_QUOTA)[-1][1] == "200000"
