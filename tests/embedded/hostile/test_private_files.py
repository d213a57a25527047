"""Nobody but the owner reads what a cluster keeps on disk: not now, not while it is made, not in an older folder."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from koord.embedded.apiserver.store.journal import JournalError, StoreJournal
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user of the machine can reach."""
    made = Path(tempfile.mkdtemp(prefix="koord-hostile-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


async def readable_by_nobody(folder: Path) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        "find", str(folder), "-readable", stdout=PIPE, stderr=DEVNULL, user=NOBODY, group=NOBODY, extra_groups=[]
    )
    out, _ = await process.communicate()
    return out.decode().split()


async def started(folder: Path) -> EmbeddedCluster:
    cluster = EmbeddedCluster(ClusterSettings(port=0, data_dir=folder))
    await cluster.start()
    (folder / "kubeconfig").touch(0o600)
    return cluster


@as_root
async def test_another_user_reads_nothing_of_a_running_cluster(place: Path, no_umask: None) -> None:
    cluster = await started(place / "data")
    try:
        names = {path.name for path in (place / "data").rglob("*")}
        assert {"koord.db", "koord.db-wal", "token", "ca.key", "apiserver.key", "lock"} <= names
        assert await readable_by_nobody(place) == [str(place)]
        (place / "data").chmod(0o755)  # the files are closed by themselves too
        assert await readable_by_nobody(place) == [str(place), str(place / "data")]
    finally:
        await cluster.stop()


async def test_modes_are_given_at_creation(tmp_path: Path, no_umask: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*args: object, **options: object) -> None:
        raise AssertionError("a mode that is changed later leaves a moment for others")

    monkeypatch.setattr(os, "chmod", too_late)
    monkeypatch.setattr(os, "fchmod", too_late)
    cluster = await started(tmp_path / "data")
    try:
        assert open_to_others(tmp_path / "data") == []
    finally:
        await cluster.stop()


async def test_an_older_folder_is_closed_to_others_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    store = ObjectStore(StoreJournal(folder))
    store.put("secrets", "a", "x", {"metadata": {}})
    await store.close()
    (folder / "pki").mkdir()
    (folder / "pki" / "ca.key").write_text("key")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING):
        await StoreJournal(folder).close()
    assert open_to_others(folder) == []
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"data directory {folder} was open to others (mode 0755)"
    ]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(JournalError, match="holds files that are not koord's"):
        StoreJournal(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@as_root
def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(JournalError, match=f"belongs to uid {NOBODY}"):
        StoreJournal(tmp_path)
