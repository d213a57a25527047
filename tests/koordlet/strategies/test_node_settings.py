"""Settings of the whole machine: kernel switches, cache shares, group identity; and the effective NodeSLO."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.slo import defaults
from koord.api.koordinator.protocol import A_CPU_QOS, A_RESCTRL, BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSE, LSR
from koord.api.koordinator.slo import (
    CPUBurstStrategy,
    CPUQOSConfig,
    NodeSLOSpec,
    ResctrlQOSConfig,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import AddTasks, WriteSchemata, WriteSystem
from koord.koordlet.hooks.resctrl_pod import AMD, HYGON, INTEL, cat_mask, mba_value
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.group_identity import GroupIdentityView, decide_group_identity
from koord.koordlet.strategies.resctrl import ResctrlView, decide_resctrl
from koord.koordlet.strategies.strategy import StrategyPlan
from koord.koordlet.strategies.system_config import SystemConfigView, decide_system_config
from tests.koordlet.strategies.builders import pod, writes

# -- system strategy


def switches(plan: StrategyPlan) -> list[tuple[str, str]]:
    return [(one.file, one.value) for one in plan.effects if isinstance(one, WriteSystem)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            {"min_free_kbytes_factor": 88}, [(knob.MIN_FREE_KBYTES, str(2**24 * 88 // 10_000))], id="min-free"
        ),
        pytest.param({"min_free_kbytes_factor": 1}, [], id="min-free-too-little"),
        pytest.param({"watermark_scale_factor": 150}, [(knob.WATERMARK_SCALE_FACTOR, "150")], id="watermark"),
        pytest.param({"watermark_scale_factor": 5}, [], id="watermark-low"),
        pytest.param({"watermark_scale_factor": 500}, [], id="watermark-high"),
        pytest.param({"memcg_reap_back_ground": 1}, [(knob.MEMCG_REAP_BACKGROUND, "1")], id="reap"),
        pytest.param({"memcg_reap_back_ground": -1}, [], id="reap-minus"),
        pytest.param({"memcg_reap_back_ground": 2}, [], id="reap-two"),
        pytest.param(
            {"sched_features": {"B": False, "A": True}},
            [(knob.SCHED_FEATURES, "A"), (knob.SCHED_FEATURES, "NO_B")],
            id="features",
        ),
        pytest.param({}, [], id="nothing-said"),
    ],
)
def test_system_strategy(config: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    plan = decide_system_config(SystemConfigView(strategy=SystemStrategy(**config), capacity_bytes=2**34))
    assert switches(plan) == expected
    assert bool(plan.why) is (not expected and bool(config))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(SystemConfigView(strategy=None, capacity_bytes=2**34), id="no-node-slo"),
        pytest.param(
            SystemConfigView(strategy=SystemStrategy(watermark_scale_factor=150), capacity_bytes=None), id="no-node"
        ),
    ],
)
def test_system_strategy_of_the_unknown(seen: SystemConfigView) -> None:
    assert decide_system_config(seen).effects == ()


# -- cache and bandwidth


@pytest.mark.parametrize(
    ("mask", "start", "end", "ways"),
    [
        (0xFF, 0, 100, "ff"),
        (0x3FF, 10, 80, "fe"),
        (0x7FF, 10, 50, "3c"),
        (0x3FF, 0, 30, "7"),
        (0x3FF, 10, 85, "1fe"),
        (0x7FF, 0, 30, "f"),
        (0x3FF, -10, 30, None),
        (0x3FF, 30, 30, None),
        (0x3FF, 0, 101, None),
        (0x3FE, 0, 100, None),
        (0, 0, 100, None),
        (0x1, 1, 2, None),
    ],
)
def test_cache_ways(mask: int, start: int, end: int, ways: str | None) -> None:
    found = cat_mask(mask, start, end)
    assert (None if found is None else f"{found:x}") == ways


@settings(max_examples=60)
@given(ways=st.integers(1, 32), start=st.integers(0, 99), end=st.integers(1, 100), more=st.integers(0, 50))
def test_a_wider_range_is_never_fewer_ways(ways: int, start: int, end: int, more: int) -> None:
    mask = (1 << ways) - 1
    narrow, wide = cat_mask(mask, start, end), cat_mask(mask, start, min(end + more, 100))
    assert narrow is None or (wide is not None and narrow & ~wide == 0)
    assert narrow is None or (narrow & ~mask == 0 and narrow > 0)


@pytest.mark.parametrize(
    ("vendor", "percent", "value"),
    [
        (INTEL, 85, "90"),
        (INTEL, 80, "80"),
        (INTEL, 0, None),
        (INTEL, 101, None),
        (INTEL, None, None),
        (AMD, 80, "128"),
        (AMD, 100, "2048"),
        (HYGON, 85, "136"),
        (HYGON, 100, "2048"),
        ("0x48", 81, "90"),
        ("", 80, "80"),
    ],
)
def test_bandwidth(vendor: str, percent: int | None, value: str | None) -> None:
    assert mba_value(vendor, percent) == value


def resctrl(*pods: PodMeta, **changes: Any) -> ResctrlView:
    spec = ResourceQOSStrategy(
        lsr_class=ResourceQOS(resctrl_qos=ResctrlQOSConfig(enable=True)),
        be_class=ResourceQOS(resctrl_qos=ResctrlQOSConfig(enable=True, mba_percent=45)),
    )
    merged = effective_slo(NodeSLOSpec(resource_qos_strategy=spec)).resource_qos_strategy
    seen = ResctrlView(strategy=merged, cache_mask=0x3FF, caches=(1, 0), pods=pods)
    return msgspec.structs.replace(seen, **changes)


def schemata(plan: StrategyPlan) -> list[tuple[str, str]]:
    return [(one.group, one.line) for one in plan.effects if isinstance(one, WriteSchemata)]


def test_schemata_of_every_class() -> None:
    assert schemata(decide_resctrl(resctrl())) == [
        ("LSR", "L3:0=3ff;1=3ff;\n"),
        ("LSR", "MB:0=100;1=100;\n"),
        ("LS", "L3:0=3ff;1=3ff;\n"),
        ("LS", "MB:0=100;1=100;\n"),
        ("BE", "L3:0=7;1=7;\n"),
        ("BE", "MB:0=50;1=50;\n"),
    ]


def test_a_disabled_class_gets_everything_back() -> None:
    found = schemata(decide_resctrl(resctrl(strategy=effective_slo(NodeSLOSpec()).resource_qos_strategy)))
    assert ("BE", "L3:0=3ff;1=3ff;\n") in found


def test_threads_go_to_the_group_of_their_class() -> None:
    pods = (
        pod("e", LSE),
        pod("g", kube_qos=GUARANTEED),
        pod("ls", LS),
        pod("be", BE),
        pod("own", BE, annotations={A_RESCTRL: "{}"}),
        pod("over", BE, phase="Failed"),
    )
    tasks = {one.uid: (100 + place, 10 + place) for place, one in enumerate(pods)}
    plan = decide_resctrl(resctrl(*pods, tasks=tasks, held={"BE": frozenset({13})}))
    moved = {one.group: one.tasks for one in plan.effects if isinstance(one, AddTasks)}
    assert moved == {"LSR": (10, 11, 100, 101), "BE": (103,)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"supported": False}, id="not-supported"),
        pytest.param({"caches": ()}, id="no-caches"),
        pytest.param({"strategy": None}, id="no-node-slo"),
    ],
)
def test_machines_without_shares(changes: dict[str, Any]) -> None:
    plan = decide_resctrl(resctrl(**changes))
    assert plan.effects == ()
    assert plan.why


def test_a_mask_that_makes_no_sense_is_told() -> None:
    plan = decide_resctrl(resctrl(cache_mask=0x5))
    assert [line for _, line in schemata(plan) if line.startswith("L3")] == []
    assert "BE" in plan.why


# -- group identity

GROUPS = {GUARANTEED: "kubepods", BURSTABLE: "kubepods/burstable", BEST_EFFORT: "kubepods/besteffort"}
ON = CPUQOSConfig(enable=True)


def identity(
    *pods: PodMeta,
    lsr: bool = True,
    ls: bool = True,
    be: bool = True,
    policy: str = "groupIdentity",
    **changes: Any,
) -> GroupIdentityView:
    spec = ResourceQOSStrategy(
        policies=ResourceQOSPolicies(cpu_policy=policy),
        lsr_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=lsr)),
        ls_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=ls)),
        be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=be)),
    )
    merged = effective_slo(NodeSLOSpec(resource_qos_strategy=spec)).resource_qos_strategy
    seen = GroupIdentityView(strategy=merged, has_bvt=True, groups=GROUPS, pods=pods)
    return msgspec.structs.replace(seen, **changes)


def bvt(seen: GroupIdentityView) -> dict[str, str]:
    return dict(writes(decide_group_identity(seen), knob.CPU_BVT))


def test_identities_of_classes() -> None:
    assert bvt(identity()) == {"kubepods": "0", "kubepods/burstable": "2", "kubepods/besteffort": "-1"}


@pytest.mark.parametrize(
    ("owner", "changes", "value"),
    [
        pytest.param(pod("p", LSE), {}, "2", id="lse"),
        pytest.param(pod("p", LSR), {"lsr": False}, "0", id="lsr-off"),
        pytest.param(pod("p", BE), {}, "-1", id="be"),
        pytest.param(pod("p", kube_qos=GUARANTEED), {"lsr": False}, "2", id="guaranteed-falls-to-ls"),
        pytest.param(pod("p", kube_qos=GUARANTEED), {"lsr": False, "ls": False}, "0", id="guaranteed-nothing-on"),
        pytest.param(pod("p"), {}, "2", id="burstable"),
        pytest.param(pod("p", kube_qos=BEST_EFFORT), {}, "-1", id="best-effort"),
        pytest.param(pod("p", LS, annotations={A_CPU_QOS: '{"groupIdentity":1,"enable":true}'}), {}, "1", id="own"),
        pytest.param(pod("p", LS, annotations={A_CPU_QOS: '{"groupIdentity":1}'}), {}, "0", id="own-not-enabled"),
        pytest.param(pod("p", LS, annotations={A_CPU_QOS: '{"enable":true}'}), {}, "2", id="own-says-nothing"),
        pytest.param(pod("p", BE, annotations={A_CPU_QOS: '{"groupIdentity":1,"enable":true}'}), {}, "-1", id="be-own"),
        pytest.param(pod("p", "SYSTEM"), {}, "2", id="class-without-a-row-burstable"),
        pytest.param(pod("p", "SYSTEM", kube_qos=GUARANTEED), {"lsr": False}, "2", id="class-without-a-row-guaranteed"),
        pytest.param(pod("p", "SYSTEM", kube_qos=BEST_EFFORT), {}, "-1", id="class-without-a-row-best-effort"),
    ],
)
def test_identities_of_pods(owner: PodMeta, changes: dict[str, Any], value: str) -> None:
    seen = identity(owner, children={owner.group: (f"{owner.group}/c",)}, **changes)
    assert bvt(seen)[owner.group] == bvt(seen)[f"{owner.group}/c"] == value


@pytest.mark.parametrize("text", ['{"groupIdentity":9,"enable":true}', "{", '{"enable":"yes"}'])
def test_a_malformed_annotation_leaves_the_pod_as_it_is(text: str) -> None:
    owner = pod("p", LS, annotations={A_CPU_QOS: text})
    seen = identity(owner, children={owner.group: (f"{owner.group}/c",)})
    assert not [group for group in bvt(seen) if group.startswith(owner.group)]
    # A value that was written before is named, so that a complete plan does not restore it.
    assert bvt(msgspec.structs.replace(seen, kept={owner.group: 1}))[owner.group] == "1"
    assert A_CPU_QOS in decide_group_identity(seen).why


def test_leftovers_and_applications() -> None:
    leftovers = (("kubepods/besteffort/podx", BEST_EFFORT), ("kubepods/pody", GUARANTEED))
    seen = identity(leftovers=leftovers, applications=(("host/nginx", LS),))
    assert bvt(seen)["kubepods/besteffort/podx"] == "-1"
    assert bvt(seen)["kubepods/pody"] == "0", "as the directory that it is in"
    assert bvt(seen)["host/nginx"] == "2"


def test_switches_of_the_machine() -> None:
    assert switches(decide_group_identity(identity(identity_switch=0, core_switch=1))) == [
        (knob.SCHED_CORE, "0"),
        (knob.GROUP_IDENTITY_ENABLED, "1"),
    ]


def test_switched_off_is_neutral_or_already_so() -> None:
    off: dict[str, Any] = {"lsr": False, "ls": False, "be": False}
    assert set(bvt(identity(pod("p", BE), **off)).values()) == {"0"}
    assert decide_group_identity(identity(identity_switch=0, **off)).effects == ()
    assert set(bvt(identity(pod("p", BE), policy="coreSched")).values()) == {"0"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"identity_switch": 0, "identity_wish": 1, "be": False},
            [(knob.GROUP_IDENTITY_ENABLED, "1")],
            id="on",
        ),
        pytest.param(
            {"identity_switch": 1, "identity_wish": 0, "be": False},
            [(knob.GROUP_IDENTITY_ENABLED, "0")],
            id="off",
        ),
        pytest.param(
            {"identity_switch": 1, "identity_wish": 0},
            [(knob.GROUP_IDENTITY_ENABLED, "1")],
            id="a-class-needs-it",
        ),
        pytest.param(
            {"identity_switch": 0, "identity_wish": 1, "policy": "coreSched"}, [], id="core-scheduling-forbids"
        ),
    ],
)
def test_the_switch_has_one_writer(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    seen = identity(**{"lsr": False, "ls": False, **changes})
    assert switches(decide_group_identity(seen)) == expected
    strategy = SystemStrategy(sched_group_identity_enabled=1)
    assert (
        switches(decide_system_config(SystemConfigView(strategy=strategy, capacity_bytes=1, identity_taken=True))) == []
    )
    assert switches(decide_system_config(SystemConfigView(strategy=strategy, capacity_bytes=1))) == [
        (knob.GROUP_IDENTITY_ENABLED, "1")
    ]


def idle(seen: GroupIdentityView) -> list[tuple[str, str, str]]:
    plan = decide_group_identity(seen)
    return [(g, f, v) for f in (knob.CPU_IDLE, knob.CPU_SHARES, knob.CPU_BVT) for g, v in writes(plan, f)]


BE_GROUP, BE_POD = "kubepods/besteffort", pod("p").group
ROOT_AWAKE = (BE_GROUP, knob.CPU_IDLE, "0")  # the kubelet writes its shares


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [ROOT_AWAKE, (BE_POD, knob.CPU_IDLE, "1")], id="stands-in"),
        pytest.param({"be": False}, [ROOT_AWAKE], id="never-was"),
        pytest.param({"idle_stands_in": False}, [], id="not-wanted"),
        pytest.param({"idle_candidates": ()}, [ROOT_AWAKE], id="no-containers-yet"),
        pytest.param({"pods": ()}, [ROOT_AWAKE, (BE_POD, knob.CPU_IDLE, "1")], id="pod-not-listed"),
        pytest.param({"pods": (pod("p", LS, kube_qos=BEST_EFFORT),)}, [ROOT_AWAKE], id="other-class-in-the-root"),
        pytest.param(
            {"be": False, "idle": 1},
            [ROOT_AWAKE, (BE_GROUP, knob.CPU_SHARES, "2")],
            id="an-idle-root-of-an-earlier-version",
        ),
        pytest.param(
            {"be": False, "idle_cpuset": True},
            [ROOT_AWAKE, (BE_POD, knob.CPU_IDLE, "1")],
            id="wanted-by-cpu-suppression",
        ),
        pytest.param(
            {"be": False, "idle_cpuset": True, "pods": (pod("p", LS, kube_qos=BEST_EFFORT),)},
            [ROOT_AWAKE],
            id="wanted-for-be-alone",
        ),
        pytest.param({"be": False, "idle_cpuset": True, "idle_stands_in": False}, [], id="the-flag-decides"),
        pytest.param({"has_idle": False}, [], id="kernel-has-neither"),
        pytest.param({"policy": "coreSched", "idle": 1}, [], id="another-owner"),
        pytest.param({"strategy": None}, [], id="no-node-slo"),
    ],
)
def test_idle_groups_where_there_is_no_identity(changes: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    seen = identity(pod("p", BE, kube_qos=BEST_EFFORT), has_bvt=False, has_idle=True)
    assert idle(msgspec.structs.replace(seen, **{"idle_candidates": (BE_POD,), **_changed(changes)})) == expected


def _changed(changes: dict[str, Any]) -> dict[str, Any]:
    classes = {name: changes[name] for name in ("be", "policy") if name in changes}
    rest = {name: value for name, value in changes.items() if name not in classes}
    return {**({"strategy": identity(**classes).strategy} if classes else {}), **rest}


# -- what a NodeSLO comes to


def test_an_empty_node_slo_is_the_defaults() -> None:
    found = effective_slo(NodeSLOSpec())
    assert found.resource_used_threshold_with_be == defaults.THRESHOLD
    assert found.cpu_burst_strategy == defaults.CPU_BURST
    assert found.system_strategy == defaults.SYSTEM_STRATEGY
    qos = found.resource_qos_strategy
    assert qos is not None
    assert qos.be_class is not None
    assert qos.be_class.cpu_qos == CPUQOSConfig(enable=False, group_identity=0, sched_idle=0, core_expeller=False)
    assert qos.system_class is not None
    assert qos.system_class.cpu_qos is not None


def test_what_is_said_is_laid_over_the_defaults() -> None:
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(enable=True, cpu_suppress_threshold_percent=70),
        cpu_burst_strategy=CPUBurstStrategy(policy="auto"),
        resource_qos_strategy=ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=ON)),
    )
    found = effective_slo(spec)
    threshold, burst, qos = found.resource_used_threshold_with_be, found.cpu_burst_strategy, found.resource_qos_strategy
    assert threshold is not None
    assert (threshold.enable, threshold.cpu_suppress_threshold_percent) == (True, 70)
    assert threshold.memory_evict_threshold_percent == 70
    assert burst is not None
    assert (burst.policy, burst.cfs_quota_burst_percent) == ("auto", 300)
    assert qos is not None
    assert qos.be_class is not None
    assert qos.be_class.cpu_qos is not None
    assert qos.be_class.cpu_qos.group_identity == -1
