"""Scheduler, manager and descheduler on a real API server under faults: nothing is given twice and nothing is lost.

Minutes of it run with the real tier; KOORD_CHAOS_MINUTES makes it hours (`make soak` sets it), KOORD_SEED another
history.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.real.chaos.chaos_cluster import ChaosCluster, chaos_cluster, install
from tests.simulation.workload import Workload
from tools import assets, controlplane

pytestmark = pytest.mark.real

MINUTES = float(os.environ.get("KOORD_CHAOS_MINUTES", "1.5"))
SEED = int(os.environ.get("KOORD_SEED", "1"))
REST_S = 120.0
RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results" / "chaos.json"


async def _work(workload: Workload, chance: random.Random) -> None:
    while True:
        await workload.step()
        await asyncio.sleep(chance.choice((0.02, 0.1, 0.5)))


async def _rest(cluster: ChaosCluster) -> tuple[float, list[str]]:
    """Return after how long everything was right again, and what was not."""
    began = time.monotonic()
    while True:
        cluster.revive()
        wrong = cluster.observer.wrong_at_rest()
        took = time.monotonic() - began
        if not wrong or took > REST_S:
            return took, wrong
        await asyncio.sleep(1)


async def _history(cluster: ChaosCluster) -> dict[str, Any]:
    workload = Workload(cluster.client, cluster.observer, random.Random(SEED))
    await workload.begin()
    working = asyncio.create_task(_work(workload, random.Random(SEED + 1)))
    end = time.monotonic() + 60 * MINUTES
    try:
        while time.monotonic() < end:
            if working.done():
                working.result()
            await cluster.fault()
            await asyncio.sleep(cluster.chance.uniform(0.5, 4.0))
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    recovery_s, wrong = await _rest(cluster)
    await workload.clear()
    began = time.monotonic()
    await workload.create_pod("probe", {"cpu": "1"}, {}, priorityClassName="low")
    observer = cluster.observer
    while not observer.is_bound("probe") and time.monotonic() < began + REST_S:  # noqa: ASYNC110 - the cluster is polled
        await asyncio.sleep(0.1)
    return {
        "seed": SEED,
        "minutes": MINUTES,
        "events": observer.events,
        "bindings": observer.bindings,
        "faults": dict(cluster.faults),
        "starts": {replica.name: replica.starts for replica in cluster.replicas},
        "recovery_s": round(recovery_s, 1),
        "probe_bound_s": round(time.monotonic() - began, 2),
        "violations": [*observer.violations, *wrong],
        "probe_bound": observer.is_bound("probe"),
    }


def test_nothing_is_given_twice_and_nothing_is_lost(tmp_path: Path) -> None:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")

    async def main(plane: controlplane.ControlPlane) -> dict[str, Any]:
        async with chaos_cluster(plane, tmp_path, SEED) as cluster:
            return await _history(cluster)

    with controlplane.running() as plane:  # of its own: it is killed in the middle of things
        install(plane, tmp_path)
        figures = asyncio.run(main(plane))
    if "KOORD_CHAOS_MINUTES" in os.environ:
        RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    assert figures["violations"] == [], figures
    assert figures["probe_bound"], figures
    assert figures["bindings"] > 30, figures
    assert sum(figures["faults"].values()) >= 10, figures
