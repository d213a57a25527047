"""A full disk refuses writes until there is room again; a damaged file is one error that says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.data_directory import DataDirectoryError
from koord.embedded.apiserver.store.journal import JournalError, StoreJournal
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from tests.embedded.apiserver.rest_harness import NS, Api, config_map, started

PATIENCE_S = 20


def obj(number: int) -> dict[str, Any]:
    return {"metadata": {"labels": {"n": str(number)}}, "value": "x" * 200, "n": number}


async def filled(folder: Path, count: int = 300) -> None:
    store = ObjectStore(StoreJournal(folder))
    for number in range(count):
        store.put("pods", "a", f"x{number}", obj(number), labels={"n": str(number)})
    await store.close()


# Disk full ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def until(api: Api, name: str, *, is_refused: bool) -> None:
    while await refused(api, name) is not is_refused:  # noqa: ASYNC110 - the disk tells nobody
        await asyncio.sleep(0.01)


async def refused(api: Api, name: str) -> bool:
    status, said = await api.post(f"{NS}/configmaps", config_map(name, {"k": "x" * 50_000}))
    assert status in (201, 500), said
    if status == 500:
        assert "koord.db" in said["message"]
    return status == 500


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "normal"])
async def test_writes_succeed_again_when_there_is_room(small_disk: Path, durable: bool) -> None:
    folder = small_disk / "data"
    api = await started(ObjectStore(StoreJournal(folder, durable=durable)))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (600 << 10))
    async with asyncio.timeout(PATIENCE_S):
        number = 0
        while not await refused(api, f"c{number}"):
            number += 1
            await asyncio.sleep(0.01)
        assert (await api.get("/readyz"))[0] == 500
        assert (await api.get(f"{NS}/configmaps"))[0] == 200  # reading goes on
        ballast.unlink()
        await until(api, "again", is_refused=False)
        assert (await api.get("/readyz"))[0] == 200
    _, listed = await api.get(f"{NS}/configmaps")
    names = {item["metadata"]["name"] for item in listed["items"]}
    await api.server.close()
    after = ObjectStore(StoreJournal(folder))
    assert {record.name for record in after.collection("configmaps").scan()} == names
    assert {f"c{n}" for n in range(number)} <= names
    await after.close()


async def test_events_expire_after_a_disk_that_failed(tmp_path: Path) -> None:
    journal = StoreJournal(tmp_path / "data", durable=True)
    api = await started(ObjectStore(journal))
    retention = api.server._retention_task
    assert retention is not None
    retention.cancel()  # it moves this clock while it waits, and would expire the Event before the disk fails
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    assert (await api.post(f"{NS}/events", event))[0] == 201
    journal._db.execute("ALTER TABLE objects RENAME TO away")
    async with asyncio.timeout(PATIENCE_S):
        assert await refused(api, "c")
        api.clock.advance(4000)
        with pytest.raises(JournalError):
            api.server.expire_events()  # it does not forget what it could not delete
        journal._db.execute("ALTER TABLE away RENAME TO objects")
        await until(api, "again", is_refused=False)
        api.server.expire_events()
        assert (await api.get(f"{NS}/events/e"))[0] == 404
    await api.server.close()


async def test_a_start_on_a_full_disk_leaves_nothing_that_hinders_the_next(small_disk: Path) -> None:
    folder = small_disk / "data"
    folder.mkdir(0o700)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
    cluster = EmbeddedCluster(ClusterSettings(port=0, data_dir=folder))
    with pytest.raises((JournalError, DataDirectoryError), match=r"data"):
        await cluster.start()
    ballast.unlink()
    async with running(folder):
        pass


# Damaged files -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[EmbeddedCluster]:
    cluster = EmbeddedCluster(ClusterSettings(port=0, data_dir=folder))
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def loaded(folder: Path) -> int | str:
    """Return how many objects a store finds, or the one error that it raises."""
    try:
        journal = StoreJournal(folder)
    except JournalError as error:
        return str(error)
    try:
        return len(ObjectStore(journal).collection("pods"))
    except JournalError as error:
        return str(error)
    finally:
        await journal.close()


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.7, 0.99])
async def test_a_truncated_database_is_named(tmp_path: Path, kept: float) -> None:
    await filled(tmp_path)
    path = tmp_path / "koord.db"
    os.truncate(path, int(path.stat().st_size * kept))
    said = await loaded(tmp_path)
    assert isinstance(said, str)
    assert said.startswith(f"{path} is damaged (")
    assert said.endswith("move koord.db, koord.db-wal and koord.db-shm away to begin with an empty cluster")
    for name in ("koord.db", "koord.db-wal", "koord.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    assert await loaded(tmp_path) == 0


async def test_any_damaged_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    await filled(tmp_path / "whole")
    chance = random.Random(4)
    whole = (tmp_path / "whole" / "koord.db").read_bytes()
    for number in range(60):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (folder / "koord.db").write_bytes(damaged)
        said = await loaded(folder)
        assert isinstance(said, int) or "koord.db" in said


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE facts SET value = NULL WHERE name = 'revision'",
        "UPDATE facts SET value = 'many' WHERE name = 'revision'",
        "UPDATE facts SET value = 3 WHERE name = 'revision'",
        "UPDATE objects SET object = x'7b' WHERE name = 'x7'",
        "UPDATE objects SET selectable = x'5b5d' WHERE name = 'x7'",
        "UPDATE objects SET selectable = 5 WHERE name = 'x7'",
        "UPDATE objects SET revision = 'r' WHERE name = 'x7'",
    ],
)
async def test_rows_that_make_no_sense(tmp_path: Path, change: str) -> None:
    await filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "koord.db")) as other:
        try:
            other.execute(change)
            other.commit()
        except sqlite3.IntegrityError:
            return  # the schema does not allow it
    said = await loaded(tmp_path)
    assert isinstance(said, str)
    assert "is damaged" in said


@pytest.mark.parametrize("content", [b"", b" \n", b"short", b"\xff\xfe", b"two tokens of which none is one"])
async def test_a_damaged_token_is_refused_rather_than_believed(tmp_path: Path, content: bytes) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(DataDirectoryError, match="token"):
        async with running(tmp_path):
            pass
    (tmp_path / "token").unlink()
    async with running(tmp_path) as cluster:
        assert len(cluster.token) > 20


@pytest.mark.parametrize("name", ["ca.crt", "apiserver.crt", "apiserver.key"])
@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n"], ids=["empty", "half"])
async def test_damaged_certificates_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    async with running(tmp_path):
        pass
    (tmp_path / "pki" / name).write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"the certificates in .*pki are damaged"):
        async with running(tmp_path):
            pass
    shutil.rmtree(tmp_path / "pki")
    async with running(tmp_path):
        pass
