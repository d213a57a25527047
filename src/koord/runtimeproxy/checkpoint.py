"""The records of pods and containers, in memory and on disk: a file for each, replaced atomically and synced.

A call is answered only after its record is on disk, so that a restart at any moment finds it. A disk that refuses
costs the record on disk, not the pod: memory goes on, and the log and a metric tell.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from koord.api.model import decode_text
from koord.telemetry.metrics import Counter
from koord.values.json_text import MalformedText
from koord.wire.runtime_hook import ContainerResourceHookRequest, PodSandboxHookRequest

_LOG = logging.getLogger(__name__)
_PODS, _CONTAINERS, _SUFFIX, _PARTIAL = "pods", "containers", ".json", ".partial"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class ContainerRecord(msgspec.Struct, frozen=True):
    sandbox_id: str
    request: ContainerResourceHookRequest


class Checkpoint:
    """Checkpoint keeps the hook request of each pod sandbox and container by its id."""

    def __init__(self, folder: Path, errors: Counter) -> None:
        self._folder = folder
        self._errors = errors
        # One thread, so that two records of one container reach the disk in the order in which they were made.
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.pods: dict[str, PodSandboxHookRequest] = {}
        self.containers: dict[str, ContainerRecord] = {}

    def load(self) -> None:
        """Read all records. One that is damaged is removed: the runtime still lists what it was about."""
        for kind in (_PODS, _CONTAINERS):
            folder = self._folder / kind
            try:
                folder.mkdir(parents=True, exist_ok=True)
                paths = sorted(folder.iterdir())
            except OSError as error:
                self._report(f"cannot read {folder}", error)
                continue
            for path in paths:
                try:
                    self._load_file(kind, path)
                except OSError as error:
                    self._report(f"cannot read {path}", error)

    async def put_pod(self, id: str, pod: PodSandboxHookRequest) -> None:
        self.pods[id] = pod
        await self._write(_PODS, id, pod)

    async def put_container(self, id: str, record: ContainerRecord) -> None:
        self.containers[id] = record
        await self._write(_CONTAINERS, id, record)

    async def remove_pod(self, id: str) -> None:
        if self.pods.pop(id, None) is not None:
            await self._remove(_PODS, id)

    async def remove_container(self, id: str) -> None:
        if self.containers.pop(id, None) is not None:
            await self._remove(_CONTAINERS, id)

    async def remove_containers_of(self, sandbox_id: str) -> None:
        for id in [id for id, record in self.containers.items() if record.sandbox_id == sandbox_id]:
            await self.remove_container(id)

    async def retain(self, pods: Collection[str], containers: Collection[str]) -> None:
        """Remove the records of all others: the runtime has them no more."""
        for id in [id for id in self.pods if id not in pods]:
            await self.remove_pod(id)
        for id in [id for id in self.containers if id not in containers]:
            await self.remove_container(id)

    def close(self) -> None:
        self._disk.shutdown(wait=True)

    def _load_file(self, kind: str, path: Path) -> None:
        if path.name.endswith(_PARTIAL):
            path.unlink()  # of a process that was killed while it wrote
            return
        id = path.name.removesuffix(_SUFFIX)
        text = path.read_bytes()
        record: PodSandboxHookRequest | ContainerRecord | MalformedText
        record = decode_text(text, PodSandboxHookRequest) if kind == _PODS else decode_text(text, ContainerRecord)
        if isinstance(record, PodSandboxHookRequest):
            self.pods[id] = record
        elif isinstance(record, ContainerRecord):
            self.containers[id] = record
        else:
            _LOG.warning("removing the damaged record %s, which %s", path, record)
            path.unlink()

    async def _write(self, kind: str, id: str, record: msgspec.Struct) -> None:
        await self._on_disk(kind, id, msgspec.json.encode(record))

    async def _remove(self, kind: str, id: str) -> None:
        await self._on_disk(kind, id, None)

    async def _on_disk(self, kind: str, id: str, data: bytes | None) -> None:
        if not _FILE_NAME.fullmatch(id):
            self._errors.inc()
            _LOG.warning("the id %r is no file name: its record is kept in memory only", id)
            return
        path = self._folder / kind / f"{id}{_SUFFIX}"
        work = asyncio.get_running_loop().run_in_executor(self._disk, _replace, path, data)
        work.add_done_callback(lambda done: self._report(f"cannot keep {path} current", done.result()))
        await asyncio.shield(work)  # a call that is cancelled has happened nevertheless

    def _report(self, what: str, error: OSError | None) -> None:
        if error is not None:
            self._errors.inc()
            _LOG.warning("%s: %s", what, error.strerror or error)


def _replace(path: Path, data: bytes | None) -> OSError | None:
    """Replace or remove a file so that it is there or gone after a power failure; return why that failed."""
    try:
        _replace_synced(path, data)
    except OSError as error:
        return error
    return None


def _replace_synced(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        partial = path.with_name(f"{path.name}{_PARTIAL}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)  # it would take room from the next record
            raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
