"""A socket belongs to one server at a time, whoever the other one is and however the last one ended."""

from __future__ import annotations

import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.unix_socket import FileLock, NotExclusive, SocketClaim, claim_socket, has_listener


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="us-"))
    yield folder / "made" / "s.sock"
    shutil.rmtree(folder)


def claimed(path: Path) -> SocketClaim:
    claim = claim_socket(str(path))
    assert isinstance(claim, SocketClaim), claim
    return claim


def test_the_folder_is_made_and_the_second_is_told_the_first(path: Path) -> None:
    claim = claimed(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    second = claim_socket(str(path))
    assert isinstance(second, NotExclusive)
    assert "pid " in second.reason
    claim.release()
    claimed(path).release()


def test_a_stale_socket_is_removed(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    claim = claimed(path)
    assert not path.exists()
    claim.release()


def test_a_server_that_holds_no_lock_keeps_its_socket(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        refused = claim_socket(str(path))
        assert isinstance(refused, NotExclusive)
        assert "another server answers on it" in refused.reason
        assert has_listener(str(path))
    claimed(path).release()


def test_a_killed_holder_holds_nothing(path: Path) -> None:
    script = (
        "import sys, signal; from koord.host.unix_socket import claim_socket; "
        "claim = claim_socket(sys.argv[1]); print(type(claim).__name__, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "SocketClaim\n"
        refused = claim_socket(str(path))
        assert isinstance(refused, NotExclusive)
        assert f"pid {holder.pid}" in refused.reason
        holder.kill()
        holder.wait()
    claimed(path).release()


@pytest.mark.parametrize("name", ["x" * 120, "folder"])
def test_a_path_that_no_server_could_bind_is_refused(path: Path, name: str) -> None:
    (path.parent / "folder").mkdir(parents=True)
    assert isinstance(claim_socket(str(path.parent / name)), NotExclusive)


def test_a_lock_that_cannot_be_made_says_why(path: Path) -> None:
    path.parent.write_text("in the way")
    refused = FileLock.acquire(str(path))
    assert isinstance(refused, NotExclusive)
    assert "cannot lock" in refused.reason
