"""OOM scores are set as decided, and put back when nobody asks for them any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from koord.host.filesystem import Host, HostPaths
from koord.koordlet.hook_calls.node_actions import OomScoreResult, OomScores, OomScoreTarget, read_oom_score_adj

KUBELET = 950


class Processes:
    """Processes with their scores in files below a root, as /proc has them."""

    def __init__(self, root: Path) -> None:
        self.host = Host(HostPaths().below_root(str(root)))
        self.state = root / "state" / "oom_scores.json"
        self.groups: dict[str, list[int]] = {}

    def start(self, group: str, pid: int, score: int = KUBELET) -> None:
        file = self.file(pid)
        file.parent.mkdir(parents=True)
        file.write_text(f"{score}\n")
        self.groups.setdefault(group, []).append(pid)

    def file(self, pid: int) -> Path:
        return Path(self.host.paths.proc) / str(pid) / "oom_score_adj"

    def scores(self, group: str) -> list[int]:
        return [int(self.file(pid).read_text()) for pid in self.groups[group]]

    def agent(self) -> OomScores:
        return OomScores(self.host, lambda group: self.groups.get(group, []), str(self.state))


@pytest.fixture
def machine(tmp_path: Path) -> Processes:
    found = Processes(tmp_path)
    found.start("g", 1)
    found.start("g", 2)
    return found


def wanting(value: int, name: str = "c", group: str = "g") -> OomScoreTarget:
    return OomScoreTarget(container_id=name, group=group, value=value, original=999)


def test_all_processes_of_a_container_get_the_score(machine: Processes) -> None:
    scores = machine.agent()
    assert scores.apply([wanting(-5)]) == [OomScoreResult(container_id="c", changed=2)]
    assert machine.scores("g") == [-5, -5]
    machine.start("g", 3)
    assert scores.apply([wanting(-5)]) == [OomScoreResult(container_id="c", changed=1)], "one that started later"
    assert scores.apply([wanting(-5)]) == [], "nothing is left to do"


@pytest.mark.parametrize("restarted", [False, True])
def test_without_the_annotation_the_container_has_what_it_had(machine: Processes, restarted: bool) -> None:
    scores = machine.agent()
    scores.apply([wanting(-5)])
    scores.apply([wanting(7)])
    again = machine.agent() if restarted else scores
    assert again.apply([]) == [OomScoreResult(container_id="c", changed=2)]
    assert machine.scores("g") == [KUBELET, KUBELET]
    assert again.apply([]) == []
    assert machine.agent().apply([]) == [], "it is forgotten over a restart too"


def test_a_container_that_started_with_its_score_gets_the_kubelets(machine: Processes) -> None:
    machine.start("h", 9, score=-5)
    scores = machine.agent()
    assert scores.apply([wanting(-5, "d", "h")]) == []
    scores.apply([])
    assert machine.scores("h") == [999]


def test_a_score_that_the_process_chose_itself_is_not_put_back(machine: Processes) -> None:
    scores = machine.agent()
    scores.apply([wanting(-5)])
    machine.file(2).write_text("300\n")
    scores.apply([])
    assert machine.scores("g") == [KUBELET, 300]


def test_processes_and_containers_that_end_are_no_problem(machine: Processes) -> None:
    scores = machine.agent()
    machine.groups["g"].append(77)
    assert scores.apply([wanting(-5), wanting(1, "x", "gone")]) == [OomScoreResult(container_id="c", changed=2)]
    machine.groups.clear()
    assert scores.apply([]) == []
    assert machine.state.read_text() == "{}"


def test_a_score_that_cannot_be_read_is_told_and_the_others_are_set(machine: Processes) -> None:
    machine.file(1).write_text("none\n")
    (found,) = machine.agent().apply([wanting(-5)])
    assert (found.container_id, found.changed) == ("c", 1)
    assert "none" in found.problem


def test_a_score_that_cannot_be_put_back_is_tried_again(machine: Processes) -> None:
    scores = machine.agent()
    scores.apply([wanting(-5)])
    machine.file(1).write_text("none\n")
    assert scores.apply([])[0].problem
    machine.file(1).write_text("-5\n")
    assert scores.apply([]) == [OomScoreResult(container_id="c", changed=1)]
    assert machine.scores("g") == [KUBELET, KUBELET]


def test_nothing_is_changed_that_could_not_be_put_back(machine: Processes) -> None:
    machine.state.parent.parent.joinpath("state").write_text("a file where the directory should be")
    (found,) = machine.agent().apply([wanting(-5)])
    assert str(machine.state.parent) in found.problem
    assert machine.scores("g") == [KUBELET, KUBELET]


def test_an_unreadable_state_changes_nothing(machine: Processes) -> None:
    machine.state.parent.mkdir()
    machine.state.write_text("{")
    (found,) = machine.agent().apply([wanting(-5)])
    assert str(machine.state) in found.problem
    assert machine.scores("g") == [KUBELET, KUBELET]


def test_a_real_process(tmp_path: Path) -> None:
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        host = Host()
        before = read_oom_score_adj(host, child.pid)
        assert isinstance(before, int)
        value = min(before + 1, 1000)
        scores = OomScores(host, lambda group: [child.pid], str(tmp_path / "oom_scores.json"))
        target = OomScoreTarget(container_id="c", group="g", value=value, original=before)
        assert scores.apply([target]) == ([] if value == before else [OomScoreResult(container_id="c", changed=1)])
        assert read_oom_score_adj(host, child.pid) == value
        scores.apply([])
        assert read_oom_score_adj(host, child.pid) == before
        child.communicate()
