"""Limits of shares: from the scheduler's annotation to the providers' environment, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.device_codecs import AllocatedDevice
from koord.gpu import isolation
from koord.gpu.isolation import NO_LIMITS, GpuLimits

MEBI = 1 << 20
RATIO, MEMORY, CORE = (f"koordinator.sh/gpu-{name}" for name in ("memory-ratio", "memory", "core"))


def card(**resources: str) -> AllocatedDevice:
    return AllocatedDevice(
        minor=1, resources={f"koordinator.sh/gpu-{k.replace('_', '-')}": v for k, v in resources.items()}
    )


@pytest.mark.parametrize(
    ("allocated", "wanted"),
    [
        pytest.param(
            card(memory_ratio="50", memory="8Gi", core="30"),
            GpuLimits(provider="MPS", memory_bytes=8 << 30, core_percent=30),
            id="share",
        ),
        pytest.param(
            card(memory_ratio="50", memory="8Gi"), GpuLimits(provider="MPS", memory_bytes=8 << 30), id="memory-alone"
        ),
        pytest.param(card(memory_ratio="100", memory="16Gi", core="100"), NO_LIMITS, id="whole"),
        pytest.param(card(memory_ratio="200"), NO_LIMITS, id="two-cards"),
    ],
)
def test_limits_of_what_the_scheduler_allocated(allocated: AllocatedDevice, wanted: GpuLimits) -> None:
    assert isolation.share_of(allocated, "MPS") == wanted


def test_amounts_that_are_missing_are_named() -> None:
    assert "gpu-memory-ratio, which MPS needs" in str(isolation.share_of(card(core="30"), "MPS"))
    assert "gpu-memory, which MPS needs" in str(isolation.share_of(card(memory_ratio="30"), "MPS"))


def test_the_annotation_alone_tells_the_share() -> None:
    amounts = {RATIO: "50", MEMORY: "8Gi", CORE: "30"}
    text = json.dumps({"gpu": [{"minor": 0, "resources": amounts}]})
    found = isolation.allocated_share(text)
    assert isinstance(found, GpuLimits)
    assert (found.memory_bytes, found.core_percent) == (8 << 30, 30)
    assert isolation.allocated_share('{"rdma":[{"minor":0}]}') == NO_LIMITS
    assert "device-allocated" in str(isolation.allocated_share("{"))


@given(st.integers(1, 1 << 20), st.none() | st.integers(1, 99))
def test_a_process_finds_the_limits_that_it_was_given(mebibytes: int, cores: int | None) -> None:
    limits = GpuLimits(memory_bytes=mebibytes * MEBI, core_percent=cores)
    by_mps = isolation.mps_env(limits, "/p")
    assert not isinstance(by_mps, str)
    for provider, env in (("MPS", by_mps), ("HAMi-core", isolation.hami_env(limits))):
        wanted = GpuLimits(provider=provider, memory_bytes=limits.memory_bytes, core_percent=cores)
        assert isolation.limits_in(dict(env)) == wanted
        assert isolation.limits_in(isolation.without_limits(dict(env))) == NO_LIMITS


@pytest.mark.parametrize(
    ("env", "memory", "cores"),
    [
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "10g"}, 10 << 30, None, id="suffix"),
        pytest.param(
            {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}, 2 << 30, None, id="numbered"
        ),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "0x10", "CUDA_DEVICE_SM_LIMIT": "30"}, 16, 30, id="hexadecimal"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "010"}, 8, None, id="octal"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_SM_LIMIT": "0"}, None, None, id="zero-is-none"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "much"}, None, None, id="no-number"),
        pytest.param({"CUDA_DEVICE_SM_LIMIT": "100"}, None, None, id="all-is-none"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=1G,0=512M"}, 512 * MEBI, None, id="of-several-cards"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=1G"}, None, None, id="of-another-card"),
        pytest.param({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3"}, None, 33, id="fraction"),
    ],
)
def test_limits_as_their_providers_read_them(env: dict[str, str], memory: int | None, cores: int | None) -> None:
    found = isolation.limits_in(env)
    assert (found.memory_bytes, found.core_percent) == (memory, cores)


def test_shares_that_mps_cannot_limit_are_refused() -> None:
    assert "less than MPS can limit" in str(isolation.mps_env(GpuLimits(memory_bytes=MEBI - 1), "/p"))
    assert "0 % of the cores" in str(isolation.mps_env(GpuLimits(core_percent=0), "/p"))
