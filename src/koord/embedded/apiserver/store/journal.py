"""The journal keeps objects on disk: SQLite in WAL mode, written by one thread, with many writes to a commit.

The event loop hands changes over and goes on. In durable mode an answer waits until the commit that holds its change is
on disk; otherwise the operating system may lose the last moments in a power cut, never the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.store.collection import NO_STRINGS, StoreRecord

JOURNAL_FORMAT = 1
MAX_BATCH = 500
RETRY_S = 0.25  # between two tries to write what could not be written

# revision, resource, namespace, name, object (None: removed), labels and selectable fields as JSON
_Row = tuple[int, str, str, str, bytes | None, bytes]


log = logging.getLogger(__name__)


class _StoredObject(msgspec.Struct):
    metadata: msgspec.Raw


_decode_stored = msgspec.json.Decoder(_StoredObject).decode
_decode_selectable = msgspec.json.Decoder(tuple[dict[str, str], dict[str, str]]).decode


class JournalError(Exception):
    """Raised when the data directory cannot be opened, read or written."""


class StoreJournal:
    """Opens (or creates) a data directory and owns it until `close`; a second owner is refused."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._path = folder / "koord.db"
        self._durable = durable
        self._lock_fd = _lock_directory(folder)
        try:
            self._db = self._open()
        except JournalError:
            os.close(self._lock_fd)
            raise
        self._queue: deque[_Row] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failure: str | None = None
        self._durable_revision = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def _open(self) -> sqlite3.Connection:
        is_new = not self._path.exists()
        db: sqlite3.Connection | None = None
        try:
            if not is_new and not self._path.stat().st_size:  # SQLite would take it for a new database
                raise sqlite3.DatabaseError("the file is empty")
            data_directory.create_private(self._path)  # SQLite gives its other files the mode of this one
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._create_tables(db)
        except (sqlite3.Error, UnicodeDecodeError, OSError, JournalError) as error:
            if db is not None:
                db.close()
            if is_new:
                self._path.unlink(missing_ok=True)  # nothing is in it, and it would look damaged next time
            if isinstance(error, JournalError):
                raise
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise JournalError(f"cannot open {self._path}: {error}") from error
            raise self._damaged(error) from error
        return db

    def _damaged(self, error: object) -> JournalError:
        name = self._path.name
        return JournalError(
            f"{self._path} is damaged ({error}): put a copy of it back, or move {name}, {name}-wal and {name}-shm away "
            "to begin with an empty cluster"
        )

    def _create_tables(self, db: sqlite3.Connection) -> None:
        # Nobody else opens the file, so its index needs no shared memory: touching that on a full disk ends a process.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        db.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, revision INTEGER NOT NULL,"
            " object BLOB NOT NULL, selectable BLOB NOT NULL, PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID"
        )
        found = db.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()
        if found is None:
            db.execute("INSERT INTO facts VALUES ('format', ?)", (JOURNAL_FORMAT,))
        elif found[0] != JOURNAL_FORMAT:
            raise JournalError(
                f"{self._path} has format {found[0]}, this version writes {JOURNAL_FORMAT}; use another --data-dir"
            )

    def load(self) -> tuple[int, Mapping[str, list[StoreRecord]]]:
        """Return the last committed revision and all objects by resource. Call it once, before the first write."""
        found: dict[str, list[StoreRecord]] = {}
        try:
            rows = self._db.execute("SELECT resource, namespace, name, revision, object, selectable FROM objects")
            for resource, namespace, name, revision, raw, selectable in rows:
                labels, fields = _decode_selectable(selectable)
                _decode_stored(raw)  # a damaged object is found now, not by whoever reads it
                record = StoreRecord(namespace, name, revision, raw, labels or NO_STRINGS, fields or NO_STRINGS)
                found.setdefault(resource, []).append(record)
            last = self._db.execute("SELECT value FROM facts WHERE name = 'revision'").fetchone()
            revision = max((record.revision for records in found.values() for record in records), default=0)
            if (last is not None and not isinstance(last[0], int)) or revision > (last[0] if last else 0):
                raise ValueError("its revision is older than its objects")
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise self._damaged(error) from error
        return (last[0] if last else 0), found

    # From the event loop -----------------------------------------------------------------------------------------

    def raise_if_failed(self) -> None:
        """Raise JournalError while earlier writes cannot be stored: until they are, nothing more is taken."""
        if self._failure is not None:
            raise JournalError(self._failure)

    def write(self, resource: str, record: StoreRecord) -> None:
        selectable = msgspec.json.encode((record.labels, record.fields))
        self._append((record.revision, resource, record.namespace, record.name, record.raw, selectable))

    def remove(self, resource: str, record: StoreRecord) -> None:
        self._append((record.revision, resource, record.namespace, record.name, None, b""))

    def _append(self, row: _Row) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()
        self._queue.append(row)
        if not self._wake.is_set():
            self._wake.set()

    async def wait_durable(self, revision: int) -> None:
        self.raise_if_failed()
        if not self._durable or revision <= self._durable_revision or self._loop is None:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((revision, waiter))
        await waiter

    async def close(self) -> None:
        """Write what is queued, then release the directory."""
        if self._loop is not None:
            self._closing.set()
            self._wake.set()
            await asyncio.to_thread(self._thread.join)
            if self._queue:
                log.error("%d writes are lost: %s", len(self._queue), self._failure)
        self._db.close()
        os.close(self._lock_fd)

    def _on_durable(self, revision: int) -> None:
        self._durable_revision = revision
        while self._waiters and self._waiters[0][0] <= revision:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    # The failure is set and cleared on the event loop, so that what is written in one go succeeds or fails as one.

    def _on_failure(self, why: str) -> None:
        if self._failure is None:
            log.error("%s; writes are refused until it succeeds", why)
        self._failure = why
        while self._waiters:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_exception(JournalError(why))

    def _on_recovery(self) -> None:
        self._failure = None
        log.warning("writes to %s succeed again", self._path)

    # On the writer thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        failed = False
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [self._queue[at] for at in range(min(len(self._queue), MAX_BATCH))]
                try:
                    self._commit(batch)
                except sqlite3.Error as error:
                    failed = True
                    self._loop.call_soon_threadsafe(self._on_failure, f"cannot write {self._path}: {error}")
                    if self._closing.is_set():
                        return
                    self._closing.wait(RETRY_S)  # a full disk may have room again; the batch stays first in line
                    continue
                for _ in batch:
                    self._queue.popleft()
                if failed:
                    failed = False
                    self._loop.call_soon_threadsafe(self._on_recovery)
                if self._durable:
                    self._loop.call_soon_threadsafe(self._on_durable, batch[-1][0])
            if self._closing.is_set() and not self._queue:
                return

    def _commit(self, batch: list[_Row]) -> None:
        try:
            self._write(batch)
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _write(self, batch: list[_Row]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        for revision, resource, namespace, name, raw, selectable in batch:
            if raw is None:
                db.execute(
                    "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, namespace, name)
                )
            else:
                db.execute(
                    "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
                    (resource, namespace, name, revision, raw, selectable),
                )
        db.execute("INSERT OR REPLACE INTO facts VALUES ('revision', ?)", (batch[-1][0],))
        db.execute("COMMIT")


def _lock_directory(folder: Path) -> int:
    """Lock the data directory for this process; the kernel frees the lock however the process ends."""
    try:
        data_directory.prepare_data_directory(folder)
        fd = os.open(folder / data_directory.LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, data_directory.FILE_MODE)
    except data_directory.DataDirectoryError as error:
        raise JournalError(str(error)) from error
    except OSError as error:
        raise JournalError(f"cannot use data directory {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise JournalError(f"data directory {folder} is in use by another koord (pid {owner})") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
