"""This module kills `koord up --durable` while it is written to, restarts it, and checks every acknowledged
write.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import aiohttp

from tests.koord_up_process import KoordUpProcess, start_koord_up

WRITERS = 8


async def _write_until_killed(
    running: KoordUpProcess, round: int, acknowledged: dict[str, str], chance: random.Random
) -> None:
    """Write until the server dies; note only what was acknowledged."""
    path = f"{running.url}/api/v1/namespaces/default/configmaps"
    headers = {"Authorization": f"Bearer {running.token}"}
    connector = aiohttp.TCPConnector(ssl=running.ssl())

    async def writer(session: aiohttp.ClientSession, number: int) -> None:
        for i in range(10_000):
            name, step = f"r{round}-w{number}-{i // 3}", i % 3
            if step == 2 and i % 2 == 0:
                continue  # every second object stays
            value = "" if step == 2 else str(i)
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}}
            method, to = (("POST", path), ("PUT", f"{path}/{name}"), ("DELETE", f"{path}/{name}"))[step]
            try:
                answer = await session.request(method, to, json=body if value else None)
                await answer.read()
            except (aiohttp.ClientError, ConnectionError):
                acknowledged[name] = f"{acknowledged.get(name, '')}|?{value}"  # it may or may not have happened
                return
            assert answer.status in (200, 201), answer.status
            acknowledged[name] = value

    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        writers = [asyncio.create_task(writer(session, n)) for n in range(WRITERS)]
        await asyncio.sleep(chance.uniform(0.02, 0.4))
        running.process.send_signal(signal.SIGKILL)
        await asyncio.gather(*writers)


async def _read_config_maps(running: KoordUpProcess) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {running.token}"}
    connector = aiohttp.TCPConnector(ssl=running.ssl())
    async with (
        aiohttp.ClientSession(headers=headers, connector=connector) as session,
        session.get(f"{running.url}/api/v1/namespaces/default/configmaps") as answer,
    ):
        items = (await answer.json())["items"]
        return {item["metadata"]["name"]: item["data"]["v"] for item in items}


def _allowed_values(noted: str) -> set[str]:
    """Return the values that an object may have after the restart; "" stands for absent."""
    *known, last = noted.split("|?")
    return {noted} if not known else {known[0], last}


def kill_rounds(folder: Path, rounds: int, seed: int, *, durable: bool = True) -> int:
    """Play `rounds` kills on one data directory; returns how many writes were checked.

    Durable: all that was acknowledged is there. Otherwise the last moments may be missing, but the server starts and
    every object it shows is one that was written.
    """
    chance = random.Random(seed)
    acknowledged: dict[str, str] = {}
    checked = 0
    args = ["--nodes", "0", "--components", "", "--data-dir", str(folder / "data")]
    if durable:
        args.append("--durable")
    running = start_koord_up(*args, kubeconfig=folder / "kubeconfig")
    for round in range(rounds):
        asyncio.run(_write_until_killed(running, round, acknowledged, chance))
        _reap(running)
        running = start_koord_up(*args, kubeconfig=folder / "kubeconfig")
        found = asyncio.run(_read_config_maps(running))
        for name, noted in acknowledged.items():
            after = found.get(name, "")
            if durable:
                assert after in _allowed_values(noted), f"round {round}: {name} is {after!r}, was {noted!r}"
            checked += 1
        unknown = set(found) - set(acknowledged) - {"kube-root-ca.crt"}
        assert not unknown, f"round {round}: nobody wrote {sorted(unknown)[:5]}"
        acknowledged = {name: found.get(name, "") for name in acknowledged}
    assert running.stop() == 0
    _reap(running)
    return checked


def _reap(running: KoordUpProcess) -> None:
    running.process.wait(timeout=20)
    for stream in (running.process.stdout, running.process.stderr):
        if stream is not None:
            stream.close()
