"""A program that writes as fast as it can while it leads: what a stop must not let out later."""

from __future__ import annotations

import asyncio
import importlib
import sys

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.kube.config import loader
from koord.kube.controller.process import ControllerProcess, ProcessSettings
from koord.kube.leader_election import LeaseConfig
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import Unreachable
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry

NAMESPACE, LEASE = "default", "writer"
DURATION_S, RENEW_DEADLINE_S, RETRY_S = 3, 1.5, 0.2
WRITERS = 200  # many more than there are connections


class WritingProgram:
    def __init__(self, process: ControllerProcess, prefix: str) -> None:
        self._client = process.client
        self._prefix = prefix

    async def start(self) -> None:
        pass

    async def on_synced(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def lead(self) -> None:
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(self._write(f"{self._prefix}-{number}"))

    async def _write(self, name: str) -> None:
        count = 0
        while True:
            body = {"metadata": {"name": f"{name}-{count}", "namespace": NAMESPACE}}
            try:
                answer = await self._client.dynamic.create(CONFIG_MAPS, body)
            except Unreachable:
                await asyncio.sleep(0.05)  # as a program that retries would: others must get their turn
                continue
            if isinstance(answer, ApiError) and not answer.already_exists:
                raise RuntimeError(answer.message)
            count += 1


async def run(kubeconfig: str, prefix: str) -> int:
    clock = WallClock()
    lease = LeaseConfig(
        name=LEASE,
        namespace=NAMESPACE,
        identity=prefix,
        duration_s=DURATION_S,
        renew_deadline_s=RENEW_DEADLINE_S,
        retry_s=RETRY_S,
    )
    settings = ProcessSettings(
        name="writer",
        user_agent="writer",
        connection=loader.load_connection({}, clock, path=kubeconfig),
        qps=1.0,
        burst=0,
        identity=prefix,
        lease=lease,
        addresses=(),
        registry=MetricRegistry(),
    )
    process = ControllerProcess(settings, clock)
    return await process.run(WritingProgram(process, prefix), asyncio.Event())


def main() -> int:
    kubeconfig, prefix, loop = sys.argv[1:]
    factory = importlib.import_module(loop).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run(kubeconfig, prefix))


if __name__ == "__main__":
    sys.exit(main())
