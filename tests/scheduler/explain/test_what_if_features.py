"""A what-if promises nothing twice, and knows gangs: cards, CPUs, quotas and reservations after a preemption."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koord.api.config.component import PluginConfig
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.model import convert, to_dict
from koord.cli import scheduler_setup
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import effective_configuration, load_configuration
from koord.scheduler.explain.http import CONFIGURATION_PATH, explain_routes
from koord.scheduler.explain.what_if import ApiSnapshot, WhatIf, WhatIfOutcome
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from tests.scheduler.faulty_cluster import faulty_cluster
from tests.scheduler.plugins.device_share.device_builders import gpu
from tests.scheduler.plugins.node_numa_resource.numa_cluster import topology

Json = dict[str, Any]
LATER = 1_000_000_000.0
GANG = "gang.scheduling.koordinator.sh/"


def node(name: str = "n0", cpu: str = "4", **more: str) -> Json:
    amounts = {"cpu": cpu, "memory": "64Gi", "pods": "100", **more}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(
    name: str,
    cpu: str = "1",
    *,
    on: str = "",
    priority: int = 1000,
    labels: Json | None = None,
    annotations: Json | None = None,
    **more: str,
) -> Json:
    requests = {"cpu": cpu, **more}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": labels or {},
            "annotations": {k: v if isinstance(v, str) else json.dumps(v) for k, v in (annotations or {}).items()},
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": priority,
            "nodeName": on,
            "containers": [{"name": "c", "resources": {"requests": requests, "limits": requests}}],
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


def what_if(cluster: list[Json], pods: list[Json], *, gang_preemption: bool = False) -> list[WhatIfOutcome]:
    config = scheduler_setup.default_configuration()
    if gang_preemption:
        first, *others = config.profiles
        args = PluginConfig(name="Coscheduling", args={"enablePreemption": True})
        entries = (*(entry for entry in first.plugin_config if entry.name != "Coscheduling"), args)
        config = msgspec.structs.replace(
            config, profiles=(msgspec.structs.replace(first, plugin_config=entries), *others)
        )
    made = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return WhatIf(made, ApiSnapshot(cluster), LATER).decide([convert(each, Pod) for each in pods])


def places(outcomes: list[WhatIfOutcome]) -> list[str]:
    return [outcome.node or outcome.after_eviction_on for outcome in outcomes]


# After a preemption ----------------------------------------------------------------------------------------------

CARD: Json = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}


def one_card() -> list[Json]:
    amounts = {**CARD, "koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu": "100"}
    held = {"gpu": [{"minor": 0, "resources": {**CARD, "koordinator.sh/gpu-memory": "16Gi"}}]}
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n0"},
        "spec": {"devices": [gpu(0)]},
    }
    annotations = {"scheduling.koordinator.sh/device-allocated": held}
    return [node(cpu="32", **amounts), device, pod("low", on="n0", priority=0, annotations=annotations, **CARD)]


def two_bound_cpus() -> list[Json]:
    found = to_dict(topology("n0", (1, 1, 1, 2)))
    found |= {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
    found["metadata"]["name"] = "n0"
    annotations = {
        "scheduling.koordinator.sh/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"},
        "scheduling.koordinator.sh/resource-status": {"cpuset": "0-1"},
    }
    labels = {"koordinator.sh/qosClass": "LSR"}
    return [
        node(cpu="32"),
        found,
        pod("low", "2", on="n0", priority=9000, labels=labels, annotations=annotations),
    ]


def quota() -> list[Json]:
    spec = {"max": {"cpu": "4"}, "min": {"cpu": "4"}}
    metadata = {"name": "q", "namespace": "default"}
    made = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": metadata, "spec": spec}
    return [node(cpu="64"), made, pod("low", "4", on="n0", priority=0, labels=QUOTA)]


QUOTA = {"quota.scheduling.koordinator.sh/name": "q"}


def reservation() -> list[Json]:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}
    made = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r", "uid": "uid-r"},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", **template["spec"]}},
            "owners": [{"labelSelector": {"matchLabels": {"owner": "yes"}}}],
            "allocateOnce": True,
            "ttl": "0s",
        },
        "status": {"phase": "Available", "nodeName": "n0", "allocatable": {"cpu": "2"}},
    }
    return [node(cpu="4"), made, pod("low", "2", on="n0", priority=0)]


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        pytest.param(one_card(), {"more": CARD}, id="card"),
        pytest.param(
            two_bound_cpus(),
            {
                "cpu": "2",
                "priority": 9900,
                "labels": {"koordinator.sh/qosClass": "LSR"},
                "annotations": {"scheduling.koordinator.sh/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"}},
            },
            id="cpus",
        ),
        pytest.param(quota(), {"cpu": "4", "labels": QUOTA}, id="quota"),
        pytest.param(reservation(), {"cpu": "4", "labels": {"owner": "yes"}}, id="reservation"),
    ],
)
def test_what_victims_leave_is_promised_once(cluster: list[Json], asked: Json) -> None:
    more = asked.pop("more", {})
    pods = [pod(name, **asked, **more) for name in ("first", "second")]
    asked["more"] = more
    first, second = what_if(cluster, pods)
    assert first.after_eviction_on == "n0", first
    assert first.attempt is not None
    assert first.attempt.victims == ("default/low",)
    assert places([second]) == [""], second


# Gangs -----------------------------------------------------------------------------------------------------------


def members(count: int, minimum: int, cpu: str = "3", gang: str = "g") -> list[Json]:
    annotations = {f"{GANG}name": gang, f"{GANG}min-available": str(minimum)}
    return [pod(f"{gang}-{i}", cpu, annotations=annotations) for i in range(count)]


def test_a_gang_of_annotations_is_placed_together() -> None:
    assert sorted(places(what_if([node("n0"), node("n1")], members(2, 2)))) == ["n0", "n1"]


def test_members_beyond_the_minimum_are_tried_too() -> None:
    found = what_if([node("n0"), node("n1"), node("n2")], members(3, 2))
    assert sorted(places(found)) == ["n0", "n1", "n2"]


def test_a_gang_of_a_pod_group() -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 2},
    }
    pods = [pod(f"p-{i}", "3", labels={"pod-group.scheduling.sigs.k8s.io": "g"}) for i in range(2)]
    assert sorted(places(what_if([node("n0"), node("n1"), group], pods))) == ["n0", "n1"]


def test_a_gang_that_does_not_fit_leaves_the_room_to_others() -> None:
    *gang, other = what_if([node("n0")], [*members(2, 2), pod("other", "3", priority=0)])
    assert places(gang) == ["", ""]
    assert all("gang" in outcome.message.lower() or "Insufficient cpu" in outcome.message for outcome in gang), gang
    assert other.node == "n0"


@pytest.mark.parametrize("together", [False, True], ids=["default-preemption", "gang-preemption"])
def test_a_gang_that_needs_preemption(together: bool) -> None:
    cluster = [node("n0"), node("n1"), *(pod(f"low-{n}", "3", on=n, priority=0) for n in ("n0", "n1"))]
    found = what_if(cluster, members(2, 2), gang_preemption=together)
    assert sorted(outcome.after_eviction_on for outcome in found) == ["n0", "n1"]
    victims = [victim for outcome in found if outcome.attempt for victim in outcome.attempt.victims]
    assert sorted(set(victims)) == ["default/low-n0", "default/low-n1"]


def test_an_incomplete_gang_says_what_it_lacks() -> None:
    (found,) = what_if([node("n0")], members(1, 2))
    assert (found.node, found.gated_by) == ("", "Coscheduling")
    assert "can't find gang" not in found.message


def test_members_that_run_already_count() -> None:
    running = members(1, 2)[0]
    running["metadata"] |= {"name": "g-running", "uid": "uid-running"}
    running["spec"]["nodeName"] = "n0"
    assert places(what_if([node("n0"), node("n1"), running], members(1, 2))) == ["n1"]


# Configuration ---------------------------------------------------------------------------------------------------


def test_the_configuration_that_a_scheduler_serves_makes_the_same_one() -> None:
    async def main(clock: LoopClock) -> None:
        given = CompletedConfig.complete(configuration.configuration(), REGISTRY, {"MultiQuotaTree": True})
        assert isinstance(given, CompletedConfig)
        async with faulty_cluster(clock, given) as world:
            routes = dict(explain_routes(world.scheduler, clock))
            reply: Any = routes[CONFIGURATION_PATH](HttpCall(method="GET", path=CONFIGURATION_PATH))
        served = json.loads(reply.body)
        read = load_configuration(served["configuration"])
        assert isinstance(read, KubeSchedulerConfiguration), read
        made = CompletedConfig.complete(read, REGISTRY, served["featureGates"])
        assert isinstance(made, CompletedConfig)
        assert effective_configuration(made) == effective_configuration(given)
        assert made.gates == given.gates
        assert made.gates["MultiQuotaTree"]

    run_virtual(main)
