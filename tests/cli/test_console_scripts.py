"""Programs and commands whose libraries are not installed say in one line which extra brings them."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from koord.cli.console_scripts import LIBRARIES_OF_EXTRAS
from tools.wheel import ROOT

MODULE_OF = {"grpcio": "grpc"}
_RUN_WITHOUT = """
import sys
absent, script, *args = sys.argv[1:]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = [script, *args]
from koord.cli import console_scripts, main
getattr(console_scripts, script, main.run)()
"""


def run_without(absent: str, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN_WITHOUT, absent, script, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("absent", "script", "args", "said"),
    [
        ("numpy", "koord_scheduler", (), "koord-scheduler: the library numpy is not installed; koord's extra"),
        ("cryptography", "koord_manager", (), "pip install 'koord[manager]'"),
        ("numpy", "koord", ("up",), "Error: `koord up`: the library numpy is not installed"),
        ("cronsim", "koord", ("up",), "pip install 'koord[all]'"),
    ],
)
def test_a_missing_library_is_one_line(absent: str, script: str, args: tuple[str, ...], said: str) -> None:
    done = run_without(absent, script, *args, "--help")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert said in done.stderr


def test_the_descheduler_needs_nothing_of_the_schedulers_extra() -> None:
    code = _RUN_WITHOUT.partition("from koord.cli")[0] + "from koord.cli.daemons import koord_descheduler as program\n"
    command = [sys.executable, "-c", code + "program.main()", "numpy", "koord-descheduler", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--leader-elect" in done.stdout


def test_a_module_that_no_extra_brings_is_a_fault() -> None:
    done = run_without("msgspec", "koord_scheduler", "--help")
    assert "Traceback" in done.stderr
    assert "koord[" not in done.stderr


def test_the_libraries_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        one.partition(">")[0] for extra, wanted in extras.items() if extra not in ("all", "fast") for one in wanted
    }
    assert {MODULE_OF.get(name, name) for name in names} == LIBRARIES_OF_EXTRAS
