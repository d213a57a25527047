"""`koord sim openb` on a small trace: the table, JSON, the picture, and what is said when the files are not there."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from koord.cli.main import cli
from tests.sim.openb.openb_trace import write_trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trace(tmp_path)
    return tmp_path


def invoked(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["sim", "openb", *args])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_tells_each_run_and_the_mean(folder: Path) -> None:
    args = ("--trace", str(folder), "--variant", "small", "--seed", "1", "--seed", "2", "--policy", "FGD")
    code, out, _ = invoked(*args, "--policy", "koord")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["VARIANT", "SEED", "RANKED", "BY"]
    assert [line.split()[1:3] for line in lines[1:7]] == [
        ["1", "FGD"],
        ["1", "koord"],
        ["2", "FGD"],
        ["2", "koord"],
        ["mean", "FGD"],
        ["mean", "koord"],
    ]


def test_json_and_a_picture(folder: Path) -> None:
    picture = folder / "a.svg"
    code, out, _ = invoked("--trace", str(folder), "--variant", "small", "-o", "json", "--plot", str(picture))
    assert code == 0
    (run,) = json.loads(out)["runs"]
    assert run["run"]["policy"] == "koord"
    assert run["run"]["allocation"]
    assert "koord, FragmentationAware" in picture.read_text()
    ElementTree.fromstring(picture.read_text())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(("--trace", "nowhere"), "openb_node_list_gpu_node.csv is not there", id="no-trace"),
        pytest.param(("--variant", "large"), "the variants there are small", id="no-variant"),
        pytest.param(("--variant", "small", "--variant", "b", "--plot", "x.svg"), "name only one", id="two-to-draw"),
        pytest.param(("--variant", "small", "--plot", "/nowhere/x.svg"), "--plot /nowhere/x.svg", id="no-place"),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, args: tuple[str, ...], words: str) -> None:
    given = args if "--trace" in args else ("--trace", str(folder), *args)
    code, _, err = invoked(*given)
    assert code == 1
    assert words in err.splitlines()[-1]
