"""koord-manager as a child process beside a real control plane, under an account of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.real.kubectl import kubectl
from tools.controlplane import ControlPlane, free_port

READY_S = 60


class ManagerProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, webhook: int, metrics: int, health: int) -> None:
        self.process = process
        self.log = log
        self.webhook_port = webhook
        self._metrics = metrics
        self._health = health

    def metrics(self) -> str:
        return self._get(self._metrics, "/metrics")

    def ready(self) -> bool:
        try:
            return self._get(self._health, "/readyz") == "ok"
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"koord-manager is not ready ({self.process.poll()}):\n{self.log.read_text()[-4000:]}"
                )
            time.sleep(0.1)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=30)

    def _get(self, port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text


def account(plane: ControlPlane, folder: Path, name: str, namespace: str) -> Path:
    """A kubeconfig with a token of the service account, as a pod would have."""
    said = kubectl(plane.kubeconfig, "create", "token", name, "-n", namespace)
    assert said.code == 0, said.err
    config = json.loads(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": said.out.strip()}
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@contextmanager
def running(
    kubeconfig: Path, folder: Path, *args: str, environ: Mapping[str, str] | None = None, webhook_port: int = 0
) -> Iterator[ManagerProcess]:
    """Until the block ends. It is ready when the block begins."""
    webhook, metrics, health = webhook_port or free_port(), free_port(), free_port()
    command = [sys.executable, "-m", "koord.cli.daemons.koord_manager"]
    command += [f"--metrics-addr=127.0.0.1:{metrics}", f"--health-probe-addr=127.0.0.1:{health}"]
    env = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "WEBHOOK_PORT": str(webhook),
        "WEBHOOK_CERT_DIR": str(folder / "certs"),
        "POD_NAMESPACE": "koordinator-system",
        **(environ or {}),
    }
    log = folder / f"manager-{webhook}-{metrics}.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *args], env=env, stdout=out, stderr=subprocess.STDOUT)
    manager = ManagerProcess(process, log, webhook, metrics, health)
    try:
        manager.wait_ready()
        yield manager
    finally:
        manager.stop()
