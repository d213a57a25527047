"""A snapshot from lists is the one that the watch would have shown."""

from __future__ import annotations

import asyncio
from typing import Any

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NAMESPACES, REPLICA_SETS, STATEFUL_SETS
from koord.api.kubernetes.resource import Resource
from koord.cli.up.local_descheduler import descheduler_assembly, make_descheduler
from koord.cli.up.local_program import LocalProgram
from koord.descheduler.configuration import DeschedulerSetup
from koord.descheduler.listed_snapshot import required_resources, snapshot_from_lists
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual

CONTAINERS = [{"name": "c", "image": "i"}]


def owner(name: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, "serviceName": name}
    return {"metadata": {"name": name, "namespace": "work"}, "spec": spec}


def test_workloads_and_pods_are_the_same() -> None:
    async def main(clock: LoopClock) -> None:
        made = descheduler_assembly()
        assert isinstance(made, DeschedulerSetup)
        held: list[LocalProgram[Descheduler]] = []

        def local(context: ComponentContext) -> LocalProgram[Descheduler]:
            held.append(make_descheduler(context, made))
            return held[0]

        workloads = ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed))
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), [workloads, ("descheduler", local)], clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        try:
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
            for resource, name in ((DEPLOYMENTS, "d"), (REPLICA_SETS, "r"), (STATEFUL_SETS, "s")):
                body = owner(name)
                if resource is not STATEFUL_SETS:
                    del body["spec"]["serviceName"]
                unwrap(await client.create(resource, body))
            await asyncio.sleep(5)
            patch = {"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}
            unwrap(await client.patch(DEPLOYMENTS, "d", patch, "work", kind="merge"))  # now it has two ReplicaSets
            await asyncio.sleep(5)
            lists: dict[str, Any] = {}
            for resource in required_resources(made.plugins()):
                lists[resource.plural] = unwrap(await client.list(resource)).items

            def of(resource: Resource[Any]) -> Any:
                return lists[resource.plural]

            read = snapshot_from_lists(of, made.plugins(), clock.time())
            watched = held[0].program.snapshot_source.snapshot()
            assert {uid: watched.workloads[uid] for uid in watched.workloads} == read.workloads
            kinds = [(one.kind, one.name, len(one.controller_uids)) for one in set(read.workloads.values())]
            assert sorted(kinds) == [("Deployment", "d", 2), ("ReplicaSet", "r", 1), ("StatefulSet", "s", 1)]
            assert {p.metadata.uid for p in watched.pods} == {p.metadata.uid for p in read.pods}
        finally:
            await cluster.stop()

    run_virtual(main)
