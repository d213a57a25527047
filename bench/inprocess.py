"""This module measures creating pods through the in-process transport: what a simulation pays per object."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from bench.apiserver import pod
from koord.api.kubernetes import builtin_kinds
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.transport.api_error import unwrap

PODS = 20_000


def run() -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        cluster = EmbeddedCluster(ClusterSettings(http=False))
        await cluster.start()
        assert cluster.client is not None
        bodies = [msgspec.json.decode(pod(f"p-{i}")) for i in range(PODS)]
        cpu, wall = time.process_time(), time.perf_counter()
        for body in bodies:
            unwrap(await cluster.client.create(builtin_kinds.PODS, body, "default"))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        await cluster.stop()
        return {"pods": PODS, "creates_per_second": PODS / wall, "cpu_us_per_create": 1e6 * cpu / PODS}

    return asyncio.run(main())
