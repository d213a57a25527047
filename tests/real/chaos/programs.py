"""The programs of koord as supervised child processes: one that ends is started again, as a kubelet would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from koord.api.config.scheduler import configuration
from koord.api.model import to_dict
from koord.manager.feature_gates import shipped_manager_gates
from tests.real.chaos.faulty_proxy import FaultyProxy
from tools.controlplane import ControlPlane, free_port

# Short, so that minutes see many take-overs; longer than a busy machine lets a renewal wait.
LEASE_S, RENEW_S, RETRY_S = 6, 4, 1
ELECTION = {"leaseDuration": f"{LEASE_S}s", "renewDeadline": f"{RENEW_S}s", "retryPeriod": f"{RETRY_S}s"}
# No limit holds a job up: what is tried here is how jobs end, not how many run.
MIGRATION = {
    "maxConcurrentReconciles": 2,
    "skipCheckExpectedReplicas": True,
    "maxMigratingPerNode": 100,
    "maxMigratingPerWorkload": "100%",
    "maxUnavailablePerWorkload": "100%",
    "objectLimiters": {"workload": {"duration": "1s", "maxMigrating": "100%"}},
    "evictQPS": 100,
    "evictBurst": 100,
}


class ChildProgram:
    """One replica of a program, with a network of its own to the API server."""

    def __init__(self, name: str, plane: ControlPlane, folder: Path) -> None:
        at = urlsplit(plane.url)
        self.name = name
        self.network = FaultyProxy(at.hostname or "", at.port or 0)
        self.starts = 0
        self._folder = folder
        self._environ: dict[str, str] = {}
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        config = json.loads(plane.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.network.port}"
        self.kubeconfig = folder / f"{name}.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)
        self.metrics_port = free_port()

    def run(self, module: str, *args: str, environ: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", module, *args]
        self._environ = {**os.environ, **(environ or {})}
        self._start()

    def supervise(self) -> bool:
        """Start it again if it has ended; return whether it had."""
        if self._process is None or self._process.poll() is None:
            return False
        self._start()
        return True

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def leads(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=2) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        return any(
            line.startswith("leader_election_master_status") and line.endswith(" 1") for line in text.splitlines()
        )

    def close(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(timeout=30)
        self.network.close()

    def log_tail(self) -> str:
        file = self._folder / f"{self.name}.log"
        return file.read_text(errors="replace")[-3000:] if file.exists() else ""

    def _start(self) -> None:
        self.starts += 1
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )


def start_programs(plane: ControlPlane, folder: Path, webhook_port: int) -> list[ChildProgram]:
    """Return two schedulers, a manager and a descheduler, in this order."""
    programs = [ChildProgram(name, plane, folder) for name in ("scheduler-0", "scheduler-1", "manager", "descheduler")]
    *schedulers, manager, descheduler = programs
    for scheduler in schedulers:
        config = to_dict(configuration.configuration())
        config["leaderElection"] |= ELECTION
        config["clientConnection"] = {"kubeconfig": str(scheduler.kubeconfig), "qps": 300, "burst": 300}
        file = folder / f"{scheduler.name}.yaml"
        file.write_text(yaml.safe_dump(config))
        address = ("--address=127.0.0.1", f"--port={scheduler.metrics_port}", "--secure-port=0")
        scheduler.run("koord.cli.daemons.koord_scheduler", f"--config={file}", *address)
    manager.run(
        "koord.cli.daemons.koord_manager",
        f"--metrics-addr=127.0.0.1:{manager.metrics_port}",
        "--health-probe-addr=0",
        f"--feature-gates={shipped_manager_gates('')}",
        environ={
            "KUBECONFIG": str(manager.kubeconfig),
            "WEBHOOK_HOST": "127.0.0.1",
            "WEBHOOK_PORT": str(webhook_port),
            "WEBHOOK_CERT_WRITER": "secret",
            "WEBHOOK_CERT_DIR": str(folder / "certs"),
            "POD_NAMESPACE": "koordinator-system",
        },
    )
    config = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "60s",
        "leaderElection": {"leaderElect": True, **ELECTION},
        "clientConnection": {"kubeconfig": str(descheduler.kubeconfig)},
        "healthzBindAddress": f"127.0.0.1:{descheduler.metrics_port}",
        "metricsBindAddress": f"127.0.0.1:{descheduler.metrics_port}",
        "profiles": [{"name": "chaos", "pluginConfig": [{"name": "MigrationController", "args": MIGRATION}]}],
    }
    file = folder / f"{descheduler.name}.yaml"
    file.write_text(yaml.safe_dump(config))
    descheduler.run(
        "koord.cli.daemons.koord_descheduler",
        f"--config={file}",
        "--secure-port=0",
    )
    return programs


def wait_for_leader(schedulers: list[ChildProgram], seconds: float) -> ChildProgram | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for scheduler in schedulers:
            scheduler.supervise()
            if scheduler.leads():
                return scheduler
        time.sleep(0.2)
    return None
