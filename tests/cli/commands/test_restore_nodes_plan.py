"""How koordlets are told to restore their machines, when that is done, and what a Node loses."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import DaemonSet
from koord.api.model import convert
from koord.cli.commands.restore_nodes import RestoreProgress, node_patch, restore_progress, restoring_patch
from koord.cli.manifests.manifests import manifests

Obj = dict[str, Any]


def daemon_set(*, restores: bool = False) -> Obj:
    made = manifests(koordlet_restores=restores)
    assert isinstance(made, list)
    (found,) = [one for one in made if one["kind"] == "DaemonSet"]
    return found


def patched(found: Obj) -> Obj:
    """Return the pod's spec after the patch, whose lists replace those that were there."""
    return {**found["spec"]["template"]["spec"], **restoring_patch(found)["spec"]["template"]["spec"]}


class TestPatch:
    def test_the_pods_are_those_of_a_restoring_installation(self) -> None:
        ours, theirs = patched(daemon_set()), daemon_set(restores=True)["spec"]["template"]["spec"]
        assert ours == theirs

    def test_agents_that_restored_already_are_not_replaced(self) -> None:
        found = daemon_set(restores=True)
        assert patched(found) == found["spec"]["template"]["spec"]

    def test_other_containers_stay(self) -> None:
        found = daemon_set()
        found["spec"]["template"]["spec"]["containers"].append({"name": "other", "image": "x"})
        found["spec"]["template"]["spec"]["initContainers"] = [{"name": "first", "image": "x"}]
        spec = patched(found)
        assert [one["name"] for one in spec["containers"]] == ["koordlet", "other"]
        assert [one["name"] for one in spec["initContainers"]] == ["first", "restore"]

    def test_all_are_replaced_at_once(self) -> None:
        spec = restoring_patch(daemon_set())["spec"]
        assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "100%"
        assert spec["minReadySeconds"] == 0


def pod(node: str, state: Obj | None, last: Obj | None = None) -> Pod:
    """Return a koordlet's pod; `state` is that of the restoring container, None without one."""
    status = {"name": "restore", "state": state, "lastState": last or {}}
    statuses = [] if state is None else [status]
    return convert({"spec": {"nodeName": node}, "status": {"initContainerStatuses": statuses}}, Pod)


def node(name: str, *, ready: bool = True) -> Node:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
    return convert({"metadata": {"name": name}, "status": {"conditions": [condition]}}, Node)


def progress(*pods: Pod, desired: int = 2, observed: int = 2, ready: tuple[str, ...] = ("a", "b")) -> RestoreProgress:
    found = {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": observed, "desiredNumberScheduled": desired},
    }
    nodes = [node(name, ready=name in ready) for name in ("a", "b", "c")]
    return restore_progress(convert(found, DaemonSet), pods, nodes)


DONE: Obj = {"terminated": {"exitCode": 0}}
RUNNING: Obj = {"running": {}}
FAILED: Obj = {"terminated": {"exitCode": 1, "message": "cpu.shares: EBUSY"}}


class TestProgress:
    def test_done_when_every_koordlet_restored(self) -> None:
        assert progress(pod("a", DONE), pod("b", DONE)).complete

    @pytest.mark.parametrize(
        "pods",
        [
            (),
            (pod("a", DONE),),  # the other is not made yet
            (pod("a", DONE), pod("b", RUNNING)),
            (pod("a", DONE), pod("b", {"waiting": {}})),
            (pod("a", DONE), pod("b", None)),  # of the old template
        ],
    )
    def test_not_done_before(self, pods: tuple[Pod, ...]) -> None:
        assert not progress(*pods).complete

    def test_not_done_before_the_controller_knows_the_template(self) -> None:
        assert not progress(pod("a", DONE), pod("b", DONE), observed=1).complete

    def test_what_a_restoring_container_said_is_told(self) -> None:
        for state, last in ((FAILED, None), ({"waiting": {"reason": "CrashLoopBackOff"}}, FAILED)):
            found = progress(pod("a", DONE), pod("b", state, last))
            assert not found.complete
            (failed,) = [one for one in found.nodes if one.state == "failed"]
            assert (failed.node, failed.detail) == ("b", "cpu.shares: EBUSY")

    def test_a_node_that_is_not_ready_is_not_waited_for(self) -> None:
        found = progress(pod("a", DONE), pod("b", None), ready=("a",))
        assert found.complete
        assert found.names("unreachable") == ["b"]
        assert found.names("restored") == ["a"]

    def test_a_node_without_koordlet_has_nothing_to_restore(self) -> None:
        assert progress(pod("a", DONE), desired=1).names("restored") == ["a"]

    def test_a_pod_on_its_way_out_does_not_hide_its_successor(self) -> None:
        for pods in ((pod("a", None), pod("a", DONE)), (pod("a", DONE), pod("a", None))):
            assert progress(*pods, desired=1).complete


def test_a_node_loses_conditions_and_resources() -> None:
    found = convert(
        {
            "metadata": {"name": "a"},
            "status": {
                "allocatable": {"cpu": "4", "kubernetes.io/batch-cpu": "1000"},
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "koordinator.sh/CPUBurst"}],
            },
        },
        Node,
    )
    assert node_patch(found) == {
        "status": {
            "allocatable": {"kubernetes.io/batch-cpu": None},
            "conditions": [{"$patch": "delete", "type": "koordinator.sh/CPUBurst"}],
        }
    }
    assert node_patch(node("b")) == {}
