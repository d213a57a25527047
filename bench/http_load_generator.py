"""A light HTTP/1.1 load generator: requests encoded beforehand, so that the client is not what is measured."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Target:
    url: str
    token: str
    ssl: ssl.SSLContext

    def request(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
        host = urlsplit(self.url).netloc
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.token}\r\n"
        head += "Accept: application/json\r\nUser-Agent: bench/1\r\n"
        if body:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        return await asyncio.open_connection(parts.hostname, parts.port, ssl=self.ssl, limit=1 << 20)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status code and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at >= 0:
        return status, await reader.readexactly(int(lower[at + 15 : lower.index(b"\r\n", at)]))
    if b"chunked" not in lower:
        return status, b""
    parts: list[bytes] = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, b"".join(parts)


async def drive(target: Target, requests: Sequence[bytes], connections: int) -> dict[str, float]:
    """Send every request once over `connections` keep-alive connections; any answer above 299 is an error."""
    todo: Iterator[bytes] = iter(requests)
    latencies: list[float] = []
    errors = 0

    async def worker() -> None:
        nonlocal errors
        reader, writer = await target.connect()
        for request in todo:
            started = time.perf_counter()
            writer.write(request)
            status, _ = await read_answer(reader)
            latencies.append(time.perf_counter() - started)
            errors += status > 299
        writer.close()

    started = time.perf_counter()
    cpu = time.process_time()
    await asyncio.gather(*(worker() for _ in range(connections)))
    took = time.perf_counter() - started
    latencies.sort()
    return {
        "requests": len(latencies),
        "errors": errors,
        "per_second": len(latencies) / took,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
        "client_cpu_s": time.process_time() - cpu,
    }
