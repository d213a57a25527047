"""Where the placeholder binder puts pods, and what it says of those that fit nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.affinity import Taint
from koord.api.builtin import CORE_EVENTS, PODS
from koord.embedded.binder import Binder
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.profile import Pool
from koord.kube.client import Client
from koord.kube.refused import ok
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.kubelet.fleet_harness import pod

POOLS = (
    Pool(name="small", count=2, cpu=2, memory="4Gi", labels={"size": "small"}),
    Pool(name="big", count=1, cpu=16, memory="64Gi", taints=(Taint(key="big", value="yes", effect="NoSchedule"),)),
)


def placed(pods: list[dict[str, Any]], pools: tuple[Pool, ...] = POOLS) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The node of each pod after a while, and the reasons of the events about it."""

    async def main(clock: LoopClock) -> tuple[dict[str, str], dict[str, set[str]]]:
        def binder(context: Context) -> Binder:
            return Binder(context.client, context.informers, context.clock)

        def fleet(context: Context) -> Fleet:
            return Fleet(context.client, context.informers, context.clock, context.seed, pools)

        cluster = Cluster(Settings(http=False, seed=1), [("binder", binder), ("fleet", fleet)], clock=clock)
        await cluster.start()
        assert cluster.client is not None
        for body in pods:
            ok(await cluster.client.create(PODS, body))
        await clock.sleep(60)
        found = await outcome(cluster.client)
        await cluster.stop()
        return found

    return run_virtual(main)


async def outcome(client: Client) -> tuple[dict[str, str], dict[str, set[str]]]:
    nodes = {p.metadata.name: p.spec.node_name for p in ok(await client.list(PODS, "default")).items}
    reasons: dict[str, set[str]] = {}
    for event in ok(await client.list(CORE_EVENTS, "default")).items:
        reasons.setdefault(event.involved_object.name, set()).add(event.reason)
    return nodes, reasons


def test_pods_are_spread_and_announced() -> None:
    nodes, reasons = placed([pod(f"p{n}", node="") for n in range(4)])
    assert sorted(nodes.values()) == ["small-0", "small-0", "small-1", "small-1"]
    assert all("Scheduled" in reasons[name] for name in nodes)


def test_room_is_not_promised_twice() -> None:
    nodes, reasons = placed([pod(f"p{n}", node="", cpu="1500m") for n in range(3)])
    assert sorted(nodes.values()) == ["", "small-0", "small-1"]
    left = next(name for name, node in nodes.items() if not node)
    assert reasons[left] == {"FailedScheduling"}


def test_finished_pod_makes_room() -> None:
    says = {"start-seconds": 0, "run-seconds": 5}
    nodes, _ = placed([pod(f"p{n}", node="", cpu="1500m", says=says, restartPolicy="Never") for n in range(6)])
    assert "" not in nodes.values()


@pytest.mark.parametrize(
    ("body", "node"),
    [
        pytest.param(pod("p", node="", cpu="4"), "", id="taint-keeps-off"),
        pytest.param(
            pod("p", node="", cpu="4", tolerations=[{"key": "big", "operator": "Exists"}]), "big-0", id="tolerated"
        ),
        pytest.param(
            pod("p", node="", cpu="4", tolerations=[{"key": "big", "value": "no"}]), "", id="tolerates-another-value"
        ),
        pytest.param(pod("p", node="", nodeSelector={"size": "huge"}), "", id="no-node-has-the-label"),
        pytest.param(pod("p", node="", schedulerName="other"), "", id="another-scheduler"),
        pytest.param(pod("p", node="", schedulingGates=[{"name": "wait"}]), "", id="gated"),
        pytest.param(pod("p", node="", schedulerName="koord-scheduler"), "small-0", id="our-scheduler"),
    ],
)
def test_rule(body: dict[str, Any], node: str) -> None:
    nodes, _ = placed([body])
    assert nodes == {"p": node}


def test_extended_resource_must_be_there() -> None:
    body = pod("p", node="")
    asked = {"example.com/card": "1"}
    body["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
    assert placed([body])[0] == {"p": ""}
    card = (Pool(name="card", count=1, resources={"example.com/card": 1}),)
    assert placed([body], (*POOLS, *card))[0] == {"p": "card-0"}
