"""koord-device-daemon: where its settings come from, and the program on a machine with a vendor's tool."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_device_daemon import DEVICE_DAEMON_FLAGS, settle_settings
from koord.devicedaemon.settings import DeviceDaemonSettings
from tests.devicedaemon.vendor_machine import VendorMachine

COMMAND = [sys.executable, "-m", "koord.cli.daemons.koord_device_daemon"]
PATIENCE_S = 60.0
# It prints the file that is named after its arguments, as the machine's answers are.
TOOL = r"""
#include <stdio.h>
#include <string.h>
int main(int n, char **words) {
  char path[4096] = "/answers/npu-smi"; int c;
  for (int i = 1; i < n; i++) { strcat(path, " "); strcat(path, words[i]); }
  FILE *file = fopen(path, "r"); if (!file) { puts("Command or option is not found"); return 1; }
  while ((c = fgetc(file)) != EOF) putchar(c);
  return 0; }
"""


def settings(*argv: str, environ: dict[str, str] | None = None) -> DeviceDaemonSettings | str:
    values = DEVICE_DAEMON_FLAGS.parse(argv)
    assert isinstance(values, FlagValues), values
    return settle_settings(values, environ or {})


class TestSettings:
    def test_the_defaults_are_koordinators(self) -> None:
        assert settings() == DeviceDaemonSettings(
            oneshot=False,
            sleep_s=900.0,
            output_file="/var/run/koordlet/xpu-device-infos/ic-device",
            host_root="/hostfs",
        )

    def test_flags_before_environment_before_file(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        file.write_text(
            "version: v1\nflags:\n  kdd: {oneshot: true, sleepInterval: 5s, printsOutputFile: /from-file}\n"
        )
        environ = {"KDD_CONFIG_FILE": str(file), "KDD_SLEEP_INTERVAL": "7s", "PRINTS_OUTPUT_FILE": "/from-environment"}
        assert settings("--prints-output-file=/from-flag", environ=environ) == DeviceDaemonSettings(
            oneshot=True, sleep_s=7.0, output_file="/from-flag"
        )
        assert settings("--oneshot=false", f"--config-file={file}", "--sleep-interval=1m") == DeviceDaemonSettings(
            sleep_s=60.0, output_file="/from-file"
        )
        own = {"KDD_PRINTS_OUTPUT_FILE": "/own", "PRINTS_OUTPUT_FILE": "/alias", "KDD_ONESHOT": "true"}
        assert settings("--host-root=/", environ=own) == DeviceDaemonSettings(
            oneshot=True, output_file="/own", host_root="/"
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("version: v2", "unknown version: v2"),
            ("{}", "unknown version: None"),
            ("[", "no YAML"),
            ("- 1", "no mapping"),
            ("version: v1\nflags: 7", "flags.kdd is no mapping"),
            ("version: v1\nflags: {kdd: {sleep: 1s}}", "no field sleep"),
            ("version: v1\nflags: {kdd: {sleepInterval: soon}}", "sleep-interval"),
            ("version: v1\nflags: {kdd: {oneshot: perhaps}}", "oneshot"),
        ],
    )
    def test_a_file_without_sense_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "c.yaml").write_text(text)
        found = settings(f"--config-file={tmp_path}/c.yaml")
        assert isinstance(found, str)
        assert said in found

    @pytest.mark.parametrize(
        ("flag", "said"),
        [
            ("--sleep-interval=0s", "more than 0"),
            ("--prints-output-file=here", "no absolute path"),
            ("--host-root=here", "no absolute path"),
            ("--config-file=/no/such/file", "cannot be read"),
        ],
    )
    def test_what_cannot_be_is_one_line(self, flag: str, said: str) -> None:
        found = settings(flag)
        assert isinstance(found, str)
        assert said in found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.fixture
def machine(tmp_path: Path) -> VendorMachine:
    """A root directory with a tool of its own, which has nothing else to run with."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the vendor's tool with")
    if os.geteuid() != 0:
        pytest.skip("only root may change the root directory of a process")
    machine = VendorMachine(tmp_path / "root")
    machine.put_ascends()
    (machine.root / "answers").mkdir()
    for command, answer in machine.answers.items():
        (machine.root / "answers" / command).write_text(answer)
    (machine.root / "usr/bin").mkdir(parents=True)
    (tmp_path / "tool.c").write_text(TOOL)
    built = [compiler, "-static", "-o", str(machine.root / "usr/bin/npu-smi"), str(tmp_path / "tool.c")]
    done = subprocess.run(built, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no static C library to build the vendor's tool with: {done.stderr[-200:]}")
    return machine


@contextlib.contextmanager
def running(machine: VendorMachine, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*COMMAND, f"--host-root={machine.root}", *flags], stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def uuids(file: Path) -> list[str]:
    return [one["uuid"] for one in json.loads(file.read_text())] if file.exists() else []


def test_the_program_asks_the_tools_of_the_host(machine: VendorMachine, tmp_path: Path) -> None:
    file, config, moved = tmp_path / "infos/ic-device", tmp_path / "c.yaml", tmp_path / "infos/moved"
    config.write_text(f"version: v1\nflags: {{kdd: {{printsOutputFile: {file}}}}}\n")
    with running(machine, f"--config-file={config}") as daemon:
        until(lambda: uuids(file) == ["npu-1-2", "npu-4-10"])
        config.write_text(f"version: v1\nflags: {{kdd: {{printsOutputFile: {moved}}}}}\n")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: uuids(moved) == ["npu-1-2", "npu-4-10"])
        assert not file.exists()
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert list((tmp_path / "infos").iterdir()) == [], "nobody looks after the file any more"


def test_one_look(machine: VendorMachine) -> None:
    words = [*COMMAND, f"--host-root={machine.root}", "--oneshot", "--prints-output-file="]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [one["uuid"] for one in json.loads(done.stdout)] == ["npu-1-2", "npu-4-10"]
    (machine.root / "answers/npu-smi info -l").unlink()
    failed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "Command or option is not found" in failed.stderr


def test_a_wrong_flag_ends_it_with_one_line() -> None:
    done = subprocess.run([*COMMAND, "--sleep-interval=0s"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "koord-device-daemon: sleep-interval: it must be more than 0\n"
