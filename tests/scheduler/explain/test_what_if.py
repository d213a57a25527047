"""A what-if runs the same points as the live loop, and a pod that Reserve rejects leaves nothing behind."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from koord.cli.commands.simulate import print_outcomes
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.what_if import ApiSnapshot, WhatIf
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import SKIP, Reject, Skip, reject
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory
from tests.scheduler.builders import make_pod
from tests.scheduler.configuration.fake_plugins import assembled

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n0", "uid": "n0"},
    "status": {"allocatable": {"cpu": "4", "pods": "10"}},
}


class Allocating(Plugin):
    """Hold something for each pod from Reserve on."""

    name = "Allocating"

    def __init__(self) -> None:
        self.held: set[str] = set()

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        self.held.add(pod.name)
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self.held.discard(pod.name)


class RejectingOne(Plugin):
    name = "RejectingOne"

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject("taken meanwhile") if pod.name == "a" else None


class Skipping(Plugin):
    """Skip every pod in PreFilter, and with it Reserve."""

    name = "Skipping"
    reserves_as_it_filters = True

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Skip:
        return SKIP

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject("is not to be asked")


def factory_of(plugin: Plugin) -> PluginFactory:
    return lambda args, handle: plugin


def what_if(*plugins: Plugin) -> WhatIf:
    enabled = {"multiPoint": {"enabled": [{"name": plugin.name} for plugin in plugins]}}
    made = {plugin.name: factory_of(plugin) for plugin in plugins}
    completed = assembled({"profiles": [{"plugins": enabled}]}, {**REGISTRY, **made})
    assert isinstance(completed, CompletedConfig), completed
    return WhatIf(completed, ApiSnapshot([NODE]), 0.0)


def asking(name: str) -> Pod:
    return make_pod(name, cpu="3", schedulerName="default-scheduler")


def test_a_rejection_at_reserve_is_undone() -> None:
    allocating = Allocating()
    first, second = what_if(allocating, RejectingOne()).decide([asking("a"), asking("b")])
    assert (first.node, first.message) == ("", "0/1 nodes are available: 1 taken meanwhile.")
    assert second.node == "n0", "the resources of the first pod are free again"
    assert allocating.held == {"b"}


def test_a_plugin_that_skips_a_pod_is_not_asked_to_reserve() -> None:
    (found,) = what_if(Skipping()).decide([asking("a")])
    assert found.node == "n0"


def test_extenders_that_the_scheduler_would_ask_are_named() -> None:
    def extender(port: int, **more: object) -> dict[str, object]:
        return {"urlPrefix": f"http://127.0.0.1:{port}", "weight": 1, "filterVerb": "filter", **more}

    config = assembled(
        {
            "extenders": [
                extender(1),
                extender(2, managedResources=[{"name": "example.com/fpga"}]),
                {"urlPrefix": "http://127.0.0.1:3", "weight": 1, "bindVerb": "bind"},
            ]
        }
    )
    assert isinstance(config, CompletedConfig)
    (outcome,) = WhatIf(config, ApiSnapshot([NODE]), 0.0).decide([asking("a")])
    assert outcome.node == "n0"
    assert outcome.extenders_not_asked == ("http://127.0.0.1:1",)
    out = StringIO()
    print_outcomes(Console(file=out, width=120), [outcome])
    assert "Not asked, though the scheduler asks them about such pods: http://127.0.0.1:1" in out.getvalue()
