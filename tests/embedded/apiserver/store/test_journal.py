"""What was acknowledged is there after a restart, a failed disk is reported, and one directory has one owner."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.store.journal import JournalError, StoreJournal
from koord.embedded.apiserver.store.object_store import RESTART_REVISION_GAP, ObjectStore


def obj(value: int) -> dict[str, Any]:
    return {"metadata": {}, "value": value}


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "normal"])
async def test_everything_is_there_after_a_clean_restart(tmp_path: Path, durable: bool) -> None:
    store = ObjectStore(StoreJournal(tmp_path, durable=durable))
    for i in range(1200):
        store.put("pods", "a", f"x{i}", obj(i), labels={"n": str(i)})
    store.delete("pods", "a", "x7")
    last = store.revision
    await store.wait_durable(last)
    await store.close()

    again = ObjectStore(StoreJournal(tmp_path))
    pods = again.collection("pods")
    assert len(pods) == 1199
    assert pods.get("a", "x7") is None
    kept = pods.get("a", "x8")
    assert kept is not None
    assert kept.plain()["value"] == 8
    assert kept.labels == {"n": "8"}
    assert again.revision == last + RESTART_REVISION_GAP
    await again.close()


async def test_durable_answers_wait_for_the_disk(tmp_path: Path) -> None:
    store = ObjectStore(StoreJournal(tmp_path, durable=True))
    record = store.put("pods", "a", "x", obj(1))
    await store.wait_durable(record.revision)
    shutil.copytree(tmp_path, tmp_path / "crashed", ignore=shutil.ignore_patterns("crashed"))
    with contextlib.closing(sqlite3.connect(tmp_path / "crashed" / "koord.db")) as other:
        assert other.execute("SELECT count(*) FROM objects").fetchone() == (1,)
    await store.close()


async def test_a_second_owner_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    journal = StoreJournal(tmp_path)
    with pytest.raises(JournalError, match=r"in use by another koord \(pid \d+\)"):
        StoreJournal(tmp_path)
    await journal.close()
    await StoreJournal(tmp_path).close()


async def test_an_unusable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot use data directory"):
        StoreJournal(tmp_path / "file" / "sub")


async def test_a_file_that_is_not_a_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "koord.db").write_bytes(b"not a database, not even nearly" * 100)
    with pytest.raises(JournalError, match=r"koord\.db is damaged \(file is not a database\)"):
        StoreJournal(tmp_path)


async def test_a_format_from_the_future_is_refused(tmp_path: Path) -> None:
    await StoreJournal(tmp_path).close()
    with sqlite3.connect(tmp_path / "koord.db") as other:
        other.execute("UPDATE facts SET value = 99 WHERE name = 'format'")
    other.close()
    with pytest.raises(JournalError, match="has format 99"):
        StoreJournal(tmp_path)


async def test_a_failed_disk_refuses_further_writes(tmp_path: Path) -> None:
    journal = StoreJournal(tmp_path, durable=True)
    store = ObjectStore(journal)
    store.put("pods", "a", "x", obj(1))
    await store.wait_durable(store.revision)
    journal._db.execute("DROP TABLE objects")
    store.put("pods", "a", "y", obj(2))
    with pytest.raises(JournalError, match="cannot write"):
        await store.wait_durable(store.revision)
    with pytest.raises(JournalError, match="cannot write"):
        store.put("pods", "a", "z", obj(3))
    await store.close()
