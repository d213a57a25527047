"""A TCP proxy in front of the API server that can cut, delay and refuse connections."""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK_BYTES = 1 << 16


class TcpProxy:
    def __init__(self, host: str, port: int) -> None:
        """Forward to this address."""
        self._upstream = (host, port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0  # before each piece that is passed on
        self.refuses = False
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection."""
        for task in self._connections:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            back, upstream = await asyncio.open_connection(*self._upstream)
            await asyncio.gather(self._pump(reader, upstream), self._pump(back, writer))
        except (OSError, asyncio.CancelledError):  # the end of a connection is all that happens here
            pass
        finally:
            self._connections.discard(task)
            for one in (writer, upstream):
                if one is not None:
                    one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof() if writer.can_write_eof() else None
