"""The hook server and its registration, in the order in which no proxy calls a server that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.host.unix_socket import NotExclusive
from koord.koordlet.hook_server.handler import RuntimeHookHandler
from koord.koordlet.hook_server.registration import HookRegistration, remove_registration, write_registration

if TYPE_CHECKING:
    from koord.koordlet.hook_server.server import HookServer


class HookServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to serve and how to register. `registration.endpoint` is the same socket as the proxy sees it."""

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
