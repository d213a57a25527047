"""The flags of koord-yarn-copilot, with Koordinator's names and defaults, and the program as a process."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_yarn_copilot import YARN_COPILOT_FLAGS, settings_from_flags
from koord.telemetry.http_routing import HttpReply
from koord.telemetry.plain_http import request
from koord.yarn.copilot.program import CopilotSettings
from tests.host.fake_machine import FakeMachine

COMMAND = [sys.executable, "-m", "koord.cli.daemons.koord_yarn_copilot"]


def settings(*argv: str) -> CopilotSettings | str:
    values = YARN_COPILOT_FLAGS.parse(argv)
    assert isinstance(values, FlagValues), values
    return settings_from_flags(values)


def test_the_defaults_are_koordinators() -> None:
    assert settings() == CopilotSettings(
        endpoint="/var/run/yarn-copilot/yarn-copilot.sock",
        group="",
        node_manager=("localhost", 8042),
        kubelet=("127.0.0.1", 10255),
        sync_memory=False,
        sync_s=10.0,
        cgroup_root="/sys/fs/cgroup",
        address=("", 9319),
    )


def test_every_flag_is_heard() -> None:
    assert settings(
        "--server-endpoint=unix:///a.sock",
        "--yarn-container-cgroup-path=/kubepods.slice/kubepods-besteffort.slice/hadoop-yarn/",
        "--node-manager-endpoint=10.0.0.7:8142",
        "--kubelet-endpoint=127.0.0.1:10256",
        "--sync-memory-cgroup",
        "--sync-cgroup-period=3s",
        "--cgroup-root-dir=/host-cgroup/",
        "--addr=0",
    ) == CopilotSettings(
        endpoint="/a.sock",
        group="kubepods.slice/kubepods-besteffort.slice/hadoop-yarn",
        node_manager=("10.0.0.7", 8142),
        kubelet=None,  # a NodeManager that is named is not searched for
        sync_memory=True,
        sync_s=3.0,
        cgroup_root="/host-cgroup",
        address=None,
    )


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--server-endpoint=a.sock", "is no absolute path"),
        ("--cgroup-root-dir=cgroup", "is no absolute path"),
        ("--yarn-container-cgroup-path=/", "is no group"),
        ("--yarn-container-cgroup-path=a/../../b", "is no group"),
        ("--node-manager-endpoint=localhost", "is no host:port"),
        ("--node-manager-endpoint=", "is empty"),
        ("--kubelet-endpoint=:0", "is no host:port"),
        ("--sync-cgroup-period=10ms", "at least 1s"),
        ("--addr=nonsense", "--addr"),
    ],
)
def test_what_cannot_be_is_one_line(flag: str, said: str) -> None:
    found = settings(flag)
    assert isinstance(found, str)
    assert said in found


def test_help_and_version() -> None:
    def run(*argv: str) -> str:
        return subprocess.run([*COMMAND, *argv], capture_output=True, text=True, timeout=60, check=True).stdout

    assert "--sync-memory-cgroup" in run("--help")
    assert run("--version").startswith("koord-yarn-copilot v")


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="yc-"))
    yield made
    shutil.rmtree(made)


async def test_it_serves_without_a_node_manager_refuses_a_second_one_and_ends_cleanly(
    folder: Path, tmp_path: Path
) -> None:
    machine = FakeMachine(tmp_path, 2)
    socket = folder / "s"
    argv = [
        *COMMAND,
        f"--server-endpoint={socket}",
        f"--cgroup-root-dir={machine.paths.cgroup}",
        "--node-manager-endpoint=127.0.0.1:1",
        "--addr=0",
    ]
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        while not isinstance(  # noqa: ASYNC110 - a process tells nobody that it listens
            answer := await request(str(socket), "GET", "/health"), HttpReply
        ):
            await asyncio.sleep(0.05)
    assert answer.body == b'"ok"'
    listed = await request(str(socket), "GET", "/v1/containers")
    assert isinstance(listed, HttpReply)
    assert (listed.status, b"the NodeManager does not answer" in listed.body) == (400, True)
    second = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
    assert (second.returncode, f"pid {process.pid}" in second.stderr) == (1, True)
    process.terminate()
    _, said = await process.communicate()
    assert process.returncode == 0, said
    assert not socket.exists()
