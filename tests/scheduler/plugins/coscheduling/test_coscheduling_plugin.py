"""What Coscheduling says of single pods: worked facts."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.koordinator_args import CoschedulingArgs, defaulted_coscheduling
from koord.api.koordinator.custom_kinds import POD_GROUPS
from koord.api.koordinator.sigs_scheduling import PodGroup
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.verdict import PodPatch, PreBindActions, Reject, Wait
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.fake_handles import FakeLister

LABEL = {"pod-group.scheduling.sigs.k8s.io": "ganga"}


class GangCluster:
    """A plugin with pods and PodGroups that tests write."""

    def __init__(self, **args: Any) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()
        self.pods, self.pod_groups = FakeLister(), FakeLister()
        self.state.set_node(make_node("n0"))
        self.plugin = Coscheduling(defaulted_coscheduling(CoschedulingArgs(**args)), self)

    def lister(self, resource: Resource[Any]) -> Any:
        return self.pod_groups if resource is POD_GROUPS else self.pods

    def now(self) -> float:
        return 0.0

    def group(self, minimum: int, **annotations: str) -> None:
        notes = {f"gang.scheduling.koordinator.sh/{key.replace('_', '-')}": text for key, text in annotations.items()}
        meta = {"name": "ganga", "namespace": "ganga_ns", "annotations": notes}
        self.pod_groups.put(convert({"metadata": meta, "spec": {"minMember": minimum}}, PodGroup))

    def pod(self, name: str, node: str = "", labels: dict[str, str] | None = None, **notes: str) -> PodInfo:
        wire = make_pod(
            name, namespace="ganga_ns", node=node, labels=LABEL if labels is None else labels, annotations=notes
        )
        self.pods.put(wire)
        return self.state.pod_info(wire)

    def permit(self, pod: PodInfo) -> Reject | Wait | None:
        return self.plugin.permit(CycleState(self.state), pod, self.state.table.index["n0"])


def words(verdict: Reject | None) -> str:
    assert verdict is not None
    assert not verdict.resolvable
    return verdict.text


def test_a_pod_of_no_gang_passes() -> None:
    world = GangCluster()
    assert world.plugin.pre_enqueue(world.pod("plain", labels={})) is None
    assert world.permit(world.pod("plain", labels={})) is None


def test_too_few_children() -> None:
    world = GangCluster()
    world.group(4)
    world.pod("pod1")
    assert words(world.plugin.pre_enqueue(world.pod("pod3"))) == (
        "gangGroup [ganga_ns/ganga] basic check: memberGangs [ganga_ns/ganga] child pod not collect enough, "
        "current gang: ganga_ns/ganga, podName: ganga_ns/pod3"
    )


def test_one_queues_for_all() -> None:
    world = GangCluster()
    world.group(4)
    pods = [world.pod(f"pod9-{number}") for number in range(5)]
    late = world.pod("pod9")
    assert world.plugin.pre_enqueue(pods[4]) is None
    assert world.plugin.pre_enqueue(pods[4]) is None, "it may be asked again"
    assert words(world.plugin.pre_enqueue(late)) == (
        "representative pod ganga_ns/pod9-4 of gangGroupID ganga_ns/ganga already exists"
    )
    assert world.plugin.begin_attempt(pods[4]) is None
    assert words(world.plugin.pre_enqueue(late)) == (
        "gangGroup ganga_ns/ganga is scheduling and this pod has not been attempted"
    )


def test_the_total_number_holds_nobody() -> None:
    world = GangCluster()
    world.group(2, total_number="5")
    world.pod("pod0")
    assert world.plugin.pre_enqueue(world.pod("pod1")) is None


def test_a_gang_that_nobody_knows() -> None:
    world = GangCluster()
    stranger = world.state.pod_info(make_pod("p", namespace="ganga_ns", labels=LABEL))
    assert words(world.plugin.pre_enqueue(stranger)) == (
        "can't find gang, gangName: ganga_ns/ganga, podName: ganga_ns/p"
    )
    assert world.permit(stranger) == Reject(("Gang not found",))
    pod = world.pod("p")
    assert words(world.plugin.pre_enqueue(pod)) == "gang has not init, gangName: ganga_ns/ganga, podName: ganga_ns/p"
    assert world.permit(pod) == Wait(0.0)


@pytest.mark.parametrize(
    ("policy", "bound", "answers"),
    [
        pytest.param("", 0, [Wait(10.0), Wait(10.0), None], id="the-third-lets-all-go"),
        pytest.param("once-satisfied", 1, [None], id="once-satisfied"),
        pytest.param("only-waiting", 1, [Wait(10.0), Wait(10.0), None], id="only-waiting"),
        pytest.param("waiting-and-running", 1, [Wait(10.0), None], id="waiting-and-running"),
    ],
)
def test_permit(policy: str, bound: int, answers: list[Wait | None]) -> None:
    world = GangCluster(default_timeout="10s")
    world.group(3, **({"match_policy": policy} if policy else {}))
    for number in range(bound):
        world.pod(f"bound{number}", node="n0")
    pods = [world.pod(f"p{number}") for number in range(len(answers))]
    assert [world.permit(pod) for pod in pods] == answers


def test_members_that_start_together_are_marked_and_the_next_is_not() -> None:
    world = GangCluster()
    world.group(2)
    pods = [world.pod(f"p{number}") for number in range(3)]
    cycle = CycleState(world.state)
    assert (world.permit(pods[0]), world.permit(pods[1])) == (Wait(600.0), None)
    marks = [world.plugin.pre_bind(cycle, pod, "n0") for pod in pods[:2]]
    assert (
        marks[0]
        == marks[1]
        == PodPatch(
            {
                f"{domain}scheduling.koordinator.sh/bind-gang-{key}": value
                for domain in ("internal.", "")
                for key, value in (("group-id", "ganga_ns/ganga"), ("member-count", "2"))
            },
            bound_with_others=True,
        )
    )
    assert world.permit(pods[2]) is None
    assert world.plugin.pre_bind(cycle, pods[2], "n0") is None


def test_stale_marks_are_taken_away() -> None:
    world = GangCluster()
    stale = {"internal.scheduling.koordinator.sh/bind-gang-group-id": "old"}
    work = world.plugin.pre_bind(CycleState(world.state), world.pod("p", labels={}, **stale), "n0")
    assert isinstance(work, PreBindActions)
    assert work.writes[0].patch["metadata"]["annotations"] == dict.fromkeys(stale)


@pytest.mark.parametrize("minimum", [0, 1], ids=["no-minimum", "one-alone"])
def test_a_gang_of_one_goes_at_once(minimum: int) -> None:
    world = GangCluster()
    world.group(minimum)
    pod = world.pod("p")
    assert world.plugin.pre_enqueue(pod) is None
    assert world.plugin.begin_attempt(pod) is None
    assert world.permit(pod) is None
    assert world.plugin.next_pod() is None
