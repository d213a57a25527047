"""Serve an API server in a process of its own, with few files to open: `python -m ... FILES`.

It prints the port and the token, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from koord.cli.daemons.lifecycle import event_loop_factory
from koord.embedded.apiserver.http_server import ConnectionLimits, HttpServer
from koord.embedded.apiserver.server import ApiServer


async def serve(max_connections: int) -> None:
    server = ApiServer(tokens={"secret": "tester"})
    await server.start()
    http_server = HttpServer(server, ConnectionLimits(header_timeout_s=60.0, max_connections=max_connections))
    url = await http_server.start("127.0.0.1", 0, None)
    sys.stdout.write(url.rpartition(":")[2] + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await http_server.close()
    await server.close()


if __name__ == "__main__":
    files, most = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve(most))
