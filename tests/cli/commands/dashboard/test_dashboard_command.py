"""`koord dashboard` as a user runs it: beside a cluster, with its address, and when the API server goes away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koord.cli.main import cli
from tests.koord_up_process import koord_up

MAX_UPDATES = 200  # one every five seconds at least: far more than a lost server needs to be noticed


@contextmanager
def koord_dashboard(kubeconfig: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "koord", "dashboard", "--kubeconfig", str(kubeconfig)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(kubeconfig.parent)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.match(r"koord: dashboard (\S+)", process.stdout.readline())
        assert found is not None
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=20)
        process.stdout.close()


def updates(url: str) -> Iterator[dict[str, Any]]:
    """Follow the dashboard as a page does."""
    base, token = url.split("/#token=")
    epoch, since = "", 0
    for _ in range(MAX_UPDATES):
        path = f"{base}/api/updates?epoch={epoch}&since={since}"
        asked = urllib.request.Request(path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            update: dict[str, Any] = json.load(answer)
        epoch, since = update["epoch"], update["version"]
        yield update


def test_it_follows_a_cluster_and_tells_when_the_api_server_is_gone() -> None:
    arguments = ("--nodes", "2", "--components", "nodes")
    with koord_up(*arguments) as cluster, koord_dashboard(cluster.kubeconfig) as (process, url):
        following = updates(url)
        ready = next(update for update in following if update["ready"])
        assert ready["sums"]["cpu"][0] == 64_000  # two nodes of 32 CPUs
        cluster.stop(signal.SIGKILL)
        lost = next(update for update in following if update["problem"])
        assert lost["sums"]["cpu"][0] == 64_000  # the last state stays
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:0", "can be reached by other machines"),
        ("nonsense", "expected HOST:PORT"),
        ("evil.example:80", "cannot listen"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_in_one_line(listen: str, said: str) -> None:
    with koord_up("--nodes", "0", "--components", "") as cluster:
        ran = CliRunner().invoke(cli, ["dashboard", "--kubeconfig", str(cluster.kubeconfig), "--listen", listen])
    assert ran.exit_code == 1
    assert said in ran.output
    assert len(ran.output.splitlines()) == 1


def test_the_next_start_knows_the_past_of_this_cluster() -> None:
    with koord_up("--nodes", "1", "--components", "nodes") as cluster:
        with koord_dashboard(cluster.kubeconfig) as (process, url):
            seen = next(update["recent"][0] for update in updates(url) if update["recent"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        with koord_dashboard(cluster.kubeconfig) as (_, url):
            assert next(updates(url))["recent"][0] == seen


@pytest.mark.parametrize("wrong", ["koordlet", "koordlet=none", "etcd=1", "koordlet=70000"])
def test_a_wrong_port_of_a_program_is_one_line(wrong: str) -> None:
    ended = CliRunner().invoke(cli, ["dashboard", "--program-port", wrong])
    assert ended.exit_code == 1
    assert ended.output.startswith(f"koord: --program-port {wrong}: expected PROGRAM=PORT")
