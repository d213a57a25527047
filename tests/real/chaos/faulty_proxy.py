"""A TCP proxy in a thread of its own: it passes bytes on, or refuses, delays or swallows them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Literal

Mode = Literal["pass", "refuse", "slow", "silent"]
_SLOW_S = 0.3  # the delay of each piece


class FaultyProxy:
    """`silent` takes bytes and passes none on, as a network that loses packets does; whoever waits must give up by
    itself.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode: Mode = "pass"
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._take, "127.0.0.1", 0), self._loop
        ).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def set_mode(self, mode: Mode) -> None:
        self._loop.call_soon_threadsafe(self._set_mode, mode)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            self._set_mode("refuse")
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "silent":
            self._goes_on.clear()
        else:
            self._goes_on.set()
        if mode == "refuse":
            for writer in self._ends:
                writer.transport.abort()
            self._ends.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refuse":
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # an end that is gone is what a cut looks like from here
            while data := await source.read(65536):
                if self._mode == "slow":
                    await asyncio.sleep(_SLOW_S)
                await self._goes_on.wait()
                sink.write(data)
                await sink.drain()
        self._ends.discard(sink)
        sink.close()
