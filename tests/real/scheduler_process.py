"""koord-scheduler as a child process beside a real control plane."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tools.controlplane import free_port

READY_S = 60
NO_ELECTION: Mapping[str, Any] = {"leaderElect": False}
# Short, so that a test sees a lease run out; a leader has as much time to renew as one on a busy machine needs.
QUICK_ELECTION: Mapping[str, Any] = {
    "leaderElect": True,
    "leaseDuration": "4s",
    "renewDeadline": "3s",
    "retryPeriod": "500ms",
}


class SchedulerProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self._port = port

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def ready(self) -> bool:
        try:
            return self.get("/readyz") == "ok"
        except (urllib.error.URLError, OSError):
            return False

    def leads(self) -> bool:
        return self.metric(r"leader_election_master_status\{.*\}") == 1

    def metric(self, pattern: str) -> float:
        """The sum of the samples that match."""
        found = re.findall(rf"^{pattern} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(float(value) for value in found)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"koord-scheduler is not ready ({self.process.poll()}):\n{self.words()}")
            time.sleep(0.05)

    def words(self) -> str:
        return self.log.read_text()[-4000:]


@contextmanager
def running(
    kubeconfig: Path,
    folder: Path,
    *,
    name: str = "scheduler",
    config: Mapping[str, Any] | None = None,
    election: Mapping[str, Any] = NO_ELECTION,
    qps: float = 1000,
) -> Iterator[SchedulerProcess]:
    """Until the block ends. It is ready when the block begins. `config` is all that a file says beside these."""
    whole = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler"}],
        **(config or {}),
        "leaderElection": dict(election),
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": max(1, int(qps))},
    }
    file, log, port = folder / f"{name}.yaml", folder / f"{name}.log", free_port()
    file.write_text(yaml.safe_dump(whole))
    command = [sys.executable, "-m", "koord.cli.daemons.koord_scheduler", f"--config={file}"]
    command += ["--address=127.0.0.1", f"--port={port}", "--secure-port=0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    scheduler = SchedulerProcess(process, log, port)
    try:
        scheduler.wait_ready()
        yield scheduler
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=30)
