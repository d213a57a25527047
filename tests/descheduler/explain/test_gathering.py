"""A snapshot from lists is the one that the watch would have shown."""

from __future__ import annotations

import asyncio
from typing import Any

from koord.api.builtin import DEPLOYMENTS, NAMESPACES, REPLICA_SETS, STATEFUL_SETS
from koord.api.resource import Resource
from koord.cli.local_descheduler import LocalDescheduler, assembled
from koord.descheduler.assembly import Assembly
from koord.descheduler.explain.gathering import gathered, wanted
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.workloads.workloads import Workloads
from koord.kube.refused import ok
from koord.telemetry.clock import LoopClock, run_virtual

CONTAINERS = [{"name": "c", "image": "i"}]


def owner(name: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, "serviceName": name}
    return {"metadata": {"name": name, "namespace": "work"}, "spec": spec}


def test_workloads_and_pods_are_the_same() -> None:
    async def main(clock: LoopClock) -> None:
        made = assembled()
        assert isinstance(made, Assembly)
        held: list[LocalDescheduler] = []

        def local(context: Context) -> LocalDescheduler:
            held.append(LocalDescheduler(context, made))
            return held[0]

        workloads = ("workloads", lambda c: Workloads(c.client, c.informers, c.clock, c.seed))
        cluster = Cluster(Settings(http=False, seed=1), [workloads, ("descheduler", local)], clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        try:
            ok(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
            for resource, name in ((DEPLOYMENTS, "d"), (REPLICA_SETS, "r"), (STATEFUL_SETS, "s")):
                body = owner(name)
                if resource is not STATEFUL_SETS:
                    del body["spec"]["serviceName"]
                ok(await client.create(resource, body))
            await asyncio.sleep(5)
            patch = {"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}
            ok(await client.patch(DEPLOYMENTS, "d", patch, "work", kind="merge"))  # now it has two ReplicaSets
            await asyncio.sleep(5)
            lists: dict[str, Any] = {}
            for resource in wanted(made.plugins()):
                lists[resource.plural] = ok(await client.list(resource)).items

            def of(resource: Resource[Any]) -> Any:
                return lists[resource.plural]

            read = gathered(of, made.plugins(), clock.time())
            watched = held[0].descheduler.view.snapshot()
            assert {uid: watched.workloads[uid] for uid in watched.workloads} == read.workloads
            kinds = [(one.kind, one.name, len(one.controllers)) for one in set(read.workloads.values())]
            assert sorted(kinds) == [("Deployment", "d", 2), ("ReplicaSet", "r", 1), ("StatefulSet", "s", 1)]
            assert {p.metadata.uid for p in watched.pods} == {p.metadata.uid for p in read.pods}
        finally:
            await cluster.stop()

    run_virtual(main)
