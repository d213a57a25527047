"""The resctrl groups of pods are made, filled and removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from koord.host.filesystem import Host, HostPaths
from koord.host.io_error import IoError
from koord.koordlet.hooks.hook import SchemataLine
from koord.koordlet.hooks.resctrl_pod import INTEL
from koord.koordlet.inputs.machine import L3Cache
from koord.koordlet.pod_resctrl import PodResctrlGroups, PodResctrlTarget

FULL = "    MB:0=100;1=100\n    L3:0=3ff;1=3ff\n"
GROUP = "koordlet-u"


class FakeResctrl(Host):
    """A resctrl file system: a new group has its files, schemata keep other lines, tasks are added to."""

    def __init__(self, root: Path) -> None:
        super().__init__(HostPaths().below_root(str(root)))
        self.root = Path(self.paths.sys_fs) / "resctrl"
        self.ended: set[int] = set()
        self.root.mkdir(parents=True)
        self._fill(self.root)

    def make_folder(self, path: str) -> IoError | None:
        found = super().make_folder(path)
        if found is None and not (Path(path) / "schemata").exists():
            self._fill(Path(path))
        return found

    def remove_folder(self, path: str) -> IoError | None:
        shutil.rmtree(path, ignore_errors=True)
        return None

    def write(self, path: str, text: str) -> IoError | None:
        if not path.endswith("/schemata"):
            Path(path).write_text(text)
            return None
        resource, _, values = text.strip().partition(":")
        if any(part.rpartition("=")[2] == "0" for part in values.strip(";").split(";")):
            return IoError(path, "write", 22)
        lines = [line for line in Path(path).read_text().splitlines() if line.strip().partition(":")[0] != resource]
        Path(path).write_text("\n".join([*lines, f"    {resource}:{values.strip(';')}", ""]))
        return None

    def write_each(self, path: str, texts: Iterable[str], *, flags: int = 0) -> IoError | None:
        for text in texts:
            if int(text) in self.ended:
                return IoError(path, "write", 3)
            with open(path, "a") as file:
                file.write(text)
        return None

    def lines(self, group: str = GROUP) -> set[str]:
        return {line.strip() for line in (self.root / group / "schemata").read_text().splitlines()}

    def tasks(self, group: str = GROUP) -> list[int]:
        return [int(line) for line in (self.root / group / "tasks").read_text().split()]

    def _fill(self, folder: Path) -> None:
        (folder / "schemata").write_text(FULL)
        (folder / "tasks").write_text("")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def host(tmp_path: Path) -> FakeResctrl:
    return FakeResctrl(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def agent(host: Host, clock: Clock) -> PodResctrlGroups:
    return PodResctrlGroups(host, clock, lambda: L3Cache(mask=0x3FF, ids=(0, 1), vendor=INTEL))


def wanting(*threads: int, **lines: str) -> PodResctrlTarget:
    return PodResctrlTarget(
        group=GROUP,
        schemata=tuple(
            SchemataLine(resource="L3" if name == "L3" else "MB", by_cache=((0, value), (1, value)), why="w")
            for name, value in lines.items()
        ),
        threads=threads,
    )


def test_a_group_has_its_shares_and_threads(host: FakeResctrl, clock: Clock) -> None:
    groups = agent(host, clock)
    (found,) = groups.apply([wanting(5, 3, L3="f", MB="50")])
    assert found.problem == ""
    assert found.done == ("made", "L3:0=f;1=f", "MB:0=50;1=50", "2 threads")
    assert (host.lines(), host.tasks()) == ({"L3:0=f;1=f", "MB:0=50;1=50"}, [3, 5])
    (again,) = groups.apply([wanting(5, 3, 7, L3="f", MB="50")])
    assert again.done == ("1 threads",), "only what is missing is written"


def test_a_container_finds_its_group_before_it_has_threads(host: FakeResctrl, clock: Clock) -> None:
    found = agent(host, clock).make(wanting(L3="f"))
    assert (found.done, found.problem) == (("made", "L3:0=f;1=f"), "")
    assert host.lines() == {"L3:0=f;1=f", "MB:0=100;1=100"}


def test_a_share_that_changes_or_goes_is_written(host: FakeResctrl, clock: Clock) -> None:
    groups = agent(host, clock)
    groups.apply([wanting(L3="f", MB="50")])
    groups.apply([wanting(L3="ff")])
    assert host.lines() == {"L3:0=ff;1=ff", "MB:0=100;1=100"}, "a line that is not asked for has no limit"


def test_a_group_goes_with_its_pod_but_not_at_once(host: FakeResctrl, clock: Clock) -> None:
    groups = agent(host, clock)
    groups.make(wanting(L3="f"))
    clock.now += 9
    assert groups.apply([]) == [], "the pod may be starting"
    clock.now += 1
    (found,) = groups.apply([])
    assert (found.group, found.done) == (GROUP, ("removed",))
    assert not (host.root / GROUP).exists()


def test_groups_of_an_earlier_process_go_too_and_those_of_others_stay(host: FakeResctrl, clock: Clock) -> None:
    for name in ("koordlet-old", "BE", "someone"):
        host.make_folder(str(host.root / name))
    groups = agent(host, clock)
    assert groups.apply([]) == []
    clock.now += 10
    assert [one.group for one in groups.apply([])] == ["koordlet-old"]
    assert sorted(one.name for one in host.root.iterdir() if one.is_dir()) == ["BE", "someone"]


def test_a_pod_that_is_removed_takes_its_group_along_at_once(host: FakeResctrl, clock: Clock) -> None:
    groups = agent(host, clock)
    groups.make(wanting(L3="f"))
    assert groups.remove(GROUP).done == ("removed",)
    assert groups.remove(GROUP).problem == "", "one that is gone already is no problem"


def test_threads_that_ended_are_no_problem(host: FakeResctrl, clock: Clock) -> None:
    host.ended = {4}
    (found,) = agent(host, clock).apply([wanting(3, 4)])
    assert (found.done, found.problem) == (("made", "1 threads"), "")


def test_a_line_that_the_kernel_refuses_is_told(host: FakeResctrl, clock: Clock) -> None:
    (found,) = agent(host, clock).apply([wanting(3, L3="0")])
    assert "schemata" in found.problem
    assert host.tasks() == [], "threads go only into a group that limits them as asked"


def test_a_machine_without_bandwidth_limits_says_so(host: FakeResctrl, clock: Clock) -> None:
    groups = agent(host, clock)
    groups.make(wanting())
    (host.root / GROUP / "schemata").write_text("L3:0=3ff;1=3ff\n")
    assert groups.make(wanting(L3="f")).problem == ""
    assert "MB" in groups.make(wanting(MB="50")).problem


def test_a_machine_without_the_file_system(tmp_path: Path, clock: Clock) -> None:
    bare = agent(Host(HostPaths().below_root(str(tmp_path))), clock)
    assert bare.apply([]) == []
    assert bare.make(wanting(L3="f")).problem
