"""Each program as a process of its own serves what the reference says, in a form that promtool accepts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.charts.conftest import KUBEPODS
from tests.charts.exposition import complaints, undeclared_samples
from tests.charts.promtool import promtool_binary
from tests.koord_up_process import KoordUpProcess, koord_up

pytestmark = pytest.mark.real

NODE = "node-0"
LEADS = ("leader_election_master_status", "rest_client_requests_total", "process_resident_memory_bytes")
# Module and flags of each program, the path of its metrics, and what is among them once it works.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "koord-scheduler": (
        "koord_scheduler",
        ("--address=127.0.0.1", "--port={port}", "--secure-port=0"),
        "/metrics",
        (*LEADS, "scheduler_pending_pods", "scheduler_cache_size"),
    ),
    "koord-manager": (
        "koord_manager",
        ("--metrics-addr=127.0.0.1:{port}", "--health-probe-addr=0", "--feature-gates=WebhookFramework=false"),
        "/all-metrics",
        (*LEADS, "koordinator_manager_is_leader 1", "slo_controller_nodeslo_spec_parse_count"),
    ),
    "koord-descheduler": (
        "koord_descheduler",
        ("--port={port}", "--secure-port=0"),
        "/metrics",
        (*LEADS, "koord_descheduler_rounds_total"),
    ),
    "koord-yarn-operator": (
        "koord_yarn_operator",
        ("--metrics-addr=127.0.0.1:{port}", "--health-probe-addr=0", "--hadoop-conf-dir={folder}", "--yarn-user=yarn"),
        "/metrics",
        (*LEADS, "koord_yarn_operator_cluster_up"),
    ),
    # In safe mode it reads this machine's kernel files and writes none.
    "koordlet": (
        "koordlet",
        (
            "--addr=127.0.0.1:{port}",
            "--safe-mode",
            "--pod-source=apiserver",
            "--enable-nri-runtime-hook=false",
            "--state-dir={folder}",
            *("--cgroup-root-dir=/sys/fs/cgroup/", "--sys-root-dir=/sys/", "--sys-fs-root-dir=/sys/fs/"),
            *("--proc-root-dir=/proc/", f"--kubepods-cgroup={KUBEPODS}"),
        ),
        "/metrics",
        ("koordlet_start_time", "process_resident_memory_bytes", "koordlet_node_used_cpu_cores"),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def promtool() -> None:
    if not promtool_binary().is_file():
        pytest.skip("no promtool built: run `python -m tools.assets promtool` first")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "2") as running:
        yield running


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def read_until(process: subprocess.Popen[bytes], url: str, wanted: tuple[str, ...], log: Path) -> str:
    """Return the page at `url` once all that is wanted is in it."""
    end, text = time.monotonic() + 120, ""
    while missing := [word for word in wanted if word not in text]:
        assert process.poll() is None, f"the program ended:\n{log.read_text()}"
        assert time.monotonic() < end, f"after two minutes {url} lacks {missing}:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            text = ""  # it does not listen yet
        time.sleep(0.2)
    return text


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("kubepods")
def test_it_serves_what_the_reference_says(program: str, cluster: KoordUpProcess, tmp_path: Path) -> None:
    module, flags, path, wanted = PROGRAMS[program]
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")  # where nobody answers
    port = free_port()
    given = [flag.format(port=port, folder=tmp_path) for flag in flags]
    command = [sys.executable, "-m", f"koord.cli.daemons.{module}", f"--kubeconfig={cluster.kubeconfig}", *given]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NODE_NAME": NODE})
        try:
            text = read_until(process, f"http://127.0.0.1:{port}{path}", wanted, tmp_path / "log")
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert undeclared_samples(text) == []
    assert complaints(text) == set()
