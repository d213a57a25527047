"""This module runs `koord up` as a user does: a child process, its ready line, its kubeconfig, and a clean
end.
"""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tools.controlplane import ControlPlane


@dataclass
class KoordUpProcess:
    process: subprocess.Popen[str]
    url: str
    kubeconfig: Path
    dashboard: str | None = None  # its address with the token

    @property
    def token(self) -> str:
        token: str = yaml.safe_load(self.kubeconfig.read_text())["users"][0]["user"]["token"]
        return token

    def ssl(self) -> ssl.SSLContext:
        cluster = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]
        return ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


def start_koord_up(*args: str, kubeconfig: Path, cwd: Path | None = None) -> KoordUpProcess:
    """Start `koord up` and wait for the ready line; raise with its output if it ends before."""
    command = [sys.executable, "-m", "koord", "up", "--kubeconfig", str(kubeconfig), *args]
    if "--listen" not in args:
        command += ["--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if found := re.match(r"koord: ready (\S+) kubeconfig=(\S+)(?: dashboard=(\S+))?", line):
            return KoordUpProcess(process, found[1], Path(found[2]), found[3])
    raise RuntimeError(f"koord up ended with {process.wait()}: {process.stderr.read()}")


@contextlib.contextmanager
def koord_up(*args: str, cwd: Path | None = None) -> Iterator[KoordUpProcess]:
    with tempfile.TemporaryDirectory() as folder:
        running = start_koord_up(*args, kubeconfig=Path(folder) / "kubeconfig", cwd=cwd)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.stop()
            for stream in (running.process.stdout, running.process.stderr):
                if stream is not None:
                    stream.close()


class KoordUpPlane(ControlPlane):
    """`koord up` in the place of a real control plane, so that a real kubelet can join it."""

    def __init__(self, up: KoordUpProcess) -> None:
        super().__init__(up.kubeconfig.parent, up.url, up.token)
        self._up = up

    def ssl(self) -> ssl.SSLContext:
        return self._up.ssl()


@contextlib.contextmanager
def koord_up_plane(_api_server_flags: Sequence[str] = ()) -> Iterator[ControlPlane]:
    """Run `koord up` without simulated nodes; flags are a real API server's and mean nothing here."""
    with koord_up("--nodes", "0") as up:
        yield KoordUpPlane(up)
