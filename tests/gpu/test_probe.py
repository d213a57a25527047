"""The probe on the driver of tests: what it measures under limits that hold, that are ignored, and that are absent."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koord.gpu import probe
from koord.gpu.driver import FMA_PER_ROUND, CudaCard, CudaDriver, CudaError, probe_ptx
from koord.gpu.isolation import GpuLimits, limits_in
from koord.gpu.probe import VerifyReport, judge

GIB = 1 << 30
MPS = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT": str(4 * GIB), "CUDA_DEVICE_SM_LIMIT": "30"}


@pytest.fixture
def card(fake_driver: Path) -> CudaCard:
    driver = CudaDriver.open(str(fake_driver))
    assert isinstance(driver, CudaDriver)
    opened = CudaCard.open(driver)
    assert isinstance(opened, CudaCard)
    return opened


def verify(fake_driver: Path, env: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `koord gpu verify` as a container would."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        [sys.executable, "-m", "koord", "gpu", "verify", "-o", "json", "--seconds", "0.3", *arguments],
        env={**inherited, "LD_LIBRARY_PATH": str(fake_driver.parent), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def judged(
    fake_driver: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], whole_card: float = 0.0
) -> VerifyReport:
    """Measure in this process: the driver of tests reads the environment when it is called."""
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    granted = limits_in(env)
    found = probe.measure(granted, os.environ, seconds=0.3, whole_card_fma_per_s=whole_card, library=str(fake_driver))
    return judge(granted, granted, str(found) if isinstance(found, CudaError) else found)


def test_a_container_measures_its_own_limits(fake_driver: Path) -> None:
    status, report = verify(fake_driver, MPS)
    assert (status, report["verdict"], report["provider"]) == (0, "holds", "MPS")
    assert {one["resource"]: one["granted"] for one in report["limits"]} == {"memory": 4 * GIB, "cores": 30}


def test_a_share_that_was_asked_for_and_not_granted(fake_driver: Path) -> None:
    amounts = {"koordinator.sh/gpu-memory-ratio": "25", "koordinator.sh/gpu-memory": "4Gi"}
    allocated = json.dumps({"gpu": [{"minor": 0, "resources": amounts}]})
    status, report = verify(fake_driver, {"KOORD_DEVICE_ALLOCATED": allocated})
    assert status == 1
    (memory,) = report["limits"]
    assert (memory["asked"], memory["granted"]) == (4 * GIB, None)
    assert "no provider limits this process" in memory["reason"]


@pytest.mark.parametrize(("env", "provider", "sms"), [(MPS, "MPS", 30), (HAMI, "HAMi-core", 100)])
def test_limits_that_hold(
    fake_driver: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], provider: str, sms: int
) -> None:
    report = judged(fake_driver, monkeypatch, env)
    assert (report.verdict, report.provider, report.sms_reached) == ("holds", provider, sms)
    found = {one.resource: one.measured for one in report.limits}
    assert found["memory"] == 4 * GIB
    assert found["cores"] == pytest.approx(30, abs=5)


def test_limits_that_nobody_enforces(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(fake_driver, monkeypatch, {**HAMI, "FAKE_CUDA_IGNORES": "cores,memory"})
    assert {one.resource: one.verdict for one in report.limits} == dict.fromkeys(("memory", "cores"), "does not hold")


def test_a_driver_that_does_not_start_cannot_tell(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(fake_driver, monkeypatch, {**MPS, "FAKE_CUDA_INIT": "999"})
    assert report.verdict == "cannot tell"
    assert "cuInit: CUDA_ERROR_UNKNOWN (999)" in report.limits[0].reason


def test_a_rate_that_is_given_counts(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(fake_driver, monkeypatch, MPS, whole_card=2.56e13)  # twice what the driver of tests does
    assert report.limits[1].measured == pytest.approx(15, abs=3)
    assert "less than 30 %" in report.limits[1].reason


def test_memory_is_given_back(card: CudaCard) -> None:
    before = card.memory()
    assert not isinstance(before, CudaError)
    found = probe.measure_memory(card, 20 * GIB)
    assert not isinstance(found, CudaError)
    assert found.refused
    assert found.allocated_bytes == pytest.approx(before.free_bytes, abs=2 * probe.MEBI)
    assert card.memory() == before
    below = probe.measure_memory(card, 4 * GIB)
    assert not isinstance(below, CudaError)
    assert (below.refused, below.allocated_bytes) == (False, below.tried_bytes)
    assert below.tried_bytes <= 4 * GIB * 1.05


def test_both_ways_of_launching_count_the_same(fake_driver: Path) -> None:
    driver = CudaDriver.open(str(fake_driver))
    assert isinstance(driver, CudaDriver)
    for ex_launch in (False, True):
        opened = CudaCard.open(driver, ex_launch=ex_launch)
        assert isinstance(opened, CudaCard)
        load = probe.KernelLoad(opened, blocks=8, rounds=1)
        assert load.start(in_flight=2) is None
        assert load.turn() is None
        counted = load.finish()
        assert not isinstance(counted, CudaError)
        assert counted[0][0] == 3, "two launches were in flight, and one came for the first"


def test_all_multiprocessors_are_counted_by_a_process_without_limits(fake_driver: Path) -> None:
    assert probe.count_all_sms({**os.environ, **MPS}, str(fake_driver)) == 100
    refused = probe.count_all_sms({**os.environ, "FAKE_CUDA_INIT": "999"}, str(fake_driver))
    assert str(refused) == "count: cuInit: CUDA_ERROR_UNKNOWN (999)"


def test_without_a_driver() -> None:
    found = CudaDriver.open("libnone.so.1")
    assert isinstance(found, CudaError)
    assert (found.call, found.code) == ("load", 0)
    nothing = probe.measure(GpuLimits(core_percent=30), os.environ, library="libnone.so.1")
    assert isinstance(nothing, CudaError)
    assert probe.busy_percent("libnone.so.1") is None


def test_a_function_that_the_driver_lacks(fake_driver: Path) -> None:
    driver = CudaDriver(ctypes.CDLL(str(fake_driver)))
    assert str(driver.call("cuNothing")) == "cuNothing: the driver has no such function"


@pytest.mark.parametrize(("capability", "target"), [((9, 0), 75), ((7, 0), 70), ((12, 1), 75), ((6, 1), 61)])
def test_the_kernel_is_text_for_any_card(capability: tuple[int, int], target: int) -> None:
    text = probe_ptx(capability)
    assert f".target sm_{target}" in text
    assert text.count("fma.rn.f32") == FMA_PER_ROUND
    assert text.count("{") == text.count("}") == 1
