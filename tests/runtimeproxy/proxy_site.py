"""A proxy in this process between a fake runtime and a fake hook server, each on a socket of its own."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

from koord.runtimeproxy.program import RuntimeProxy
from koord.runtimeproxy.settings import RuntimeProxySettings
from koord.telemetry.clock import WallClock
from koord.wire import raw_fields
from tests.runtimeproxy.fake_hook_server import FakeHookServer, register
from tests.runtimeproxy.fake_runtime import METHOD, OPTIONS, FakeRuntime


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = FakeRuntime()
        self.hooks = FakeHookServer()
        self.hook_socket = str(folder / "hook.sock")
        self.configs = folder / "hooks"
        self.settings = RuntimeProxySettings(
            endpoint=str(folder / "proxy.sock"),
            runtime_endpoint=str(folder / "runtime.sock"),
            hook_config_dir=str(self.configs),
            state_dir=str(folder / "state"),
            hook_timeout_s=10.0,  # so that a busy machine fails no test; those about time set their own
            address=None,
        )
        self.channel = grpc.aio.insecure_channel(f"unix://{self.settings.endpoint}", options=OPTIONS)
        self._proxy: RuntimeProxy | None = None

    @property
    def proxy(self) -> RuntimeProxy:
        assert self._proxy is not None
        return self._proxy

    async def start(self) -> None:
        found = await RuntimeProxy.start(self.settings, WallClock())
        assert isinstance(found, RuntimeProxy), found
        self._proxy = found

    async def stop(self) -> None:
        if self._proxy is not None:
            await self._proxy.stop()
            self._proxy = None

    def register(self, policy: str = "") -> None:
        """Register the hook server at once, without waiting for the folder to be looked at."""
        register(self.configs, self.hook_socket, policy)
        self.proxy.configs.scan()

    async def call(self, name: str, message: bytes, timeout: float | None = None) -> bytes:
        reply: bytes = await self.channel.unary_unary(METHOD(name))(message, timeout=timeout, wait_for_ready=True)
        return reply

    async def id_of(self, name: str, message: bytes) -> str:
        return raw_fields.string_of(await self.call(name, message), 1)
