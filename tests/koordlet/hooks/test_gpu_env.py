"""The environment of containers with GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.koordlet.hooks import gpu_env
from koord.koordlet.hooks.hook import ContainerContext, HookPlan, HookSettings, Mount, NodeRules
from tests.koordlet.hooks.hook_builders import a_container, a_pod

LIBRARY = "/usr/local/vgpu/libvgpu.so"
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
MPS = {"koordinator.sh/gpu-isolation-provider": "MPS"}
MPS_RULES = NodeRules(gates=frozenset({"MPSControlDaemon"}), mps_daemons={0: "", 1: "", 2: "it died"})
HALF = {
    "koordinator.sh/gpu-core": "50",
    "koordinator.sh/gpu-memory": "16Gi",
    "koordinator.sh/gpu-memory-ratio": "50",
}
LIBRARY_MOUNTS = (
    Mount(source=LIBRARY, destination=LIBRARY),
    Mount(source="/tmp/vgpulock", destination="/tmp/vgpulock"),
)


def with_cards(
    *cards: dict[str, Any],
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **changes: Any,
) -> ContainerContext:
    noted = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": list(cards)}), **(annotations or {})}
    return a_container(a_pod("LS", annotations=noted, labels=labels or {}), **changes)


def card(minor: int, **resources: str) -> dict[str, Any]:
    return {"minor": minor, "resources": resources}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HALF.items() if not key.endswith(name)}


@pytest.mark.parametrize(
    ("cards", "wanted"),
    [
        pytest.param([card(0), card(1)], "0,1", id="two"),
        pytest.param([card(3, **HALF), card(1)], "3,1", id="in-their-order"),
    ],
)
def test_a_container_sees_its_cards(cards: list[dict[str, Any]], wanted: str) -> None:
    plan = gpu_env.decide_container(with_cards(*cards), NodeRules())
    assert plan == HookPlan(env=(("NVIDIA_VISIBLE_DEVICES", wanted),))


def test_a_part_of_a_card_is_limited_by_the_library() -> None:
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=HAMI), NodeRules())
    assert dict(plan.env) == {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": LIBRARY,
    }
    assert plan.mounts == LIBRARY_MOUNTS
    assert {(one.type, one.options) for one in plan.mounts} == {("bind", ("rbind",))}


def test_cores_without_a_share_are_not_limited() -> None:
    plan = gpu_env.decide_container(with_cards(card(1, **without("gpu-core")), labels=HAMI), NodeRules())
    assert set(dict(plan.env)) == {"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "LD_PRELOAD"}


def test_a_whole_card_needs_no_library() -> None:
    whole = HALF | {"koordinator.sh/gpu-memory-ratio": "100"}
    plan = gpu_env.decide_container(with_cards(card(1, **whole), labels=HAMI), NodeRules())
    assert plan == HookPlan(env=(("NVIDIA_VISIBLE_DEVICES", "1"),))


def test_the_monitor_finds_a_cache_of_the_container_alone() -> None:
    rules = NodeRules(gates=frozenset({"HamiCoreVGPUMonitor"}))
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=HAMI), rules)
    assert dict(plan.env)["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/u_c.cache"
    own = Mount(source="/usr/local/vgpu/containers/u_c", destination="/usr/local/vgpu", fresh_directory=True)
    assert plan.mounts == (own, *LIBRARY_MOUNTS), "the library is mounted inside of the directory, so after it"


def test_the_library_may_lie_elsewhere() -> None:
    rules = NodeRules(settings=HookSettings(hami_library="/opt/v/lib.so"), gates=frozenset({"HamiCoreVGPUMonitor"}))
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=HAMI), rules)
    assert dict(plan.env)["LD_PRELOAD"] == "/opt/v/lib.so"
    assert [one.destination for one in plan.mounts] == ["/opt/v", "/opt/v/lib.so", "/tmp/vgpulock"]


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        pytest.param("/a.so", f"{LIBRARY}:/a.so", id="one"),
        pytest.param("/a.so /b.so", f"{LIBRARY}:/a.so:/b.so", id="two"),
        pytest.param(f"/a.so:{LIBRARY}", f"{LIBRARY}:/a.so", id="already-there"),
    ],
)
def test_libraries_that_the_container_preloads_stay(present: str, wanted: str) -> None:
    container = with_cards(card(1, **HALF), labels=HAMI, env={"LD_PRELOAD": present})
    assert dict(gpu_env.decide_container(container, NodeRules()).env)["LD_PRELOAD"] == wanted


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        pytest.param(without("gpu-memory-ratio"), "koordinator.sh/gpu-memory-ratio", id="no-ratio"),
        pytest.param(without("gpu-memory"), "koordinator.sh/gpu-memory,", id="no-memory"),
        pytest.param(HALF | {"koordinator.sh/gpu-memory": "0"}, "koordinator.sh/gpu-memory,", id="no-limit"),
    ],
)
def test_without_its_limits_a_container_gets_nothing(resources: dict[str, str], said: str) -> None:
    plan = gpu_env.decide_container(with_cards(card(1, **resources), labels=HAMI), NodeRules())
    assert said in plan.problem
    assert plan == HookPlan(problem=plan.problem)


def test_no_cards_and_no_json() -> None:
    assert gpu_env.decide_container(with_cards(), NodeRules()) == HookPlan()
    assert gpu_env.decide_container(a_container(a_pod("LS")), NodeRules()) == HookPlan()
    assert gpu_env.decide_container(with_cards(card(0), is_sandbox=True), NodeRules()) == HookPlan()
    broken = a_pod("LS", annotations={"scheduling.koordinator.sh/device-allocated": "{"})
    plan = gpu_env.decide_container(a_container(broken), NodeRules())
    assert "device-allocated" in plan.problem
    assert plan == HookPlan(problem=plan.problem)


def test_a_name_that_leads_elsewhere_makes_no_directory() -> None:
    rules = NodeRules(gates=frozenset({"HamiCoreVGPUMonitor"}))
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=HAMI, name="../c"), rules)
    assert plan.problem
    assert plan == HookPlan(problem=plan.problem)


def test_a_part_of_a_card_is_limited_by_its_daemon() -> None:
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=MPS), MPS_RULES)
    pipe = "/var/run/koordlet/mps/1/pipe"
    assert dict(plan.env) == {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=16384M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }
    assert plan.mounts == (
        Mount(source=pipe, destination=pipe),
        Mount(source="/dev/shm", destination="/dev/shm"),
    )


def test_a_whole_card_is_no_client() -> None:
    whole = HALF | {"koordinator.sh/gpu-memory-ratio": "100"}
    plan = gpu_env.decide_container(with_cards(card(1, **whole), labels=MPS), MPS_RULES)
    assert plan == HookPlan(env=(("NVIDIA_VISIBLE_DEVICES", "1"),))


@pytest.mark.parametrize(
    ("container", "rules", "said"),
    [
        pytest.param(with_cards(card(1, **HALF), labels=MPS), NodeRules(), "MPSControlDaemon is off", id="gate"),
        pytest.param(with_cards(card(2, **HALF), labels=MPS), MPS_RULES, "it died", id="daemon-died"),
        pytest.param(with_cards(card(3, **HALF), labels=MPS), MPS_RULES, "not started yet", id="no-daemon-yet"),
        pytest.param(
            with_cards(card(0, **HALF), card(1, **HALF), labels=MPS), MPS_RULES, "shares of 2 GPUs", id="two-cards"
        ),
        pytest.param(
            with_cards(card(1, **without("gpu-memory")), labels=MPS), MPS_RULES, "gpu-memory,", id="no-memory"
        ),
        pytest.param(
            with_cards(card(1, **HALF), labels=MPS, env={"LD_PRELOAD": f"/a.so {LIBRARY}"}),
            MPS_RULES,
            "exclude each other",
            id="preloads-the-other",
        ),
        pytest.param(
            with_cards(card(1, **HALF), labels=HAMI, env={"CUDA_MPS_PIPE_DIRECTORY": "/p"}),
            NodeRules(),
            "exclude each other",
            id="client-of-the-other",
        ),
        pytest.param(
            with_cards(card(1, **HALF), labels=HAMI, annotations={"koordinator.sh/gpu-core-policy": "hard"}),
            NodeRules(),
            "'hard' is none of default, force, disable",
            id="policy",
        ),
    ],
)
def test_a_container_that_cannot_be_limited_gets_no_card(
    container: ContainerContext, rules: NodeRules, said: str
) -> None:
    plan = gpu_env.decide_container(container, rules)
    assert said in plan.problem
    assert plan == HookPlan(problem=plan.problem)


def test_the_policy_of_cores_reaches_the_library() -> None:
    container = with_cards(card(1, **HALF), labels=HAMI, annotations={"koordinator.sh/gpu-core-policy": "force"})
    assert dict(gpu_env.decide_container(container, NodeRules()).env)["GPU_CORE_UTILIZATION_POLICY"] == "force"


def test_an_unknown_provider_limits_nothing() -> None:
    label = {"koordinator.sh/gpu-isolation-provider": "other"}
    plan = gpu_env.decide_container(with_cards(card(1, **HALF), labels=label), NodeRules())
    assert plan == HookPlan(env=(("NVIDIA_VISIBLE_DEVICES", "1"),))
