"""Containers of one group have one cookie, and no two groups have the same, whatever happened before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.koordlet.core_sched_manager import CoreSchedManager, CoreSchedOutcome, CoreSchedRequest, CoreSchedResult
from koord.koordlet.hooks.core_sched import CoreSchedKernel
from koord.koordlet.hooks.hook import ContainerContext, PodContext
from koord.koordlet.metrics import KoordletMetrics
from tests.host.fake_machine import FakeMachine
from tests.koordlet.fake_cookies import FakeCookies

ADDED, ASSIGNED, KEPT, CLEARED, LEFT, EMPTY, FAILED, UNSUPPORTED = (
    CoreSchedOutcome.ADDED,
    CoreSchedOutcome.ASSIGNED,
    CoreSchedOutcome.KEPT,
    CoreSchedOutcome.CLEARED,
    CoreSchedOutcome.LEFT,
    CoreSchedOutcome.EMPTY,
    CoreSchedOutcome.FAILED,
    CoreSchedOutcome.UNSUPPORTED,
)


class Node:
    """A node in a directory with containers whose processes have cookies; each container is in a pod of its own."""

    def __init__(self, root: Path) -> None:
        self.machine = FakeMachine(root, 2, only=frozenset({"cgroup.procs"}))
        self.kernel = FakeCookies()
        self.groups: dict[str, str | None] = {}
        self.restart()

    def restart(self) -> None:
        self.record = self.machine.root / "state/core-sched.json"
        self.manager = CoreSchedManager(self.machine.tree, self.kernel, str(self.record))

    def run(self, name: str, group: str | None, *processes: int) -> None:
        """Set the group and the living processes of a container."""
        self.groups[name] = group
        folder = self.machine.make(f"kubepods/pod{name}/{name}")
        (self.machine.root / "sys/fs/cgroup" / folder / "cgroup.procs").write_text("".join(f"{i}\n" for i in processes))
        for process in processes:
            self.kernel.cookies.setdefault(process, 0)

    def end(self, *processes: int) -> None:
        for process in processes:
            del self.kernel.cookies[process]

    def request(self, name: str) -> CoreSchedRequest:
        pod = PodContext(uid=name, name=name, namespace="n", created_s=float(list(self.groups).index(name)))
        container = ContainerContext(pod=pod, name="c", id=name, group=f"kubepods/pod{name}/{name}")
        return CoreSchedRequest(container=container, group=self.groups[name])

    def apply(self) -> dict[str, CoreSchedOutcome]:
        return {one.container.id: one.outcome for one in self.results()}

    def results(self) -> tuple[CoreSchedResult, ...]:
        return self.manager.apply([self.request(name) for name in self.groups])

    def cookies(self, *processes: int) -> set[int]:
        return {self.kernel.cookies[process] for process in processes}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_group_gets_a_cookie_and_its_containers_share_it(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.run("b", "g", 20)
    node.run("c", "other", 30)
    results = node.results()
    assert [(one.container.id, one.outcome) for one in results] == [("a", ADDED), ("b", ASSIGNED), ("c", ADDED)]
    (shared,) = node.cookies(10, 11, 20)
    (other,) = node.cookies(30)
    assert 0 not in (shared, other)
    assert shared != other
    assert [one.cookie for one in results] == [shared, shared, other]


def test_nothing_is_called_while_nothing_changes(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.apply()
    node.kernel.calls.clear()
    assert node.apply() == {"a": KEPT}
    assert node.kernel.calls == []


def test_a_process_that_has_not_the_cookie_gets_it_though_its_id_was_seen_before(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.apply()
    node.kernel.cookies[11] = 0  # another process with the same id
    assert node.apply() == {"a": ASSIGNED}
    assert len(node.cookies(10, 11)) == 1


def test_a_group_whose_processes_all_died_gets_a_new_cookie(node: Node) -> None:
    node.run("a", "g", 10)
    node.apply()
    (before,) = node.cookies(10)
    node.end(10)
    node.run("a", "g", 12, 13)
    assert node.apply() == {"a": ADDED}
    (after,) = node.cookies(12, 13)
    assert after not in (0, before)


def test_a_sibling_that_died_a_moment_ago_is_passed_over(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.apply()
    node.run("b", "g", 20)
    node.end(10)
    assert node.apply() == {"a": KEPT, "b": ASSIGNED}
    assert node.cookies(11) == node.cookies(20)


def test_a_container_that_changes_its_group(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "g", 20)
    node.apply()
    node.run("b", "h", 20)
    assert node.apply() == {"a": KEPT, "b": ADDED}
    assert node.cookies(10) != node.cookies(20)


def test_no_group_clears_what_was_given(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.apply()
    node.run("a", "", 10, 11)
    assert node.apply() == {"a": CLEARED}
    assert node.cookies(10, 11) == {0}
    assert node.apply() == {"a": LEFT}


def test_clearing_is_tried_again_until_it_works(node: Node) -> None:
    node.run("a", "g", 10)
    node.apply()
    node.run("a", "", 10)
    node.kernel.stubborn.add(10)
    results = node.results()
    assert results[0].outcome is FAILED
    assert "not permitted" in results[0].why
    node.kernel.stubborn.clear()
    assert node.apply() == {"a": CLEARED}


def test_cookies_of_an_application_itself_are_not_cleared(node: Node) -> None:
    node.run("a", "", 10)
    node.kernel.cookies[10] = 77
    assert node.apply() == {"a": LEFT}
    assert node.cookies(10) == {77}


def test_containers_that_are_left_alone_have_no_result(node: Node) -> None:
    node.run("a", None, 10)
    node.kernel.cookies[10] = 77
    assert node.apply() == {}
    assert node.cookies(10) == {77}


def test_after_a_restart_the_cookies_that_are_there_count(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "g", 20)
    node.apply()
    before = node.cookies(10, 20)
    node.restart()
    node.kernel.calls.clear()
    assert node.apply() == {"a": KEPT, "b": KEPT}
    assert node.cookies(10, 20) == before
    assert node.kernel.calls == []


def test_cookies_that_disagree_at_the_start_become_the_first(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.run("b", "g", 20)
    node.kernel.cookies.update({10: 0, 11: 50, 20: 60})
    assert node.apply() == {"a": ASSIGNED, "b": ASSIGNED}
    assert node.cookies(10, 11, 20) == {50}


def test_a_cookie_that_two_groups_have_at_the_start_stays_with_one(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "h", 20)
    node.kernel.cookies.update({10: 50, 20: 50})
    assert node.apply() == {"a": KEPT, "b": ADDED}
    assert node.cookies(10) == {50}
    assert node.cookies(20) != {50}


def test_what_an_earlier_agent_gave_is_cleared_when_its_group_went_meanwhile(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "", 20)
    node.apply()
    node.kernel.cookies[20] = 77  # the application's own
    node.restart()
    node.run("a", "", 10)
    assert node.apply() == {"a": CLEARED, "b": LEFT}
    assert node.cookies(10) == {0}
    assert node.cookies(20) == {77}
    assert not node.manager.has_given


def test_an_agent_killed_before_it_gave_a_cookie_is_known_to_have_begun(node: Node) -> None:
    node.run("a", "g", 10)
    node.kernel.stubborn.add(10)
    node.apply()
    assert json.loads(node.record.read_text()) == ["kubepods/poda/a"]


def test_all_is_released_at_once_but_what_refuses(node: Node) -> None:
    node.run("a", "g", 10, 11)
    node.run("b", "h", 20)
    node.run("c", "", 30)
    node.apply()
    node.kernel.cookies[30] = 77
    node.restart()
    node.kernel.stubborn.add(20)
    (problem,) = node.manager.release()
    assert "not permitted" in problem
    assert node.cookies(10, 11) == {0}
    assert node.cookies(30) == {77}
    assert json.loads(node.record.read_text()) == ["kubepods/podb/b"]
    node.kernel.stubborn.clear()
    assert node.manager.release() == []
    assert node.cookies(20) == {0}
    assert not node.record.exists()
    assert node.manager.release() == []


def test_containers_that_are_gone_leave_the_record(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "g", 20)
    node.apply()
    del node.groups["a"]
    node.machine.remove("kubepods/poda/a")
    node.end(10)
    node.apply()
    assert json.loads(node.record.read_text()) == ["kubepods/podb/b"]


@pytest.mark.parametrize("text", ["{", '"a"'])
def test_a_record_that_cannot_be_read_is_a_reason_to_give_nothing(node: Node, text: str) -> None:
    node.machine.put("state/core-sched.json", text)
    node.run("a", "g", 10)
    (result,) = node.results()
    assert result.outcome is FAILED
    assert "core-sched.json" in result.why
    assert node.cookies(10) == {0}
    assert "core-sched.json" in node.manager.release()[0]


def test_a_record_that_cannot_be_written_is_a_reason_to_give_nothing(node: Node) -> None:
    node.machine.put("state", "a file where the folder must be")
    node.run("a", "g", 10)
    (result,) = node.results()
    assert result.outcome is FAILED
    assert node.cookies(10) == {0}


def test_processes_in_groups_that_a_container_made_for_itself_count(node: Node) -> None:
    node.run("a", "g", 10)
    below = node.machine.make("kubepods/poda/a/init.scope")
    (node.machine.root / "sys/fs/cgroup" / below / "cgroup.procs").write_text("11\n")
    node.kernel.cookies[11] = 0
    node.apply()
    assert len(node.cookies(10, 11)) == 1
    assert node.cookies(11) != {0}
    node.manager.release()
    assert node.cookies(10, 11) == {0}


def test_a_container_without_processes(node: Node) -> None:
    node.run("a", "g")
    node.run("b", "g", 20)
    node.end(20)
    assert node.apply() == {"a": EMPTY, "b": EMPTY}
    node.groups["gone"] = "g"
    assert node.apply() == {"a": EMPTY, "b": EMPTY, "gone": EMPTY}


def test_a_process_that_refuses_is_told_and_spares_the_others(node: Node) -> None:
    node.run("a", "g", 10, 11, 12)
    node.kernel.stubborn.add(11)
    results = node.results()
    assert results[0].outcome is FAILED
    assert node.cookies(10) == node.cookies(12) != {0}


def test_sandboxes_come_first_and_older_pods_before_younger(node: Node) -> None:
    requests = []
    for number, (name, sandbox) in enumerate([("young", False), ("old", False), ("box", True)]):
        node.run(name, "g", 10 + number)
        created = 2.0 if name == "young" else 1.0
        pod = PodContext(uid=str(created), created_s=created)
        container = ContainerContext(
            pod=pod, name=name, id="" if sandbox else name, group=f"kubepods/pod{name}/{name}", is_sandbox=sandbox
        )
        requests.append(CoreSchedRequest(container=container, group="g"))
    results = node.manager.apply(requests)
    assert [(one.container.name, one.outcome) for one in results] == [
        ("box", ADDED),
        ("old", ASSIGNED),
        ("young", ASSIGNED),
    ], "a sandbox is known by its cgroup alone"


def test_the_agent_gives_itself_no_cookie(node: Node) -> None:
    node.run("agent", "g", 10)
    node.run("other", "g", 20)
    node.manager = CoreSchedManager(node.machine.tree, node.kernel, str(node.record), own_process=10)
    assert node.apply() == {"agent": EMPTY, "other": ADDED}
    assert node.cookies(10) == {0}


def test_a_container_that_is_not_made_yet_has_no_result(node: Node) -> None:
    container = ContainerContext(pod=PodContext(uid="u"), name="c")
    assert node.manager.apply([CoreSchedRequest(container=container, group="g")]) == ()


def test_a_kernel_without_core_scheduling_says_so(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "", 20)
    node.kernel.missing = True
    results = node.results()
    assert [(one.outcome, one.why) for one in results] == [(UNSUPPORTED, "prctl: none here"), (LEFT, "")]


def test_group_identity_keeps_cookies_from_being_given_and_not_from_being_cleared(node: Node) -> None:
    node.run("a", "g", 10)
    node.run("b", "g", 20)
    node.apply()
    node.machine.put("proc/sys/kernel/sched_group_identity_enabled", "1\n")
    node.run("b", "", 20)
    node.run("c", "g", 30)
    results = {one.container.id: (one.outcome, one.why) for one in node.results()}
    said = (UNSUPPORTED, "group identity is on, which excludes core scheduling")
    assert results == {"a": said, "b": (CLEARED, ""), "c": said}
    assert node.cookies(20, 30) == {0}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["move", "fork", "die", "restart", "apply", "foreign"]),
        st.integers(0, 3),
        st.sampled_from(["", "g", "h"]),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_after_any_history_groups_are_apart(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]]
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    processes: dict[str, list[int]] = {}
    fresh = iter(range(100, 1000))
    for action, number, group in steps:
        name = f"c{number}"
        living = processes.setdefault(name, [])
        if action == "move":
            node.groups[name] = group
        elif action == "fork":
            living.append(next(fresh))
            node.kernel.cookies[living[-1]] = node.kernel.cookies[living[0]] if len(living) > 1 else 0
        elif action == "die" and living:
            node.end(living.pop())
        elif action == "foreign" and living:
            node.kernel.cookies[living[0]] = 7
        elif action == "restart":
            node.restart()
        else:
            node.apply()
        node.run(name, node.groups.get(name, ""), *living)
    node.apply()
    node.apply()
    by_group: dict[str | None, set[int]] = {}
    for name, group_of in node.groups.items():
        by_group.setdefault(group_of, set()).update(node.kernel.cookies[one] for one in processes.get(name, []))
    named = [cookies for group_of, cookies in by_group.items() if group_of and cookies]
    assert all(len(cookies) == 1 and cookies != {0} for cookies in named), "one cookie, and no process without"
    assert len({frozenset(cookies) for cookies in named}) == len(named), "no two groups share one"


def test_the_kernels_switches_are_found(node: Node) -> None:
    assert node.manager.kernel() == CoreSchedKernel()
    node.machine.put("proc/sys/kernel/sched_group_identity_enabled", "1\n")
    node.machine.put("sys/kernel/debug/sched_features", "NO_CORE_SCHED\n")
    assert node.manager.kernel() == CoreSchedKernel(identity_switch=True, core_feature=True)
    node.machine.put("proc/sys/kernel/sched_core", "0\n")
    assert node.manager.kernel().core_switch


def test_metrics_show_cookies_and_count_changes(node: Node) -> None:
    metrics = KoordletMetrics("n1")
    node.run("a", "g", 10)
    node.run("b", "g", 20)
    node.kernel.stubborn.add(20)
    for now_s in (0.0, 1.0):
        metrics.record_core_sched(node.results(), now_s)
    (cookie,) = node.cookies(10)
    shown = [labels for labels, _ in metrics.core_sched_cookies]
    assert shown == [("n1", "a", "n", "a", "c", "a", "g", str(cookie))]
    counts = {labels: child.value for labels, child in metrics.core_sched_status}
    assert counts == {("n1", "g", "succeeded"): 1, ("n1", "g", "failed"): 2}
    metrics.expire(300.5)
    assert [labels for labels, _ in metrics.core_sched_status] == [("n1", "g", "failed")]
    metrics.record_core_sched((), 301.0)
    assert list(metrics.core_sched_cookies) == []
