"""The hook server and its registration, in the order in which no proxy calls a server that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.host.unix_socket import NotExclusive
from koord.koordlet.hook_server.handler import RuntimeHookHandler

if TYPE_CHECKING:
    from koord.koordlet.hook_server.server import HookServer
import json
from collections.abc import Collection, Sequence

from koord.wire.runtime_hook import RuntimeHookStage

FILE_NAME = "koordlet.json"
# The stages that have a decision; the others would be called for an echo.
STAGES = (
    RuntimeHookStage.PRE_RUN_POD_SANDBOX,
    RuntimeHookStage.PRE_CREATE_CONTAINER,
    RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES,
)


class HookRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """HookRegistration is what the file says. `endpoint` is the socket as the proxy sees it, outside koordlet's pod."""

    endpoint: str
    failure_policy: str
    stages: Sequence[RuntimeHookStage] = STAGES

    def text(self) -> str:
        """Return the file's text: JSON indented with tabs, without what is empty."""
        fields = {
            "remote-endpoint": self.endpoint,
            "failure-policy": self.failure_policy,
            "runtime-hooks": [stage.value for stage in self.stages],
        }
        return json.dumps({name: value for name, value in fields.items() if value}, indent="\t")


def enabled_stages(disabled: Collection[str]) -> list[RuntimeHookStage]:
    """Return the stages to register for, without those that a flag disables by name."""
    return [stage for stage in STAGES if stage.value not in disabled]


def write_registration(host: Host, folder: str, registration: HookRegistration) -> IoError | None:
    """Write the file, making the folder; a proxy sees the old file or the new one."""
    return host.replace_file(f"{folder}/{FILE_NAME}", registration.text())


def remove_registration(host: Host, folder: str) -> IoError | None:
    return host.remove_file(f"{folder}/{FILE_NAME}")


class HookServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The socket to serve and the registration. `registration.endpoint` is the same socket as the proxy sees it."""

    socket: str
    config_dir: str
    registration: HookRegistration


class RegisteredHookServer:
    """RegisteredHookServer serves from `start` to `stop` and is registered in between."""

    def __init__(self, host: Host, settings: HookServerSettings, server: HookServer) -> None:
        self._host = host
        self._settings = settings
        self._server = server

    @staticmethod
    async def start(
        host: Host, settings: HookServerSettings, handler: RuntimeHookHandler
    ) -> RegisteredHookServer | NotExclusive | IoError:
        from koord.koordlet.hook_server.server import HookServer  # gRPC, which only this server needs

        server = await HookServer.start(settings.socket, handler)
        if isinstance(server, NotExclusive):
            return server
        io_error = write_registration(host, settings.config_dir, settings.registration)
        if io_error is not None:
            await server.stop()
            return io_error
        return RegisteredHookServer(host, settings, server)

    async def stop(self) -> IoError | None:
        """Stop; return why the registration could not be removed."""
        io_error = remove_registration(self._host, self._settings.config_dir)
        await self._server.stop()
        return io_error
