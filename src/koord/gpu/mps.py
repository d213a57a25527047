"""CUDA's Multi-Process Service, one control daemon for each card: start it, ask it, end it.

A daemon serves the clients that have its pipe directory. One daemon for each card keeps a fatal error of one client,
which ends the others of its server, to that card.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from io import BufferedRandom
from pathlib import Path

import msgspec

from koord.gpu.isolation import pipe_directory

CONTROL = "nvidia-cuda-mps-control"
CALL_S = 10.0
_OPEN_TO_ALL = 0o755
LOG = "log"
_STARTED = "start.log"


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` is where pipes and logs lie as this process sees it; `command` is the control program."""

    folder: str = "/var/run/koordlet/mps"
    command: tuple[str, ...] = (CONTROL,)
    call_s: float = CALL_S


class MpsServers(msgspec.Struct, frozen=True):
    """The processes that serve a daemon's clients now; none before the first client."""

    pids: tuple[int, ...] = ()


class MpsControl:
    """MpsControl speaks with the daemons of a machine. Text that is returned says what failed."""

    def __init__(self, settings: MpsSettings) -> None:
        self._settings = settings

    async def start(self, minor: int, uuid: str) -> str | None:
        """Start the daemon of a card; it goes into the background by itself."""
        folder = Path(self._settings.folder, str(minor))
        # Into a file: a pipe would stay open for as long as the daemon runs.
        output = _make_folders(folder, pipe_directory(self._settings.folder, minor))
        if isinstance(output, str):
            return output
        with output:
            answer = await self._run(minor, ("-d",), uuid=uuid, output=output)
        return answer.problem or None

    async def servers(self, minor: int) -> MpsServers | str:
        """Return the servers of a daemon, which answers only where it works."""
        answer = await self._run(minor, (), "get_server_list\n")
        if answer.problem:
            return answer.problem
        lines = answer.text.split("\n") if answer.text else []
        if any(not line.strip().isdecimal() for line in lines):
            return answer.text  # the program also tells of a missing daemon here
        return MpsServers(tuple(map(int, lines)))

    async def quit(self, minor: int, *, wait_s: int = 5) -> str | None:
        """End the daemon of a card. Clients get so long to leave, then their server is ended."""
        answer = await self._run(minor, (), f"quit -t {wait_s}\n", extra_s=float(wait_s))
        return answer.problem or None

    def minors(self) -> tuple[int, ...]:
        """Return the cards that a daemon was started for."""
        try:
            names = os.listdir(self._settings.folder)
        except FileNotFoundError:
            return ()
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    async def _run(
        self,
        minor: int,
        arguments: tuple[str, ...],
        request: str = "",
        *,
        uuid: str = "",
        extra_s: float = 0.0,
        output: BufferedRandom | None = None,
    ) -> _Answer:
        folder = self._settings.folder
        environment = dict(os.environ)
        environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe_directory(folder, minor)
        environment["CUDA_MPS_LOG_DIRECTORY"] = f"{folder}/{minor}/{LOG}"
        if uuid:
            environment["CUDA_VISIBLE_DEVICES"] = uuid
        command = (*self._settings.command, *arguments)
        try:
            # A file and no pipe: the program may end before it has read, and a pipe that is closed then is an error
            # to some event loops.
            with tempfile.TemporaryFile() as asked:
                asked.write(request.encode())
                asked.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asked,
                    stdout=asyncio.subprocess.PIPE if output is None else output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # a signal to this process's group is not meant for the daemon
                )
        except OSError as error:
            return _Answer(problem=f"{command[0]}: {error.strerror}")
        limit_s = self._settings.call_s + extra_s
        try:
            async with asyncio.timeout(limit_s):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return _Answer(problem=f"{command[0]} did not answer within {limit_s:.0f} s")
        text = (said if output is None else _written(output)).decode("utf-8", "replace").strip()
        if process.returncode:
            return _Answer(problem=f"{command[0]} ended with status {process.returncode}: {text or 'no output'}")
        return _Answer(text=text)


async def end_daemons(control: MpsControl) -> list[str]:
    """End all daemons that were started on this machine; return what is wrong with those that stay."""
    left: list[str] = []
    for minor in control.minors():
        if isinstance(await control.servers(minor), MpsServers):  # one that does not answer is gone already
            problem = await control.quit(minor)
            if problem is not None:
                left.append(f"the MPS daemon of GPU {minor} still runs: {problem}")
    return left


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    problem: str = ""


def _make_folders(folder: Path, pipe: str) -> BufferedRandom | str:
    """Make the folders of a daemon; return the file for what its start prints, or what failed."""
    try:
        for made in (Path(pipe), folder / LOG):
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(_OPEN_TO_ALL)
        return open(Path(folder, _STARTED), "w+b")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _written(output: BufferedRandom) -> bytes:
    output.seek(0)
    return output.read()
