"""koord-scheduler's command line against the real kube-scheduler's: the same flags and the same words of refusal."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from koord.cli.daemons.flag_set import FlagParseError
from koord.cli.daemons.scheduler_config import SCHEDULER_PROGRAM, scheduler_flags
from tools import assets

pytestmark = pytest.mark.real

WRONG = [
    ["--nosuch"],
    ["--nosuch=1", "--config=a"],
    ["-x"],
    ["-vx"],
    ["-v"],
    ["-v=-1"],
    ["-v=4294967296"],
    ["--=x"],
    ["---x"],
    ["--config"],
    ["extra", "more"],
    ['ex"tra', "é\n"],
    ['--secure-port=a"b'],
    ["--secure-port=abc"],
    ["--secure-port="],
    ["--secure-port=1_0x"],
    ["--secure-port=08"],
    ["--secure-port=0x"],
    ["--secure-port=1__0"],
    ["--secure-port=_1"],
    ["--secure-port=１"],
    ["--secure-port= 1"],
    ["--secure-port=0x_f__f"],
    ["--kube-api-qps=1__0"],
    ["--bind-address=é"],
    ["--version=é"],
    ["--leader-elect=é"],
    ["--vmodule=é"],
    ["--leader-elect-lease-duration=é"],
    ["--kube-api-qps="],
    ["--kube-api-qps= 1"],
    ["--secure-port=99999999999999999999"],
    ["--kube-api-burst=2147483648"],
    ["--kube-api-qps=x"],
    ["--leader-elect=maybe"],
    ["--leader_elect=yes"],
    ["--leader-elect-lease-duration=5"],
    ["--leader-elect-lease-duration=5x"],
    ["--log-flush-frequency=soon"],
    ["--bind-address=foo"],
    ["--allow-metric-labels=x"],
    ["--vmodule=a"],
    ["--vmodule=a=x"],
    ["--version=v9"],
    ["--profiling="],
]


@pytest.fixture
def binary() -> Path:
    path = assets.folder() / "kube-scheduler"
    if not path.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    return path


def test_every_flag_is_taken_with_its_letter_and_section(binary: Path) -> None:
    text = subprocess.run([str(binary), "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    found, section = {}, ""
    for line in text.splitlines():
        if title := re.fullmatch(r"(\w[\w ]*) flags:", line):
            section = title[1]
        elif flag := re.match(r"  (?:-(\w), |    )--([\w-]+)(?: ([\w\[\]=,.]+))?  ", line):
            found[flag[2]] = (flag[1] or "", section)
    assert len(found) > 60
    ours = scheduler_flags()
    assert found.keys() <= ours.flags.keys()
    for name, (letter, section) in found.items():
        assert ours.flags[name].short == letter, name
        assert f"\n{section} flags:\n" in ours.help()


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_what_is_wrong_is_said_in_the_same_words(binary: Path, argv: list[str]) -> None:
    ran = subprocess.run([str(binary), *argv], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    theirs = ran.stderr.splitlines()[-1].removeprefix("Error: ").replace("kube-scheduler", SCHEDULER_PROGRAM)
    assert scheduler_flags().parse(argv) == FlagParseError(theirs)
