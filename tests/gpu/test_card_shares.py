"""Shares of a real card under MPS and HAMi-core (`make test-gpu`). Elsewhere all of it is skipped with the reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bench import gpu_hami, gpu_shares
from bench.gpu_session import GIB, ROOT, MpsSession, Tenant, mps_session, run_tenants, why_no_mps
from koord.gpu.isolation import GpuLimits

pytestmark = pytest.mark.skipif(bool(why_no_mps()), reason=why_no_mps() or "there is a card")
needs_hami = pytest.mark.skipif(bool(gpu_hami.why_no_hami()), reason=gpu_hami.why_no_hami() or "HAMi-core is there")

SECONDS = 4.0
POINTS = 5.0  # that a tenant may be off its share


@pytest.fixture(scope="module")
def session() -> Iterator[MpsSession]:
    with mps_session() as made:
        yield made


@pytest.fixture(scope="module")
def whole(session: MpsSession) -> float:
    found = gpu_shares.alone(3.0, session.env())
    assert gpu_shares.rate(found) > 0, found
    return gpu_shares.rate(found)


def verify(env: Mapping[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `koord gpu verify` with this environment, as a container would."""
    done = subprocess.run(
        [sys.executable, "-m", "koord", "gpu", "verify", "-o", "json", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("percents", gpu_shares.SPLITS, ids=str)
def test_tenants_get_their_shares_while_all_are_busy(
    session: MpsSession, whole: float, percents: tuple[int, ...]
) -> None:
    found = gpu_shares.split(session, percents, whole, SECONDS)
    assert not found["errors"], found
    assert found["worst_error_points"] <= POINTS, found
    assert found["sum_percent"] >= 95, found


@pytest.mark.parametrize("limit_gib", [2, 10])
def test_memory_limits_hold(session: MpsSession, limit_gib: int) -> None:
    found = gpu_shares.memory(session, limit_gib)
    assert found["refused"], found
    assert found["over_percent"] <= 2, found
    assert found["allocated_gib"] >= limit_gib - 1, found


def test_a_killed_tenant_leaves_the_others_running(session: MpsSession, whole: float) -> None:
    found = gpu_shares.killed(session, whole, 6.0)
    assert not found["survivor_error"], found
    assert found["percent_after"] == pytest.approx(30, abs=POINTS), found
    assert found["new_tenant_percent"] > 0, found


def test_the_daemon_works_again_after_its_server_died(session: MpsSession) -> None:
    run_tenants([Tenant(env=session.env(cores=50))], 2.0)
    for pid in session.servers():
        os.kill(pid, signal.SIGKILL)
    found = gpu_shares.alone(2.0, session.env(cores=50))
    assert gpu_shares.rate(found) > 0, found


@pytest.mark.parametrize(("cores", "memory_gib"), [(30, 10), (50, 40)])
def test_verify_says_that_mps_holds(session: MpsSession, cores: int, memory_gib: int) -> None:
    status, report = verify(session.env(cores=cores, memory_bytes=memory_gib * GIB))
    assert (status, report["verdict"]) == (0, "holds"), report


def test_verify_says_that_nobody_limits() -> None:
    status, report = verify({}, "--memory", "10Gi", "--cores", "30")
    assert (status, report["verdict"]) == (1, "does not hold"), report
    assert {one["verdict"] for one in report["limits"]} == {"does not hold"}, report


@needs_hami
def test_hami_core_holds_memory() -> None:
    found = gpu_hami.memory(10)
    assert found["refused"], found
    assert found["over_percent"] <= 2, found
    assert found["region_limits"][0] == 10 * GIB, found


@needs_hami
def test_verify_measures_hami_core() -> None:
    """Memory must hold; whether cores do is what the benchmark looks into, and the report must agree with itself."""
    with tempfile.TemporaryDirectory(prefix="hami", dir="/tmp") as folder:
        limits = GpuLimits(memory_bytes=10 * GIB, core_percent=30)
        status, report = verify(gpu_hami.hami_environment(folder, limits), "--seconds", "6")
    rows = {one["resource"]: one for one in report["limits"]}
    assert rows["memory"]["verdict"] == "holds", report
    assert (rows["cores"]["verdict"] == "holds") == (rows["cores"]["measured"] <= 35), report
    assert status == (0 if rows["cores"]["verdict"] == "holds" else 1), report
