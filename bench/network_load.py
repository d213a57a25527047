"""Traffic of one pod, and the server outside that it goes to, as processes.

`sink` takes connections, sends back what comes on the second port and counts what comes on the first by its sender.
`ping` sends small messages at a rate and tells how long each took until it was back. `send` sends a number of bits a
second, or as fast as it can. Each says `ready` and starts with one line on standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter

BULK, ECHO = 7001, 7002
MESSAGE = bytes(64)
CHUNK = 64 << 10


def _echo(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(CHUNK):
            connection.sendall(data)


def _count(connection: socket.socket, sender: str, counts: Counter[str]) -> None:
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(CHUNK * 4):
            counts[sender] += len(data)


def _accept(server: socket.socket, counts: Counter[str] | None) -> None:
    while True:
        connection, address = server.accept()
        work, given = (_echo, (connection,)) if counts is None else (_count, (connection, address[0], counts))
        threading.Thread(target=work, args=given, daemon=True).start()


def sink() -> None:
    """Serve for ever; each line on standard input is answered by the counts so far and the time."""
    counts: Counter[str] = Counter()
    for port, counted in ((BULK, counts), (ECHO, None)):
        server = socket.create_server(("0.0.0.0", port), backlog=64)
        threading.Thread(target=_accept, args=(server, counted), daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({"at_s": time.monotonic(), "bytes": dict(counts)}), flush=True)


def ping(target: str, rate: float, seconds: float) -> list[float]:
    took: list[float] = []
    with socket.create_connection((target, ECHO)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("ready", flush=True)
        sys.stdin.readline()
        due, end = time.monotonic(), time.monotonic() + seconds
        while due < end:
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
            left = len(MESSAGE)
            start = time.monotonic()
            connection.sendall(MESSAGE)
            while left:
                data = connection.recv(left)
                if not data:
                    raise ConnectionError("the server has gone")
                left -= len(data)
            took.append(1000 * (time.monotonic() - start))
    return took


def _send(target: str, bits: float, end: float) -> None:
    with contextlib.suppress(ConnectionError), socket.create_connection((target, BULK)) as connection:
        data, due = bytes(CHUNK if not bits else 16 << 10), time.monotonic()
        while (now := time.monotonic()) < end:
            if bits and now < due:
                time.sleep(due - now)
            connection.sendall(data)
            # What could not be sent in time is not made up for: the service has no buffer for it.
            due = max(due + len(data) * 8 / bits, now - 0.05) if bits else now


def send(target: str, bits: float, seconds: float, connections: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=_send, args=(target, bits, end), daemon=True) for _ in range(connections)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(max(0.0, end + 1 - time.monotonic()))  # a thread may hang in a full socket


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("sink", "ping", "send"))
    parser.add_argument("--target", default="")
    parser.add_argument("--rate", type=float, default=0.0, help="messages, or bits, a second; 0 is as fast as it goes")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--connections", type=int, default=1)
    given = parser.parse_args()
    if given.work == "sink":
        sink()
    elif given.work == "ping":
        print(json.dumps(ping(given.target, given.rate, given.seconds)))
    else:
        send(given.target, given.rate, given.seconds, given.connections)


if __name__ == "__main__":
    main()
