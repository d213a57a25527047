"""This module decides how koordlets are told to restore their machines, how far they are, and what a Node loses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.apps import DaemonSet
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.cli.manifests.koordlet_daemonset import NAME, RESTORE, SAFE_MODE, restoring_container
from koord.koordlet.reporters.builders.node_conditions import PREFIX
from koord.manager.colocation.device_resources import decide_node_removal

Obj = dict[str, Any]
RestoreState = Literal["restored", "waiting", "failed", "unreachable"]


class NodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the koordlet of one node is with putting the machine back; `detail` is what it said last."""

    node: str
    state: RestoreState
    detail: str = ""


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far all koordlets are. `complete` counts the nodes that nobody can restore now as done."""

    nodes: tuple[NodeProgress, ...]
    complete: bool

    def names(self, state: RestoreState) -> list[str]:
        return [one.node for one in self.nodes if one.state == state]


def restoring_patch(daemon_set: Obj) -> Obj:
    """Return the merge patch that has each koordlet replaced by one that restores its machine and then writes nothing.

    All are replaced at once: nothing is to be protected any more.
    """
    spec = daemon_set["spec"]["template"]["spec"]
    agent = next(one for one in spec["containers"] if one["name"] == NAME)
    args = [*agent["args"], *(() if SAFE_MODE in agent["args"] else (SAFE_MODE,))]
    agents = [{**one, "args": args} if one["name"] == NAME else one for one in spec["containers"]]
    others = [one for one in spec.get("initContainers", ()) if one["name"] != RESTORE]
    inits = [*others, restoring_container({**agent, "args": args})]
    return {
        "spec": {
            "minReadySeconds": 0,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}},
            "template": {"spec": {"containers": agents, "initContainers": inits}},
        }
    }


def restore_progress(daemon_set: DaemonSet, pods: Iterable[Pod], nodes: Iterable[Node]) -> RestoreProgress:
    """Judge by the pods of the DaemonSet, of which those of an older template count for nothing."""
    ready = {node.metadata.name for node in nodes if _is_ready(node)}
    by_node: dict[str, NodeProgress] = {}
    for pod in pods:
        name = pod.spec.node_name
        progress = _progress(pod, reachable=name in ready)
        if name and (name not in by_node or by_node[name].state == "waiting"):
            by_node[name] = progress
    found = tuple(by_node[name] for name in sorted(by_node))
    status = daemon_set.status
    seen = (status.observed_generation or 0) >= daemon_set.metadata.generation
    settled = [one for one in found if one.state in ("restored", "unreachable")]
    complete = seen and len(settled) == len(found) and len(settled) >= status.desired_number_scheduled
    return RestoreProgress(nodes=found, complete=complete)


def node_patch(node: Node) -> Obj:
    """Return the strategic merge patch of the node's status without what koord wrote there; empty when nothing is."""
    patch = decide_node_removal(node)
    conditions = [
        {"$patch": "delete", "type": one.type} for one in node.status.conditions if one.type.startswith(PREFIX)
    ]
    if conditions:
        patch.setdefault("status", {})["conditions"] = conditions
    return patch


def _progress(pod: Pod, *, reachable: bool) -> NodeProgress:
    name = pod.spec.node_name
    state = next((one for one in pod.status.init_container_statuses if one.name == RESTORE), None)
    ended = None if state is None else state.state.terminated or state.last_state.terminated
    if ended is not None and ended.exit_code == 0:
        return NodeProgress(node=name, state="restored", detail=ended.message)
    if not reachable:
        return NodeProgress(node=name, state="unreachable", detail="the node is not ready")
    if ended is not None:
        return NodeProgress(node=name, state="failed", detail=ended.message or f"exit code {ended.exit_code}")
    return NodeProgress(node=name, state="waiting")


def _is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
