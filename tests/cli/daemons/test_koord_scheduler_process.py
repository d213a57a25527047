"""koord-scheduler as a process beside an API server over HTTPS: it becomes ready, leads, schedules and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.kubernetes.builtin_kinds import LEASES, PODS
from koord.cli.daemons.koord_scheduler import run_scheduler
from koord.cli.daemons.lifecycle import run_program
from koord.cli.daemons.scheduler_config import scheduler_flags
from koord.kube.client.typed_client import Client
from koord.kube.config import loader
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.koord_up_process import KoordUpProcess, koord_up

NAMESPACE = "default"
# The lease itself stays long: a busy machine must not make anyone lose it.
QUICK = ("--leader-elect-retry-period=100ms", f"--leader-elect-resource-namespace={NAMESPACE}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KoordUpProcess]:
    with koord_up("--components", "workloads,nodes", "--nodes", "2") as running:
        yield running


@pytest.fixture
async def client(cluster: KoordUpProcess) -> AsyncIterator[Client]:
    clock = WallClock()
    transport = HttpTransport(loader.load_connection({}, clock, path=str(cluster.kubeconfig)), clock)
    yield Client(transport, clock=clock)
    await transport.close()


@dataclass
class Program:
    process: subprocess.Popen[str]
    port: int
    secure_port: int

    def ask(self, path: str) -> tuple[int, str]:
        return answer(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def ask_secure(self, path: str, token: str = "") -> tuple[int, str]:
        request = urllib.request.Request(f"https://127.0.0.1:{self.secure_port}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        return answer(request)

    def end(self) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def answer(request: urllib.request.Request) -> tuple[int, str]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except urllib.error.URLError:
        return 0, ""  # not listening yet


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def program(kubeconfig: Path, *more: str) -> Iterator[Program]:
    port, secure = free_port(), free_port()
    command = [sys.executable, "-m", "koord.cli.daemons.koord_scheduler", f"--kubeconfig={kubeconfig}", *QUICK]
    command += ["--address=127.0.0.1", f"--port={port}", "--bind-address=127.0.0.1", f"--secure-port={secure}"]
    command += [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}", *more]
    running = Program(subprocess.Popen(command, stderr=subprocess.PIPE, text=True), port, secure)
    try:
        yield running
    finally:
        running.end()


async def until(found: Callable[[], Any], process: Program) -> Any:
    """Looks until it finds. A program that died meanwhile is told with its last words."""
    async with asyncio.timeout(60):
        while not (result := await asyncio.to_thread(found)):
            if process.process.poll() is not None:
                raise AssertionError(process.end())
            await asyncio.sleep(0.05)  # another process: nothing tells us, and asking without pause would slow it down
        return result


def metric(process: Program, line: str) -> bool:
    return line in process.ask("/metrics")[1].splitlines()


def pod(name: str, cpu: str = "1") -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}


async def test_it_schedules_and_gives_the_lease_back(cluster: KoordUpProcess, client: Client) -> None:
    with program(cluster.kubeconfig, "--leader-elect-resource-name=whole-life") as running:
        for name, cpu in (("small", "1"), ("huge", "9999")):
            assert not isinstance(await client.create(PODS, pod(name, cpu), NAMESPACE), ApiError)
        scheduled = 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"} 1'
        await until(lambda: metric(running, scheduled), running)
        await until(
            lambda: metric(
                running, 'scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="koord-scheduler"} 1'
            ),
            running,
        )
        small = await client.get(PODS, "small", NAMESPACE)
        assert not isinstance(small, ApiError)
        assert small.spec.node_name in ("node-0", "node-1")
        assert running.ask("/readyz?verbose") == (
            200,
            "[+]leaderElection ok\n[+]shutdown ok\n[+]sched-handler-sync ok\nreadyz check passed\n",
        )
        assert metric(running, 'leader_election_master_status{name="whole-life"} 1')
        assert running.ask("/apis/v1/__services__")[0] == 200
        assert (
            'pod="huge",priority="0",resource="cpu",scheduler="koord-scheduler",unit="cores"} 9999'
            in (running.ask("/metrics/resources")[1])
        )
        config = json.loads(running.ask("/configz")[1])["componentconfig"]
        assert config["leaderElection"]["resourceName"] == "whole-life"
        assert running.ask_secure("/healthz") == (200, "ok")
        assert running.ask_secure("/configz", cluster.token)[0] == 200
        assert running.ask_secure("/configz", "nonsense")[0] == 401
        ended, said = running.end()
        assert ended == 0, said
    lease = await client.get(LEASES, "whole-life", NAMESPACE)
    assert not isinstance(lease, ApiError)
    assert not lease.spec.holder_identity
    for name in ("small", "huge"):
        await client.delete(PODS, name, NAMESPACE)


async def test_a_standby_takes_over(cluster: KoordUpProcess, client: Client) -> None:
    name = "--leader-elect-resource-name=shared"
    leads = 'leader_election_master_status{name="shared"} 1'
    with program(cluster.kubeconfig, name) as first:
        await until(lambda: metric(first, leads), first)
        with program(cluster.kubeconfig, name) as second:
            await until(lambda: second.ask("/readyz")[0] == 200, second)
            assert not metric(second, leads)
            assert second.ask("/metrics/resources") == (200, "")
            assert second.ask("/apis/v1/__services__") == (503, '{"message":"the instance is not leader"}')
            assert first.end()[0] == 0
            await until(lambda: metric(second, leads), second)


async def test_losing_the_lease_ends_the_process_with_a_failure(cluster: KoordUpProcess, client: Client) -> None:
    with program(cluster.kubeconfig, "--leader-elect-resource-name=stolen") as running:
        await until(lambda: metric(running, 'leader_election_master_status{name="stolen"} 1'), running)
        theirs = {"spec": {"holderIdentity": "another", "leaseTransitions": 1}}
        assert not isinstance(await client.patch(LEASES, "stolen", theirs, NAMESPACE, kind="merge"), ApiError)
        _, said = await asyncio.to_thread(running.process.communicate, timeout=60)
        assert running.process.returncode == 1
        assert "leaderelection lost" in said


async def test_not_ready_and_not_leading_while_the_server_is_away(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    server = {"name": "away", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "away", "context": {"cluster": "away"}}
    kubeconfig.write_text(json.dumps({"clusters": [server], "contexts": [context], "current-context": "away"}))
    with program(kubeconfig) as running:
        status, text = await until(lambda: (got := running.ask("/readyz"))[0] and got, running)
        assert (status, "[-]sched-handler-sync failed: reason withheld" in text) == (500, True)
        assert running.ask("/livez") == (200, "ok")
        assert running.end()[0] == 0


def test_a_taken_port_is_one_line(cluster: KoordUpProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with program(cluster.kubeconfig, f"--port={port}") as running:
            _, said = running.process.communicate(timeout=60)
    assert running.process.returncode == 1
    assert said.splitlines()[-1] == f"koord-scheduler: cannot listen on 127.0.0.1:{port}: address already in use"


async def test_alone_it_needs_no_lease(cluster: KoordUpProcess, client: Client) -> None:
    with program(cluster.kubeconfig, "--leader-elect=false", "--leader-elect-resource-name=unused") as running:
        assert not isinstance(await client.create(PODS, pod("lonely"), NAMESPACE), ApiError)
        scheduled = 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"} 1'
        await until(lambda: metric(running, scheduled), running)
        assert running.ask("/readyz?verbose")[1].splitlines()[0] == "[+]shutdown ok"
        assert "leader_election_master_status" not in running.ask("/metrics")[1]
        assert running.end()[0] == 0
    assert isinstance(await client.get(LEASES, "unused", NAMESPACE), ApiError)
    await client.delete(PODS, "lonely", NAMESPACE)


async def test_a_standby_may_leave_its_view_cold(cluster: KoordUpProcess, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    argv = (f"--kubeconfig={cluster.kubeconfig}", f"--write-config-to={file}")
    assert run_program(scheduler_flags(), argv, lambda values, logs: run_scheduler(values, logs, {})) == 0
    config = {**yaml.safe_load(file.read_text()), "delayCacheUntilActive": True}
    file.write_text(yaml.safe_dump(config))
    more = (f"--config={file}", "--leader-elect-resource-name=cold")
    with program(cluster.kubeconfig, *more) as first:
        await until(lambda: first.ask("/readyz")[0] == 200, first)
        with program(cluster.kubeconfig, *more) as second:
            await until(lambda: second.ask("/livez")[0] == 200, second)
            assert "[-]sched-handler-sync failed: reason withheld" in second.ask("/readyz")[1]
            assert first.end()[0] == 0
            await until(lambda: second.ask("/readyz")[0] == 200, second)
