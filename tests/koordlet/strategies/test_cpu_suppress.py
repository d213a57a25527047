"""CPU suppression by cpuset and by quota, and how both are restored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BE, LS, LSE, LSR
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET
from koord.host.hardware import MachineCpu
from koord.koordlet.strategies.cpu_suppress import (
    BESTEFFORT_BASE,
    BeGroup,
    CpuSuppressView,
    MeasuredApplication,
    be_cpu_allowance,
    decide_cpu_suppress,
)
from koord.values.cpuset import CPUSet
from tests.koordlet.strategies.builders import pod, writes

ROOT = BeGroup(path="kubepods/besteffort", depth=0)
POD = BeGroup(path="kubepods/besteffort/podbe", depth=1, pod="be")
BOX = BeGroup(path="kubepods/besteffort/podbe/c", depth=2, pod="be")


def machine(count: int) -> tuple[MachineCpu, ...]:
    return tuple(MachineCpu(cpu=cpu, core=cpu // 2, node=cpu * 2 // count) for cpu in range(count))


def view(cpus: int = 16, **changes: Any) -> CpuSuppressView:
    """A node that uses 12 of 16 cores, 8 for LS and 2 for BE."""
    seen = CpuSuppressView(
        enabled=True,
        policy="cfsQuota",
        threshold_percent=70,
        capacity_milli=cpus * 1000,
        node_used_milli=12_000,
        pods=(pod("ls", LS), pod("be", BE)),
        pod_used_milli={"ls": 8_000, "be": 2_000},
        processors=machine(cpus),
        groups=(ROOT, POD, BOX),
        quota_us=-1,
        cpuset=CPUSet.of(range(cpus)),
    )
    return msgspec.structs.replace(seen, **changes)


@pytest.mark.parametrize(
    ("seen", "milli"),
    [
        pytest.param(view(), 1_200, id="ls-8-be-2-system-2"),
        pytest.param(view(pod_used_milli={"be": 4_000}), 3_200, id="unmeasured-pod-is-system-use"),
        pytest.param(view(pods=(pod("be", BE),)), 1_200, id="unknown-pod-is-not-best-effort"),
        pytest.param(view(20, pod_used_milli={}, node_used_milli=0), 14_000, id="idle-node"),
        pytest.param(view(20, min_percent=60), 12_000, id="never-below-the-minimum"),
        pytest.param(view(20, min_percent=0), 4_000, id="minimum-of-nothing"),
        pytest.param(view(allocatable_milli=13_000), 200, id="kept-from-pods-by-the-kubelet"),
        pytest.param(view(allocatable_milli=13_000, reservation_milli=4_000), -800, id="reserved-by-annotation"),
        pytest.param(view(allocatable_milli=17_000), 1_200, id="more-allocatable-than-there-is"),
        pytest.param(view(pods=(pod("ls"), pod("be", kube_qos="BestEffort"))), 1_200, id="by-kubernetes-qos"),
        pytest.param(
            view(applications=(MeasuredApplication(name="a", used_milli=1_000, qos=LS),)),
            1_200,
            id="application-is-not-be",
        ),
        pytest.param(
            view(applications=(MeasuredApplication(name="a", used_milli=1_000, qos=BE, base=BESTEFFORT_BASE),)),
            2_200,
            id="application-in-the-be-group",
        ),
        pytest.param(
            view(applications=(MeasuredApplication(name="a", used_milli=1_000, qos=BE, base="Kubepods"),)),
            1_200,
            id="be-application-elsewhere-counts",
        ),
    ],
)
def test_room(seen: CpuSuppressView, milli: int) -> None:
    room = be_cpu_allowance(seen)
    assert room is not None
    assert room.milli == milli
    assert f"{milli}m" in room.why


@pytest.mark.parametrize(
    ("milli", "now", "quota"),
    [
        pytest.param(20_000, 1_000_000, 1_800_000, id="rises-by-a-tenth-of-the-node"),
        pytest.param(20_000, 1_900_000, 2_000_000, id="small-rise-at-once"),
        pytest.param(20_000, 2_400_000, 2_000_000, id="falls-at-once"),
        pytest.param(20_000, 1_980_000, None, id="under-one-percent-is-jitter"),
        pytest.param(20_000, 1_920_000, 2_000_000, id="one-percent-is-not"),
        pytest.param(1, 80_000, 2_000, id="never-below-the-floor"),
        pytest.param(-5_000, 80_000, 2_000, id="no-room-at-all"),
        pytest.param(1, 2_000, None, id="already-at-the-floor"),
        pytest.param(20_000, -1, 2_000_000, id="unlimited-is-not-a-size"),
        pytest.param(25, -1, 2_500, id="unlimited-is-not-close-to-little"),
    ],
)
def test_quota_of_80_cores(milli: int, now: int, quota: int | None) -> None:
    used = 80_000 - milli
    seen = view(80, threshold_percent=100, node_used_milli=used, pod_used_milli={"ls": used}, quota_us=now)
    assert writes(decide_cpu_suppress(seen), CPU_QUOTA) == ([] if quota is None else [(ROOT.path, str(quota))])


def test_a_quota_stays_above_groups_below_where_the_kernel_insists() -> None:
    plan = decide_cpu_suppress(view(least_quota_us=150_000))
    assert writes(plan, CPU_QUOTA) == [(ROOT.path, "150000")]
    assert "150000us" in plan.why


def test_the_quota_policy_gives_cpus_back() -> None:
    plan = decide_cpu_suppress(view(cpuset=CPUSet.parse("0-1")))
    assert writes(plan, CPU_QUOTA) == [(ROOT.path, "120000")]
    assert writes(plan, CPUSET) == [(group.path, "0-15") for group in (ROOT, POD, BOX)]
    assert plan.figures == {"be_suppress_ls_used_cpu_cores": 8.0, "be_suppress_cpu_cores": 1.2}


def test_cpus_shrink_from_the_leaves_up() -> None:
    plan = decide_cpu_suppress(view(policy="cpuset", quota_us=300_000))
    assert writes(plan, CPUSET) == [
        (ROOT.path, "0-15"),
        (POD.path, "0-15"),
        (BOX.path, "0-15"),
        (BOX.path, "0-1"),
        (POD.path, "0-1"),
        (ROOT.path, "0-1"),
    ]
    assert writes(plan, CPU_QUOTA) == [(ROOT.path, "-1")]
    assert plan.figures["be_suppress_cpu_cores"] == 2


def test_cpus_grow_from_the_root_down_by_a_tenth_of_the_node() -> None:
    plan = decide_cpu_suppress(view(policy="cpuset", cpuset=CPUSet.parse("0-1"), node_used_milli=0, pod_used_milli={}))
    assert writes(plan, CPUSET) == [(group.path, "0-1,8-9") for group in (ROOT, POD, BOX)]


@pytest.mark.parametrize("now", ["0-3", "0-1"])
def test_lse_cpus_are_never_taken_and_lsr_cpus_in_proportion(now: str) -> None:
    seen = view(
        8,
        policy="cpuset",
        threshold_percent=100,
        node_used_milli=5_000,
        pods=(pod("r", LSR, cpuset="0,6"), pod("e", LSE, cpuset="7")),
        pod_used_milli={},
        cpuset=CPUSet.parse(now),
        groups=(ROOT,),
    )
    assert writes(decide_cpu_suppress(seen), CPUSET)[-1] == (ROOT.path, "2-4")


def test_a_static_kubelet_keeps_the_upper_groups_whole() -> None:
    plan = decide_cpu_suppress(view(policy="cpuset", kubelet_static=True))
    assert writes(plan, CPUSET) == [(ROOT.path, "0-15"), (POD.path, "0-15"), (BOX.path, "0-1")]


def test_nothing_is_written_when_every_cpu_is_taken() -> None:
    seen = view(4, policy="cpuset", pods=(pod("e", LSE, cpuset="0-3"),))
    assert writes(decide_cpu_suppress(seen), CPUSET) == []


def test_fewer_cpus_than_wanted_are_all_given() -> None:
    seen = view(4, policy="cpuset", pods=(pod("e", LSE, cpuset="0-2"),), node_used_milli=0, pod_used_milli={})
    assert writes(decide_cpu_suppress(seen), CPUSET)[-1] == (ROOT.path, "3")


def idle_cpuset_size(cpus: int, services_milli: int, threshold: int = 65, **changes: Any) -> int:
    """The size that the set of BE settles at, which starts with all CPUs."""
    seen = view(
        cpus,
        policy="idleCpuset",
        be_yields=True,
        threshold_percent=threshold,
        node_used_milli=services_milli + 500,
        pod_used_milli={"ls": services_milli, "be": 500},
        **changes,
    )
    return len(CPUSet.parse(writes(decide_cpu_suppress(seen), CPUSET)[-1][1]))


@pytest.mark.parametrize(
    ("cpus", "services_milli", "size"),
    [
        pytest.param(16, 4_800, 8, id="5600m-of-CPUs-of-which-services-use-30%"),
        pytest.param(16, 0, 10, id="without-services-it-is-the-allowance"),
        pytest.param(16, 9_600, 2, id="800m-of-CPUs-of-which-services-use-60%"),
        pytest.param(16, 4_900, 7, id="rounded-down"),
        pytest.param(16, 12_000, 1, id="no-allowance"),
        pytest.param(16, 20_000, 1, id="more-use-than-there-is"),
        pytest.param(2, 600, 1, id="one-of-two"),
        pytest.param(2, 0, 1, id="one-of-two-even-when-idle"),
    ],
)
def test_an_idle_cpuset_leaves_be_its_allowance_beside_services(cpus: int, services_milli: int, size: int) -> None:
    assert idle_cpuset_size(cpus, services_milli) == size


def test_cpus_of_lse_pods_are_no_part_of_an_idle_cpuset() -> None:
    pods = (pod("ls", LS), pod("be", BE), pod("e", LSE, cpuset="0-3"))
    seen = view(
        16,
        policy="idleCpuset",
        be_yields=True,
        threshold_percent=65,
        pods=pods,
        node_used_milli=5_300,
        pod_used_milli={"ls": 800, "be": 500, "e": 4_000},
    )
    # 65 % of 16000m less 4800m is 5600m, on 12 CPUs of which others use 800m.
    chosen = CPUSet.parse(writes(decide_cpu_suppress(seen), CPUSET)[-1][1])
    assert len(chosen) == 6
    assert not chosen & CPUSet.parse("0-3")


def test_an_idle_cpuset_without_idle_groups_is_a_cpuset_and_says_so() -> None:
    plan = decide_cpu_suppress(view(policy="idleCpuset", threshold_percent=65, pod_used_milli={"ls": 4_800, "be": 0}))
    plain = decide_cpu_suppress(view(policy="cpuset", threshold_percent=65, pod_used_milli={"ls": 4_800, "be": 0}))
    assert writes(plan, CPUSET) == writes(plain, CPUSET)
    assert "not idle here" in plan.why


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"capacity_milli": None}, id="no-node"),
        pytest.param({"capacity_milli": 0}, id="empty-node"),
        pytest.param({"node_used_milli": None}, id="no-measurement"),
        pytest.param({"processors": ()}, id="no-cpu-info"),
        pytest.param({"enabled": None}, id="no-node-slo-yet"),
        pytest.param({"groups": ()}, id="no-be-group"),
    ],
)
def test_nothing_is_done_about_the_unknown(changes: dict[str, Any]) -> None:
    plan = decide_cpu_suppress(view(**changes))
    assert plan.effects == ()
    assert plan.why


def test_disabled_gives_everything_back() -> None:
    seen = view(
        enabled=False,
        quota_us=2_000,
        cpuset=CPUSet.parse("0-1"),
        node_used_milli=None,
        capacity_milli=None,
        pods=(pod("e", LSE, cpuset="7"),),
        reserved_cpus=CPUSet.parse("0"),
        exclusive_cpus=CPUSet.parse("15"),
    )
    plan = decide_cpu_suppress(seen)
    assert writes(plan, CPU_QUOTA) == [(ROOT.path, "-1")]
    assert writes(plan, CPUSET)[-1] == (ROOT.path, "1-6,8-14")


def test_disabled_and_already_given_back_leaves_the_quota() -> None:
    assert writes(decide_cpu_suppress(view(enabled=False)), CPU_QUOTA) == []


@settings(max_examples=100)
@given(
    busy=st.integers(0, 90_000),
    more=st.integers(0, 20_000),
    policy=st.sampled_from(["cfsQuota", "cpuset", "idleCpuset"]),
)
def test_more_ls_load_never_buys_be_more_cpu(busy: int, more: int, policy: str) -> None:
    sizes = []
    for used in (busy, busy + more):
        used_milli = {"ls": used, "be": 2_000}
        seen = view(policy=policy, be_yields=True, node_used_milli=used + 2_000, pod_used_milli=used_milli)
        plan = decide_cpu_suppress(seen)
        if policy == "cfsQuota":
            sizes.append(int(writes(plan, CPU_QUOTA)[-1][1]))
        else:
            sizes.append(len(CPUSet.parse(writes(plan, CPUSET)[-1][1])))
    assert sizes[1] <= sizes[0]


@settings(max_examples=100)
@given(
    used=st.integers(0, 100_000),
    now=st.one_of(st.just(-1), st.integers(1_000, 2_000_000)),
    threshold=st.integers(0, 100),
)
def test_a_quota_is_never_below_the_floor_and_settles(used: int, now: int, threshold: int) -> None:
    seen = view(node_used_milli=used, pod_used_milli={"ls": used}, quota_us=now, threshold_percent=threshold)
    for _ in range(20):
        written = writes(decide_cpu_suppress(seen), CPU_QUOTA)
        if not written:
            break
        quota = int(written[0][1])
        assert quota >= 2_000
        seen = msgspec.structs.replace(seen, quota_us=quota)
    else:
        pytest.fail("the quota still moves though nothing else does")
