"""Each event that plugins register turns a rejection, and the queueing hints skip the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.in_tree_args import NodeAffinityArgs, NodeResourcesFitArgs, defaulted_fit
from koord.api.kubernetes.affinity import NodeAffinity as NodeAffinitySpec
from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.node_affinity import NodeAffinityPlugin
from koord.scheduler.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable, TaintToleration
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.builders import make_node, make_pod, make_state, node_term, required_nodes

FIT = NodeResourcesFit(defaulted_fit(NodeResourcesFitArgs()))
AFFINITY = NodeAffinityPlugin(NodeAffinityArgs())
PORT = ("TCP", "", 80)
EXISTS = {"operator": "Exists"}


class Turn(msgspec.Struct, frozen=True):
    """A pod that no node of the cluster takes, and what happens then: a node or another pod becomes `new`."""

    plugin: Plugin
    pod: Pod
    event: ClusterEvent
    old: Any = None
    new: Any = None
    bystanders: tuple[Node | Pod, ...] = ()


TURNS = [
    pytest.param(
        Turn(NodeUnschedulable(), make_pod(), ClusterEvent("Node", "add"), new=make_node()),
        id="unschedulable-node-added",
    ),
    pytest.param(
        Turn(
            NodeUnschedulable(),
            make_pod(),
            ClusterEvent("Node", "update", "unschedulable"),
            old=make_node(unschedulable=True),
            new=make_node(),
        ),
        id="uncordoned",
    ),
    pytest.param(
        Turn(
            NodeUnschedulable(),
            make_pod(),
            ClusterEvent("Pod", "update", "tolerations"),
            old=make_pod(),
            new=make_pod(tolerations=[EXISTS]),
            bystanders=(make_node(unschedulable=True),),
        ),
        id="cordon-tolerated",
    ),
    pytest.param(
        Turn(NodeName(), make_pod(node="n7"), ClusterEvent("Node", "add"), new=make_node("n7")), id="named-node-added"
    ),
    pytest.param(
        Turn(TaintToleration(), make_pod(), ClusterEvent("Node", "add"), new=make_node()), id="untainted-node-added"
    ),
    pytest.param(
        Turn(
            TaintToleration(),
            make_pod(),
            ClusterEvent("Node", "update", "taints"),
            old=make_node(taints=["a=:NoSchedule", "b=:PreferNoSchedule"]),
            new=make_node(taints=["b=:PreferNoSchedule"]),
        ),
        id="taint-removed",
    ),
    pytest.param(
        Turn(
            TaintToleration(),
            make_pod(),
            ClusterEvent("Pod", "update", "tolerations"),
            old=make_pod(),
            new=make_pod(tolerations=[EXISTS]),
            bystanders=(make_node(taints=["a=:NoSchedule"]),),
        ),
        id="taint-tolerated",
    ),
    pytest.param(
        Turn(
            AFFINITY, make_pod(nodeSelector={"a": "b"}), ClusterEvent("Node", "add"), new=make_node(labels={"a": "b"})
        ),
        id="matching-node-added",
    ),
    pytest.param(
        Turn(
            AFFINITY,
            make_pod(nodeSelector={"a": "b"}),
            ClusterEvent("Node", "update", "labels"),
            old=make_node(),
            new=make_node(labels={"a": "b"}),
        ),
        id="label-added",
    ),
    pytest.param(
        Turn(NodePorts(), make_pod(ports=[PORT]), ClusterEvent("Node", "add"), new=make_node()), id="port-node-added"
    ),
    pytest.param(
        Turn(
            NodePorts(),
            make_pod(ports=[PORT]),
            ClusterEvent("Pod", "delete"),
            old=make_pod("holder", node="n0", ports=[PORT]),
            bystanders=(make_node(),),
        ),
        id="port-released",
    ),
    pytest.param(
        Turn(FIT, make_pod(cpu="8"), ClusterEvent("Node", "add"), new=make_node(cpu="8")), id="large-node-added"
    ),
    pytest.param(
        Turn(
            FIT,
            make_pod(cpu="8"),
            ClusterEvent("Node", "update", "allocatable"),
            old=make_node(cpu="4"),
            new=make_node(cpu="8"),
        ),
        id="node-grew",
    ),
    pytest.param(
        Turn(
            FIT,
            make_pod(),
            ClusterEvent("Node", "update", "allocatable"),
            old=make_node(pods="0"),
            new=make_node(pods="1"),
        ),
        id="node-takes-more-pods",
    ),
    pytest.param(
        Turn(
            FIT,
            make_pod(cpu="8"),
            ClusterEvent("Pod", "delete"),
            old=make_pod("big", node="n0", cpu="1"),
            bystanders=(make_node(cpu="8"),),
        ),
        id="pod-deleted",
    ),
    pytest.param(
        Turn(
            FIT,
            make_pod(cpu="6"),
            ClusterEvent("Pod", "update", "scale-down"),
            old=make_pod("big", node="n0", cpu="4"),
            new=make_pod("big", node="n0", cpu="2"),
            bystanders=(make_node(cpu="8"),),
        ),
        id="pod-scaled-down",
    ),
    pytest.param(
        Turn(
            FIT,
            make_pod(cpu="9"),
            ClusterEvent("Pod", "update", "scale-down"),
            old=make_pod(cpu="9"),
            new=make_pod(cpu="2"),
            bystanders=(make_node(cpu="8"),),
        ),
        id="the-pod-itself-asks-for-less",
    ),
]


def _put(state: ClusterState, thing: Node | Pod | None) -> None:
    if isinstance(thing, Node):
        state.set_node(thing)
    elif isinstance(thing, Pod):
        state.set_pod(thing)


def _fits(state: ClusterState, plugin: Plugin, pod: Pod) -> bool:
    return any(plugin.filter(CycleState(state), state.pod_info(pod), node) is None for node in state.nodes())


def _happened(state: ClusterState, turn: Turn) -> ObjectEvent:
    old, new = (state.pod_info(thing) if isinstance(thing, Pod) else thing for thing in (turn.old, turn.new))
    return ObjectEvent(turn.event, old, new)


@pytest.mark.parametrize("turn", TURNS)
def test_turns_a_refusal(turn: Turn) -> None:
    state = make_state()
    for thing in (*turn.bystanders, turn.old):
        _put(state, thing)
    assert not _fits(state, turn.plugin, turn.pod)
    assert any(known.covers(turn.event) for known in turn.plugin.wakes_on)
    assert turn.plugin.queueing_hint(state.pod_info(turn.pod), _happened(state, turn))
    if turn.new is None:
        state.drop_pod(turn.old.metadata.uid)
    _put(state, turn.new)
    asked = turn.new if isinstance(turn.new, Pod) and turn.new.metadata.uid == turn.pod.metadata.uid else turn.pod
    assert _fits(state, turn.plugin, asked)


def test_every_event_that_is_waited_for_is_shown_to_help() -> None:
    shown = {(turn.plugin.name, turn.event) for param in TURNS for turn in param.values if isinstance(turn, Turn)}
    for plugin in (NodeUnschedulable(), NodeName(), TaintToleration(), AFFINITY, NodePorts(), FIT):
        assert {(plugin.name, event) for event in plugin.wakes_on} <= shown


ENFORCED = NodeAffinityPlugin(
    NodeAffinityArgs(
        added_affinity=convert(required_nodes(node_term(("zone", "In", ["a"])))["nodeAffinity"], NodeAffinitySpec)
    )
)


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(
            Turn(NodeUnschedulable(), make_pod(), ClusterEvent("Node", "add"), new=make_node(unschedulable=True)),
            id="cordoned-node-added",
        ),
        pytest.param(
            Turn(
                NodeUnschedulable(),
                make_pod(),
                ClusterEvent("Pod", "update", "tolerations"),
                old=make_pod(),
                new=make_pod(tolerations=[{"key": "other", "operator": "Exists"}]),
            ),
            id="another-toleration",
        ),
        pytest.param(
            Turn(
                NodeUnschedulable(),
                make_pod(),
                ClusterEvent("Pod", "update", "tolerations"),
                old=make_pod("other"),
                new=make_pod("other", tolerations=[EXISTS]),
            ),
            id="another-pod-tolerates",
        ),
        pytest.param(
            Turn(TaintToleration(), make_pod(), ClusterEvent("Node", "add"), new=make_node(taints=["a=:NoExecute"])),
            id="tainted-node-added",
        ),
        pytest.param(
            Turn(
                TaintToleration(),
                make_pod(),
                ClusterEvent("Node", "update", "taints"),
                old=make_node(taints=["a=:PreferNoSchedule"]),
                new=make_node(),
            ),
            id="was-not-repelled-before",
        ),
        pytest.param(
            Turn(AFFINITY, make_pod(nodeSelector={"a": "b"}), ClusterEvent("Node", "add"), new=make_node()),
            id="other-node-added",
        ),
        pytest.param(
            Turn(
                AFFINITY,
                make_pod(nodeSelector={"a": "b"}),
                ClusterEvent("Node", "update", "labels"),
                old=make_node(labels={"a": "b"}),
                new=make_node(labels={"a": "b", "c": "d"}),
            ),
            id="matched-before",
        ),
        pytest.param(
            Turn(ENFORCED, make_pod(), ClusterEvent("Node", "add"), new=make_node(labels={"zone": "b"})),
            id="not-what-the-scheduler-enforces",
        ),
        pytest.param(
            Turn(
                NodePorts(),
                make_pod(ports=[PORT]),
                ClusterEvent("Pod", "delete"),
                old=make_pod("other", node="n0", ports=[("UDP", "", 80)]),
            ),
            id="another-port-released",
        ),
        pytest.param(
            Turn(
                NodePorts(), make_pod(ports=[PORT]), ClusterEvent("Pod", "delete"), old=make_pod("other", ports=[PORT])
            ),
            id="the-holder-was-nowhere",
        ),
        pytest.param(
            Turn(FIT, make_pod(cpu="8"), ClusterEvent("Node", "add"), new=make_node(cpu="4")), id="small-node-added"
        ),
        pytest.param(
            Turn(
                FIT,
                make_pod(cpu="8"),
                ClusterEvent("Node", "update", "allocatable"),
                old=make_node(cpu="8", memory="1Gi"),
                new=make_node(cpu="8", memory="2Gi"),
            ),
            id="grew-in-what-is-not-asked-for",
        ),
        pytest.param(
            Turn(FIT, make_pod(cpu="8"), ClusterEvent("Pod", "delete"), old=make_pod("other", cpu="8")),
            id="deleted-pod-was-nowhere",
        ),
        pytest.param(
            Turn(
                FIT,
                make_pod(cpu="8"),
                ClusterEvent("Pod", "update", "scale-down"),
                old=make_pod("other", node="n0", memory="2Gi"),
                new=make_pod("other", node="n0", memory="1Gi"),
            ),
            id="gave-back-what-is-not-asked-for",
        ),
        pytest.param(
            Turn(
                FIT,
                make_pod(cpu="8"),
                ClusterEvent("Pod", "update", "scale-down"),
                old=make_pod("other", cpu="2"),
                new=make_pod("other", cpu="1"),
            ),
            id="scaled-down-pod-was-nowhere",
        ),
    ],
)
def test_leaves_asleep(turn: Turn) -> None:
    state = make_state()
    assert not turn.plugin.queueing_hint(state.pod_info(turn.pod), _happened(state, turn))


def test_a_nominated_pod_that_goes_gives_its_room_back() -> None:
    state = make_state()
    gone = state.pod_info(make_pod("gone", nominated="n0", ports=[PORT]))
    object_event = ObjectEvent(ClusterEvent("Pod", "delete"), gone, None)
    for plugin in (FIT, NodePorts()):
        assert plugin.queueing_hint(state.pod_info(make_pod(cpu="8", ports=[PORT])), object_event)


def test_ignored_resources_do_not_keep_a_pod_asleep() -> None:
    plugin = NodeResourcesFit(defaulted_fit(NodeResourcesFitArgs(ignored_resources=("example.com/nic",))))
    pod = make_state().pod_info(make_pod(cpu="8", more={"example.com/nic": "1"}))
    assert plugin.queueing_hint(pod, ObjectEvent(ClusterEvent("Node", "add"), None, make_node(cpu="8")))
    assert not FIT.queueing_hint(pod, ObjectEvent(ClusterEvent("Node", "add"), None, make_node(cpu="8")))
