"""The tenants of the GPU benchmarks, on the driver of tests; and what is concluded of HAMi-core's limiter."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main
from bench.gpu_hami import conclusion
from bench.gpu_session import GIB, Tenant, run_tenants
from bench.gpu_shares import rate, share_percent
from koord.gpu.hami_region import HamiCard, HamiProcess, HamiRegion
from koord.host.io_error import unsupported
from tests.gpu.fake_driver import build_fake_driver

WHOLE_TERA = 12.8  # of the driver of tests: 100 multiprocessors with 128 lanes at 1 GHz


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(build_fake_driver(tmp_path_factory.mktemp("cuda")).parent)}


def cores(env: dict[str, str], percent: int) -> dict[str, str]:
    return {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}


def test_tenants_are_measured_side_by_side(env: dict[str, str]) -> None:
    small, large = run_tenants([Tenant(env=cores(env, 30)), Tenant(env=cores(env, 70), arguments=("--ex",))], 2.0)
    assert (small["sms_reached"], large["sms_reached"], large["sms_admitted"]) == (30, 70, 70)
    assert share_percent(small, WHOLE_TERA) == pytest.approx(30, rel=0.2)
    assert rate(large) > rate(small)
    assert len(small["by_second"]) == 2


def test_a_tenant_that_is_killed_is_told_and_the_other_ends(env: dict[str, str]) -> None:
    stays, goes = run_tenants([Tenant(env=env), Tenant(env=env, killed_after_s=0.5)], 1.5)
    assert rate(stays) > 0
    assert goes["error"] == "it ended with -9"


def test_memory_and_small_kernels(env: dict[str, str]) -> None:
    limited = {**env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"}
    memory = Tenant(kind="memory", env=limited, arguments=("--bytes", str(2 * GIB)))
    held, waited = run_tenants([memory, Tenant(kind="small", env=env)], 0.5)
    assert (held["allocated_bytes"], held["refused"]) == (2 * GIB, True)
    assert 0 < waited["p50_us"] <= waited["p99_us"] <= waited["max_us"]


def test_without_a_driver_the_reason_is_told(tmp_path: Path) -> None:
    (found,) = run_tenants([Tenant(env={"LD_LIBRARY_PATH": str(tmp_path)})], 0.5)
    if "error" not in found:
        pytest.skip("this machine has a card")
    assert "libcuda.so.1" in found["error"]


def region(host_pid: int) -> HamiRegion:
    card = HamiCard(uuid="GPU-0", memory_limit_bytes=0, core_limit_percent=30, used_bytes=0, core_percent=0)
    process = HamiProcess(pid=1, host_pid=host_pid, used_bytes=(0,), core_percent=(0,))
    return HamiRegion(cards=(card,), processes=(process,), limits_cores=True, blocked=False, last_kernel_s=0)


@pytest.mark.parametrize(
    ("found", "seen", "got", "said"),
    [
        pytest.param(region(7), [], 31.0, "the limit holds", id="holds"),
        pytest.param(unsupported("/r", "none"), [], 90.0, "made no region", id="no-region"),
        pytest.param(region(0), [], 90.0, "did not find its process on the host", id="no-host-process"),
        pytest.param(region(7), [], 90.0, "logged no round", id="no-watcher"),
        pytest.param(region(7), [(0, 5, 9, 30, 1)], 90.0, "told no use of cores", id="no-utilization"),
        pytest.param(region(7), [(99, -5, 9, 30, 1), (99, 5, 9, 30, 1)], 90.0, "did not run out", id="store-too-deep"),
        pytest.param(
            region(7), [(99, 5, 9, 30, 1), (99, -5, 9, 30, 1)], 90.0, "less than the limit asks", id="too-weak"
        ),
    ],
)
def test_each_part_of_the_limiter_is_told_apart(
    found: HamiRegion, seen: list[tuple[int, ...]], got: float, said: str
) -> None:
    assert said in conclusion(found, seen, got)


def test_a_group_of_benchmarks_has_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.__main__.BENCHES", {})
    assert main(["gpu"]) == 2, "its members are looked up"
