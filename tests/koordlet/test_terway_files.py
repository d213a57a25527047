"""Terway's files are written when their content changes, and deleted when it is to limit nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.host.filesystem import Host, HostPaths
from koord.koordlet.hook_calls.node_actions import FileOutcome, TerwayFiles
from koord.koordlet.hooks.terway_qos import TerwayPlan

PLAN = TerwayPlan(enabled=True, global_config="hw_tx_bps_max 1\n", pods="{}")
OFF = TerwayPlan(enabled=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "var/lib/terway/qos"


@pytest.fixture
def files(tmp_path: Path) -> TerwayFiles:
    return TerwayFiles(Host(HostPaths().below_root(str(tmp_path))), str(tmp_path / "state/terway-files"))


def outcomes(files: TerwayFiles, plan: TerwayPlan | None) -> list[str]:
    return [one.outcome.value for one in files.apply(plan)]


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}


def test_both_files_and_their_folder_are_made_once(files: TerwayFiles, folder: Path) -> None:
    assert outcomes(files, PLAN) == ["written", "written"]
    assert content(folder) == {"global_bps_config": "hw_tx_bps_max 1\n", "pod.json": "{}"}
    inodes = [path.stat().st_ino for path in sorted(folder.iterdir())]
    assert outcomes(files, PLAN) == ["kept", "kept"]
    assert [path.stat().st_ino for path in sorted(folder.iterdir())] == inodes, "nothing was written"


def test_only_what_changed_is_written(files: TerwayFiles, folder: Path) -> None:
    files.apply(PLAN)
    assert outcomes(files, TerwayPlan(enabled=True, global_config=PLAN.global_config, pods='{"a":1}')) == [
        "kept",
        "written",
    ]
    (folder / "global_bps_config").write_text("somebody else's\n")
    assert outcomes(files, PLAN) == ["written", "written"]


def test_both_are_deleted_when_it_is_off(files: TerwayFiles, folder: Path) -> None:
    assert outcomes(files, OFF) == ["kept", "kept"]
    assert not folder.exists(), "no folder for nothing"
    files.apply(PLAN)
    assert outcomes(files, OFF) == ["deleted", "deleted"]
    assert content(folder) == {}
    assert outcomes(files, OFF) == ["kept", "kept"]


def test_nothing_happens_without_a_plan(files: TerwayFiles, folder: Path) -> None:
    files.apply(PLAN)
    before = content(folder)
    assert files.apply(None) == ()
    assert content(folder) == before


def test_a_folder_that_cannot_be_made_is_a_reason(files: TerwayFiles, tmp_path: Path) -> None:
    (tmp_path / "var").write_text("a file where the folder must be")
    results = files.apply(PLAN)
    assert {one.outcome for one in results} == {FileOutcome.FAILED}
    assert all("terway" in one.why for one in results)


def test_only_files_that_the_agent_wrote_are_released(files: TerwayFiles, folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "pod.json").write_text("somebody else's")
    assert files.release() == []
    assert content(folder) == {"pod.json": "somebody else's"}
    files.apply(PLAN)
    assert files.has_written
    later = TerwayFiles(Host(HostPaths().below_root(str(tmp_path))), str(tmp_path / "state/terway-files"))
    assert later.release() == []
    assert content(folder) == {}
    assert not later.has_written


def test_nothing_is_written_that_nobody_could_know_to_delete(files: TerwayFiles, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder must be")
    (result,) = files.apply(PLAN)
    assert result.outcome is FileOutcome.FAILED
    assert not folder.exists()


def test_what_cannot_be_deleted_stays_known(files: TerwayFiles, folder: Path) -> None:
    files.apply(PLAN)
    (folder / "pod.json").unlink()
    (folder / "pod.json").mkdir()
    assert files.release() != []
    assert files.has_written
