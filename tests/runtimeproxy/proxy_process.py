"""koord-runtime-proxy as a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio

from koord.runtimeproxy.backend import CHANNEL_OPTIONS
from koord.runtimeproxy.settings import RuntimeProxySettings
from tests.runtimeproxy.fake_runtime import METHOD

COMMAND = (sys.executable, "-m", "koord.cli.daemons.koord_runtime_proxy")


def arguments(settings: RuntimeProxySettings, *more: str) -> list[str]:
    return [
        *COMMAND,
        f"--koord-runtimeproxy-endpoint={settings.endpoint}",
        f"--remote-runtime-service-endpoint={settings.runtime_endpoint}",
        f"--runtime-hooks-config-path={settings.hook_config_dir}",
        f"--state-dir={settings.state_dir}",
        f"--runtime-hook-timeout={settings.hook_timeout_s:g}s",
        *(more or ("--addr=0",)),
    ]


class ProxyProcess:
    """A running proxy. Its log is in a file, so that no pipe fills."""

    def __init__(self, settings: RuntimeProxySettings, folder: Path, *more: str) -> None:
        self.settings = settings
        self.log = folder / "proxy.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(arguments(settings, *more), stdout=log, stderr=log)
        self.channel = grpc.aio.insecure_channel(f"unix://{settings.endpoint}", options=CHANNEL_OPTIONS)

    async def answers(self) -> None:
        """Wait until a call passes to the runtime."""
        while True:
            assert self.process.poll() is None, self.log.read_text()
            call = self.channel.unary_unary(METHOD("Version"))(b"", timeout=5.0)
            if await call.code() is grpc.StatusCode.OK:
                return
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def end(self) -> int:
        """Ask it to end, and return its exit code."""
        await self.channel.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)
