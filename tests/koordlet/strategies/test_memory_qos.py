"""Memory protection and throttling of classes, pods and containers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.slo import defaults
from koord.api.koordinator.protocol import A_MEMORY_QOS, BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, SYSTEM
from koord.api.koordinator.resource_name import BATCH_MEMORY, MEMORY
from koord.api.koordinator.slo import MemoryQOS, MemoryQOSConfig, NodeSLOSpec, ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.memory_qos import NO_THROTTLING, MemoryQosView, decide_memory_qos, memory_high_bytes
from tests.koordlet.strategies.builders import container, pod, writes

GI, MI = 2**30, 2**20
GROUPS = {GUARANTEED: "kubepods", BURSTABLE: "kubepods/burstable", BEST_EFFORT: "kubepods/besteffort"}


def strategy(ls_class: MemoryQOSConfig | None = None) -> ResourceQOSStrategy:
    said = ResourceQOSStrategy(ls_class=None if ls_class is None else ResourceQOS(memory_qos=ls_class))
    found = effective_slo(NodeSLOSpec(resource_qos_strategy=said)).resource_qos_strategy
    assert found is not None
    return found


def view(*pods: PodMeta, **changes: Any) -> MemoryQosView:
    seen = MemoryQosView(strategy=strategy(), allocatable_bytes=GI, pods=pods, groups=GROUPS)
    return msgspec.structs.replace(seen, **changes)


def values(seen: MemoryQosView, group: str) -> dict[str, str]:
    effects = decide_memory_qos(seen).effects
    return {one.file: one.value for one in effects if isinstance(one, WriteCgroup) and one.group == group}


def ls(**changes: Any) -> PodMeta:
    amounts = {MEMORY: 512 * MI}
    box = container("c", of="ls", requests=amounts, limits=amounts)
    return msgspec.structs.replace(pod("ls", LS, requests=amounts, limits=amounts, containers=(box,)), **changes)


def test_an_enabled_class_without_percents_keeps_nothing_and_throttles_nobody() -> None:
    seen = view(ls(), strategy=strategy(ls_class=MemoryQOSConfig(enable=True)))
    box, own = values(seen, "kubepods/podls/c"), values(seen, "kubepods/podls")
    assert (box[knob.MEMORY_MIN], box[knob.MEMORY_LOW], box[knob.MEMORY_HIGH]) == (
        "0",
        "0",
        str(NO_THROTTLING),
    )
    assert (own[knob.MEMORY_MIN], own[knob.MEMORY_LOW]) == ("0", "0")
    assert (
        own[knob.MEMORY_WMARK_RATIO],
        own[knob.MEMORY_WMARK_SCALE],
        own[knob.MEMORY_WMARK_MIN_ADJ],
    ) == (
        "95",
        "20",
        "-25",
    )
    for group in GROUPS.values():
        assert (values(seen, group)[knob.MEMORY_MIN], values(seen, group)[knob.MEMORY_LOW]) == (
            "0",
            "0",
        )


def test_a_class_without_pods_keeps_nothing() -> None:
    assert {values(view(), group)[knob.MEMORY_MIN] for group in GROUPS.values()} == {"0"}


def test_be_pods_are_protected_by_batch_memory() -> None:
    amounts = {BATCH_MEMORY: 256 * MI}
    with_request = container("with", of="be", requests=amounts, limits=amounts)
    without = container("without", of="be")
    owner = pod(
        "be",
        BE,
        requests=amounts,
        annotations={A_MEMORY_QOS: '{"minLimitPercent":100,"throttlingPercent":80}'},
        containers=(with_request, without),
    )
    seen = view(owner)
    assert values(seen, with_request.group)[knob.MEMORY_MIN] == str(256 * MI)
    assert values(seen, with_request.group)[knob.MEMORY_HIGH] == str(256 * MI)
    assert values(seen, without.group)[knob.MEMORY_MIN] == "0"
    assert values(seen, without.group)[knob.MEMORY_HIGH] == str(GI * 80 // 100 // 4096 * 4096)
    assert values(seen, GROUPS[BEST_EFFORT])[knob.MEMORY_MIN] == str(256 * MI)
    assert values(seen, GROUPS[GUARANTEED])[knob.MEMORY_MIN] == str(256 * MI)
    assert values(seen, GROUPS[BURSTABLE])[knob.MEMORY_MIN] == "0"


def test_the_top_keeps_what_all_below_keep() -> None:
    whole = '{"minLimitPercent":100,"lowLimitPercent":50}'
    pods = [
        pod(name, LS, kube_qos=qos, requests={MEMORY: GI}, annotations={A_MEMORY_QOS: whole})
        for name, qos in (("g", GUARANTEED), ("b", BURSTABLE))
    ]
    seen = view(*pods)
    assert values(seen, GROUPS[GUARANTEED])[knob.MEMORY_MIN] == str(2 * GI)
    assert values(seen, GROUPS[BURSTABLE])[knob.MEMORY_MIN] == str(GI)
    assert values(seen, "kubepods/podg")[knob.MEMORY_LOW] == str(GI), "raised to what is kept anyway"


def test_system_pods_have_a_class_of_their_own() -> None:
    own = values(view(pod("s", SYSTEM)), "kubepods/pods")
    assert (
        own[knob.MEMORY_WMARK_RATIO],
        own[knob.MEMORY_WMARK_SCALE],
        own[knob.MEMORY_WMARK_MIN_ADJ],
    ) == (
        "0",
        "50",
        "0",
    )


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        pytest.param('{"policy":"none","wmarkRatio":7}', "0", id="none-ends-it"),
        pytest.param('{"policy":"auto"}', "95", id="built-in"),
        pytest.param('{"policy":"auto","wmarkRatio":7}', "7", id="built-in-with-own-word"),
        pytest.param('{"policy":"default"}', "80", id="the-node's"),
        pytest.param('{"wmarkRatio":0}', "0", id="zero-is-a-word"),
        pytest.param("{bad", "80", id="unreadable"),
    ],
)
def test_the_pods_own_word(text: str, ratio: str) -> None:
    node = strategy(ls_class=MemoryQOSConfig(enable=True, wmark_ratio=80))
    seen = view(ls(annotations={A_MEMORY_QOS: text}), strategy=node)
    assert values(seen, "kubepods/podls")[knob.MEMORY_WMARK_RATIO] == ratio


def test_a_disabled_class_is_put_back_to_neutral() -> None:
    node = strategy(
        ls_class=MemoryQOSConfig(enable=False, wmark_ratio=80, min_limit_percent=100, throttling_percent=50)
    )
    own, box = (
        values(view(ls(), strategy=node), "kubepods/podls"),
        values(view(ls(), strategy=node), "kubepods/podls/c"),
    )
    assert (own[knob.MEMORY_WMARK_RATIO], own[knob.MEMORY_MIN]) == ("0", "0")
    assert box[knob.MEMORY_HIGH] == str(NO_THROTTLING)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"pageCacheLimitSize": 512 * MI}, ("1", str(512 * MI), "0"), id="size"),
        pytest.param({"pageCacheLimitSize": 2 * GI}, ("1", str(GI), "0"), id="size-within-the-limit"),
        pytest.param({"pageCacheLimitSize": 0}, ("0", "0", None), id="size-zero"),
        pytest.param({}, (None, None, None), id="nothing-said"),
        pytest.param(
            {"pageCacheLimitSize": 512 * MI, "pageCacheEnable": False}, ("0", str(512 * MI), "0"), id="switched-off"
        ),
        pytest.param({"pageCacheEnable": True}, ("1", None, None), id="switched-on"),
        pytest.param({"pageCacheLimitPercent": 50}, ("1", str(512 * MI), "0"), id="percent"),
        pytest.param(
            {"pageCacheLimitPercent": 50, "pageCacheLimitSize": 256 * MI, "pageCacheReclaimSync": True},
            ("1", str(256 * MI), "1"),
            id="size-beats-percent",
        ),
    ],
)
def test_page_cache(config: dict[str, Any], expected: tuple[str | None, ...]) -> None:
    owner = ls(limits={MEMORY: GI}, annotations={A_MEMORY_QOS: msgspec.json.encode(config).decode()})
    own = values(view(owner), "kubepods/podls")
    assert (
        own.get(knob.PAGE_CACHE_ENABLE),
        own.get(knob.PAGE_CACHE_SIZE),
        own.get(knob.PAGE_CACHE_SYNC),
    ) == expected


def test_a_percent_of_no_limit_is_nothing() -> None:
    owner = ls(limits={}, annotations={A_MEMORY_QOS: '{"pageCacheLimitPercent":50}'})
    assert knob.PAGE_CACHE_SIZE not in values(view(owner), "kubepods/podls")


@pytest.mark.parametrize(
    ("other", "size"),
    [pytest.param({BATCH_MEMORY: GI}, str(GI), id="all-limited"), pytest.param({}, None, id="one-without")],
)
def test_be_pods_have_a_limit_when_all_containers_have(other: dict[str, int], size: str | None) -> None:
    boxes = (
        container("a", of="be", limits={BATCH_MEMORY: GI}),
        container("b", of="be", limits=other),
    )
    owner = pod("be", BE, annotations={A_MEMORY_QOS: '{"pageCacheLimitPercent":50}'}, containers=boxes)
    assert values(view(owner), owner.group).get(knob.PAGE_CACHE_SIZE) == size


def test_parents_come_before_children() -> None:
    plan = decide_memory_qos(view(ls()))
    assert [group for group, _ in writes(plan, knob.MEMORY_MIN)][-2:] == ["kubepods/podls", "kubepods/podls/c"]


@pytest.mark.parametrize(
    "changes",
    [pytest.param({"strategy": None}, id="no-node-slo"), pytest.param({"allocatable_bytes": None}, id="no-node")],
)
def test_nothing_is_done_about_the_unknown(changes: dict[str, Any]) -> None:
    assert decide_memory_qos(view(ls(), **changes)).effects == ()


def test_pods_that_are_over_are_left_alone() -> None:
    assert values(view(ls(phase="Succeeded")), "kubepods/podls") == {}


@settings(max_examples=80)
@given(
    request=st.integers(0, 4 * GI),
    extra=st.integers(0, 4 * GI),
    percent=st.integers(1, 100),
    allocatable=st.integers(1, 8 * GI),
)
def test_throttling_starts_between_request_and_limit(request: int, extra: int, percent: int, allocatable: int) -> None:
    config = msgspec.structs.replace(defaults.NO_MEMORY_QOS, throttling_percent=percent)
    high = memory_high_bytes(config, request, request + extra or None, allocatable, 4096)
    assert high is not None
    assert request - 4096 < high <= max(request + extra, allocatable)
    softer = msgspec.structs.replace(config, throttling_percent=min(percent + 1, 100))
    later = memory_high_bytes(softer, request, request + extra or None, allocatable, 4096)
    assert later is not None
    assert later >= high


def test_throttling_never_starts_below_the_request() -> None:
    config = msgspec.structs.replace(defaults.NO_MEMORY_QOS, throttling_percent=50)
    assert memory_high_bytes(config, 2 * GI, None, GI, 4096) == 2 * GI


def test_a_setting_that_is_absent_leaves_its_file() -> None:
    assert memory_high_bytes(MemoryQOS(), 1, 2, 3, 4096) is None
