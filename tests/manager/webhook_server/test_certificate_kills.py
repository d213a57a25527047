"""A koord-manager that is killed in a rotation leaves a server that starts again, and callers that trust it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from koord.kube.client.typed_client import Client
from koord.manager.webhook_server.cert_rotator import OVERLAP_S, SETTLE_S
from koord.manager.webhook_server.cert_store import (
    FILE_NAMES,
    DirectoryCertStore,
    ensure_certificate,
    find_problem,
    generate,
    material_from_files,
    read_cert_dir,
    write_cert_dir,
)
from koord.telemetry.clock import ManualClock, WallClock
from tests.manager.webhook_server.replica_fixture import (
    CutTransport,
    Killed,
    Replica,
    add_pod,
    bundle,
    cluster_context,
    trusting,
)
from tests.manager.webhook_server.test_certificate_rotation import replace_authority

DNS = "127.0.0.1"
WRITES = 8  # more than one rotation makes


async def rotate_until_killed(writes: int) -> bool:
    """Play a rotation on two replicas, one of which dies; return whether it did."""
    transport = CutTransport(1000)
    async with cluster_context(transport) as context:
        clock = ManualClock(context.clock.time())
        steady = msgspec.structs.replace(context, clock=clock)
        mortal = msgspec.structs.replace(steady, client=Client(transport, clock=clock, qps=0, burst=0))
        for name in ("dies", "lives"):
            await add_pod(context.client, name)
        dies, lives = Replica(mortal, "dies"), Replica(steady, "lives")
        await dies.look()
        await lives.look()
        await replace_authority(context.client, "deleted")
        transport.left, killed = writes, False
        try:
            for wait_s in (0.0, SETTLE_S, 1.0, OVERLAP_S, 1.0):
                clock.advance(wait_s)
                await dies.look()
        except Killed:
            killed = True
        again = Replica(steady, "dies")
        await again.server.start("127.0.0.1", 0)
        await lives.server.start("127.0.0.1", 0)
        try:
            for wait_s in (0.0, SETTLE_S, 1.0, OVERLAP_S, 1.0):
                for replica in (again, lives):
                    await replica.look()
                    trust = trusting(await bundle(context.client))
                    assert (await lives.call(trust))[0] == 200, "the other one is trusted at every moment"
                    assert (await again.call(trust))[0] == 200, "and so is the new process, from its first look on"
                clock.advance(wait_s)
            assert again.identity.material == lives.identity.material
            assert await bundle(context.client) == again.identity.material.ca_cert
        finally:
            await again.server.stop()
            await lives.server.stop()
        return killed


@pytest.mark.parametrize("writes", range(WRITES))
async def test_a_kill_after_any_write_leaves_callers_that_trust_what_is_served(writes: int) -> None:
    await rotate_until_killed(writes)


async def test_the_kills_are_in_the_middle() -> None:
    killed = [await rotate_until_killed(writes) for writes in (0, WRITES)]
    assert killed == [True, False], "the last number of writes must be enough for a whole rotation"


CHILD = """
import os, sys
from pathlib import Path
from koord.manager.webhook_server.cert_store import write_cert_dir

left = int(sys.argv[2])
folder = Path(sys.argv[1])
names = sys.argv[4:]
files = {name: (Path(sys.argv[3]) / name).read_bytes() for name in names}
STEPS = ("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree")

def at_step(event, args):
    global left
    if event in STEPS and args and str(folder) in str(args[0]) + str(args[1:2]):
        if left == 0:
            os._exit(9)  # as kill -9 does: nothing is flushed, nothing is undone
        left -= 1

sys.addaudithook(at_step)
write_cert_dir(folder, files)
"""


def test_a_kill_at_any_step_leaves_a_folder_that_serves(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    folder, given = tmp_path / "certs", tmp_path / "given"
    given.mkdir()
    old, new = generate(DNS, now), generate(DNS, now)
    for name, content in new.files().items():
        (given / name).write_bytes(content)
    steps = 0
    while True:
        write_cert_dir(folder, old.files())
        command = [sys.executable, "-c", CHILD, str(folder), str(steps), str(given), *FILE_NAMES]
        ended = subprocess.run(command, env={**os.environ}, check=False, timeout=60).returncode
        found = material_from_files(read_cert_dir(folder))
        assert found in (old, new), f"after {steps} steps the files are of two generations"
        assert find_problem(found, DNS, now) == ""
        kept = asyncio.run(ensure_certificate(DirectoryCertStore(folder), DNS, WallClock()))
        assert kept.material == found, "the next process serves what it finds"
        if ended == 0:
            break
        assert ended == 9
        steps += 1
    assert steps > 10
    write_cert_dir(folder, old.files())
    write_cert_dir(folder, new.files())
    left = {path.name for path in folder.iterdir()} - set(FILE_NAMES) - {"..data"}
    assert len(left) == 2, f"what killed processes left behind is swept: {left}"
