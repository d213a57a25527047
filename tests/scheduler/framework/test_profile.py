"""What a profile does not call for pods without Koordinator's labels and annotations would do nothing for them."""

from __future__ import annotations

from koord.api.config.scheduler import configuration
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig, ValidationHandle
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import ROW, Reject, Skip, reject
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_info, make_node, make_state
from tests.scheduler.plugin_equivalence import profile_of

KEY = "koordinator.sh/anything"


def _shipped_profile(state: ClusterState) -> SchedulerProfile:
    assembly = CompletedConfig.complete(configuration.configuration(), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    handle = ValidationHandle()
    handle.state = state
    (profile,) = assembly.make_profiles(handle)
    return profile


def test_methods_that_are_not_called_would_do_nothing() -> None:
    state = make_state([make_node()])
    pods = [
        make_info(
            state, name=f"p{i}", labels={"app": f"a{i}"}, annotations={"note": f"{i}"}, more={"nvidia.com/gpu": "1"}
        )
        for i in range(2)
    ]
    cycle, node = CycleState(state), state.table.index["n0"]
    plugins = _shipped_profile(state).plugins()
    assert any(plugin.idle_without_keys for plugin in plugins)
    assert any(plugin.idle_by_labels for plugin in plugins)
    for plugin in plugins:
        assert not plugin.idle_by_labels or plugin.is_idle_for(pods[0]), plugin.name
        for method in (*plugin.idle_without_keys, *plugin.idle_by_labels):
            name = method.__name__
            if name == "signature":
                assert plugin.signature(pods[0]) == plugin.signature(pods[1]), plugin.name
                continue
            given = {"permit": (cycle, pods[0], node), "begin_attempt": (pods[0],)}.get(name, (cycle, pods[0]))
            answer = getattr(plugin, name)(*given)
            assert answer is None or isinstance(answer, Skip), f"{plugin.name}.{name}"


class KeyedPlugin(Plugin):
    """Admit nobody, and say that it admits everybody without a key."""

    name = "Keyed"
    scope = ROW
    idle_without_keys = (Plugin.admit,)

    def admit(self, cycle: CycleState, pod: PodInfo) -> Reject | None:
        return reject("no")


def test_idle_methods_are_called_only_for_pods_with_keys() -> None:
    state = make_state([make_node()])
    engine = SchedulingEngine(profile_of([KeyedPlugin()]), state)
    assert engine.decide(make_info(state, name="plain")).node_name == "n0"
    refused = engine.decide(make_info(state, name="keyed", annotations={KEY: "x"})).decision
    assert "no" in str(refused)


class PickyPlugin(Plugin):
    """Admit nobody, and say that it admits everybody but pods with the label that it is looking for."""

    name = "Picky"
    scope = ROW
    idle_by_labels = (Plugin.admit,)

    def __init__(self) -> None:
        super().__init__()
        self.wanted = ""
        self.asked = 0

    def is_idle_for(self, pod: PodInfo) -> bool:
        self.asked += 1
        return pod.labels.get("app") != self.wanted

    def admit(self, cycle: CycleState, pod: PodInfo) -> Reject | None:
        return reject("no")


def test_a_plugin_is_asked_once_for_equal_labels_whether_it_is_idle_until_that_is_invalidated() -> None:
    state, plugin = make_state([make_node()]), PickyPlugin()
    engine = SchedulingEngine(profile_of([plugin]), state)
    pods = [make_info(state, name=f"p{i}", labels={"app": "a"}) for i in range(3)]
    assert [engine.decide(pod).node_name for pod in pods] == ["n0"] * 3
    assert plugin.asked == 1
    plugin.wanted = "a"
    state.invalidate_idle()
    assert "no" in str(engine.decide(pods[0]).decision)
    assert engine.decide(make_info(state, name="other", labels={"app": "b"})).node_name == "n0"
    keyed = make_info(state, name="keyed", labels={"app": "b"}, annotations={KEY: "x"})
    assert "no" in str(engine.decide(keyed).decision)


class PreparedPlugin(Plugin):
    """Count how often PreFilter runs."""

    name = "Prepared"
    scope = ROW

    def __init__(self) -> None:
        super().__init__()
        self.prepared = 0

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> None:
        self.prepared += 1


def test_pre_filter_runs_again_once_its_results_are_invalidated() -> None:
    state, plugin = make_state([make_node()]), PreparedPlugin()
    engine = SchedulingEngine(profile_of([plugin]), state)
    pod = make_info(state)
    engine.decide(pod)
    engine.decide(pod)
    assert plugin.prepared == 1
    state.invalidate_prefilter()
    engine.decide(pod)
    assert plugin.prepared == 2
