"""Ways to a real control plane: a client, and a wire that tests can cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tools.controlplane import ControlPlane


def connect(kubeconfig: Path) -> Client:
    clock = WallClock()
    return Client(HttpTransport(load_connection({}, clock, path=str(kubeconfig)), clock), clock=clock, burst=0)


class Wire:
    """Passes bytes between clients and a server until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.down = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        self._tasks |= {asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # an end that is gone is what a cut looks like from here
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Every connection breaks in the middle of whatever it carries."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def end(self) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def breakable(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[Client, Wire]]:
    """A client whose every byte goes over a wire that can be cut."""
    at = urlsplit(plane.url)
    wire = Wire(at.hostname or "", at.port or 0)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = json.loads(plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    kubeconfig = folder / "breakable.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    async with connect(kubeconfig) as client:
        yield client, wire
    server.close()
    await wire.end()
    await server.wait_closed()
