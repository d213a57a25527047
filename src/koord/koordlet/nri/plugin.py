"""This module keeps koordlet's NRI plugin connected for the process's life: one session at a time, with back-off.

A lock keeps a second koordlet of the node from connecting to the runtime.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from koord.host.io_error import OPEN, IoError
from koord.koordlet.nri.handler_call import NriHandler, OutcomeObserver
from koord.koordlet.nri.session import NriConnectError, NriSession, SynchronizeSummary, open_session
from koord.koordlet.nri.settings import NriSettings, backoff_delay_s
from koord.koordlet.problem_log import ProblemLog
from koord.kube.rate_limit import jitter
from koord.telemetry.clock import Clock
from koord.wire.nri_messages import ContainerUpdate
from koord.wire.ttrpc import UNAVAILABLE, TtrpcStatus


class LockHeld(msgspec.Struct, frozen=True):
    """LockHeld says that another process has the lock."""

    path: str
    pid: str  # as that process wrote it; empty when it wrote none

    def __str__(self) -> str:
        return f"another koordlet of this node (pid {self.pid or 'unknown'}) holds {self.path}"


class NriLock:
    """NriLock is a file lock, which the kernel frees however its process ends. The file stays."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> LockHeld | IoError | None:
        """Take the lock without waiting; returns why it was not taken."""
        if self._fd is not None:
            return None
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return IoError(self._path, OPEN, error.errno or 0, str(error))
        refusal = self._lock(fd)
        if refusal is None:
            self._fd = fd
        else:
            os.close(fd)
        return refusal

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lock(self, fd: int) -> LockHeld | IoError | None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return LockHeld(self._path, os.read(fd, 32).decode(errors="replace").strip())
        except OSError as error:
            return IoError(self._path, OPEN, error.errno or 0, str(error))
        with contextlib.suppress(OSError):  # a full disk: the lock counts, and the pid is for people alone
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        return None


LOCK_POLL_S = 5.0
SOCKET_POLL_S = 1.0  # how soon a socket that somebody makes anew is noticed
_LOG = logging.getLogger(__name__)


class NriStatus(msgspec.Struct, frozen=True, kw_only=True):
    """NriStatus is the state of the plugin.

    `since` is when `connected` changed last, in seconds since the epoch; None before the first connection. `attempts`
    counts the dials of this process. Runtime and versions are those of the last session.
    """

    connected: bool = False
    since: float | None = None
    runtime_name: str = ""
    runtime_version: str = ""
    nri_version: str = ""
    attempts: int = 0
    last_error: str = ""
    synchronized: SynchronizeSummary | None = None


class NriPlugin:
    """NriPlugin connects to the runtime's NRI socket, and connects again whenever a session ends.

    It waits for a socket that is not there, and for the lock of the node while another koordlet has it.
    """

    def __init__(
        self,
        settings: NriSettings,
        handler: NriHandler,
        clock: Clock,
        *,
        on_outcome: OutcomeObserver | None = None,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._clock = clock
        self._on_outcome = on_outcome
        self._rng = rng or Random()
        self._session: NriSession | None = None
        self._status = NriStatus()
        self._lock = NriLock(settings.lock_path)
        self._lock_problem = ProblemLog(_LOG, "NRI waits", "NRI: this koordlet has the node's lock")
        self._problem = ProblemLog(_LOG, f"NRI is not connected to {settings.socket_path}")

    def status(self) -> NriStatus:
        return self._status

    async def run(self) -> None:
        """Keep one session; ends only by cancellation, and then closes the session and frees the lock."""
        try:
            await self._acquire_lock()
            failures = 0
            while True:
                socket = _socket_identity(self._settings.socket_path)
                lived_s = await self._run_session()
                # A session that the runtime ends at once is a failure as well, or dials would follow without a pause.
                failures = 1 if lived_s >= self._settings.connect_timeout_s else failures + 1
                delay_s = jitter(backoff_delay_s(self._settings, failures), self._settings.backoff_jitter, self._rng)
                if await self._pause(delay_s, socket):
                    failures = 0
        finally:
            self._lock.release()

    async def update_containers(self, updates: Sequence[ContainerUpdate]) -> tuple[ContainerUpdate, ...] | TtrpcStatus:
        """Ask the runtime to update containers; returns those that it could not update, or why it was not asked."""
        if self._session is None:
            return TtrpcStatus(UNAVAILABLE, f"NRI is not connected: {self._status.last_error or 'not yet'}")
        return await self._session.update_containers(updates)

    async def _acquire_lock(self) -> None:
        while (refusal := self._lock.acquire()) is not None:
            self._lock_problem.fails(refusal)
            self._change(last_error=str(refusal))
            await self._clock.sleep(LOCK_POLL_S)
        self._lock_problem.works()
        self._change(last_error="")

    async def _run_session(self) -> float:
        """Run one session from its dial to its end; returns for how many seconds it was connected."""
        self._change(attempts=self._status.attempts + 1)
        opened = await open_session(self._settings, self._handler, self._clock, self._on_outcome)
        if isinstance(opened, NriConnectError):
            self._problem.fails(opened, opened.stage)
            self._change(last_error=str(opened))
            return 0.0
        began = self._clock.monotonic()
        self._begin(opened)
        try:
            why = await opened.wait_ended()
        finally:
            self._session = None
            await opened.close()
            self._change(connected=False, since=self._clock.time())
        self._problem.fails(why, "ended")
        self._change(last_error=why)
        return self._clock.monotonic() - began

    def _begin(self, session: NriSession) -> None:
        self._session = session
        runtime, found = session.runtime, session.synchronized
        self._problem.works()
        self._change(
            connected=True,
            since=self._clock.time(),
            runtime_name=runtime.runtime_name,
            runtime_version=runtime.runtime_version,
            nri_version=runtime.nri_version,
            last_error="",
            synchronized=found,
        )
        _LOG.info(
            "NRI: connected to %s %s with %d pods and %d containers",
            *(runtime.runtime_name, runtime.runtime_version),
            *((found.pods, found.containers) if found is not None else (0, 0)),
        )

    async def _pause(self, seconds: float, socket: tuple[int, ...] | None) -> bool:
        """Wait, but no longer than until the socket is another than `socket`; returns whether it is."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, SOCKET_POLL_S))
            now = _socket_identity(self._settings.socket_path)
            if now is not None and now != socket:
                return True
        return False

    def _change(self, **changes: object) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)


def _socket_identity(path: str) -> tuple[int, ...] | None:
    """Return what tells one socket file from the next of the same name; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:  # whatever it is, the dial says it
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
