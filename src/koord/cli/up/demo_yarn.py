"""This module is the story of `koord up --demo yarn`: Hadoop's own ResourceManager and NodeManager beside a simulated
node, in real time.

The operator is koord-yarn-operator's, in this process. Containers of YARN are processes of this machine; what the node
lends is what its simulated services leave.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.koordinator.yarn import A_NODE_ID, MILLI_PER_VCORE
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NODES, PODS
from koord.cli.up.demo import YARN
from koord.cli.up.demo_story import NAMESPACE, Stage, Story, a_pod
from koord.cli.up.local_hadoop import LocalYarn, find_hadoop
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.controller.process import StandaloneProgram
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.manager.reconcile_loop import ManagerSettings
from koord.telemetry.metrics import MetricRegistry
from koord.values.quantity import Quantity
from koord.wire.hadoop_yarn import NodeReport, ResourceMessage
from koord.yarn.capacity import held_by_yarn
from koord.yarn.operator import OperatorSettings, YarnOperator

CLAIM = (
    "a NodeManager of Hadoop YARN offers what its node lends; when services need it back, its containers run on for a "
    "while, and then only those go that do not fit"
)
NODE, CPUS = "node-0", 16
CONTAINERS, VCORES, MEMORY_MIB = 3, 2, 1024
IDLE_CPU, BUSY_CPU = "1", "7"
START_S = 240.0  # two JVMs on a busy machine
REPORTED_S = 180.0  # a report of the node, and what follows from it
OVER_COMMIT_S = 20
# The shortest that koordlet takes: the defaults, one minute and five, are longer than anybody looks.
COLOCATION = {"enable": True, "metricReportIntervalSeconds": 30, "metricAggregateDurationSeconds": 60}
SERVICE = "web"


class SharedNode(msgspec.Struct, frozen=True, kw_only=True):
    """SharedNode is who has what of the node's batch resources at one moment."""

    lent_milli: int  # in all
    left_milli: int  # for pods
    held_milli: int  # what the node says that YARN holds
    yarn: NodeReport

    @property
    def offered(self) -> ResourceMessage:
        return self.yarn.capability or ResourceMessage()

    @property
    def used(self) -> ResourceMessage:
        return self.yarn.used or ResourceMessage()


def yarn_story(environ: Mapping[str, str]) -> Story | str:
    """Return the story, or the sentence that says what is missing for it."""
    programs = find_hadoop(environ)
    if isinstance(programs, str):
        return programs

    async def tell(stage: Stage) -> None:
        with tempfile.TemporaryDirectory(prefix="koord-yarn-", ignore_cleanup_errors=True) as folder:
            yarn = LocalYarn(programs, Path(folder))
            try:
                yarn.start()
                await _YarnStory(stage, yarn).tell()
            finally:
                yarn.stop()

    pools = (SimulatedPool(name="node", count=1, cpu=CPUS, memory="64Gi"),)
    return Story(name=YARN, claim=CLAIM, pools=pools, tell=tell, in_real_time=True)


class _YarnStory:
    def __init__(self, stage: Stage, yarn: LocalYarn) -> None:
        self._stage = stage
        self._yarn = yarn

    async def tell(self) -> None:
        stage, yarn = self._stage, self._yarn
        stage.say(f"A simulated node of {CPUS} CPUs; one service uses {IDLE_CPU} of them. Hadoop's programs start.")
        settings = ManagerSettings(gates={})
        document = {"data": {"colocation-config": json.dumps(COLOCATION)}}
        unwrap(
            await stage.client.patch(
                CONFIG_MAPS, settings.config_name, document, settings.config_namespace, kind="merge"
            )
        )
        await stage.create(PODS, _service())
        own = await self._registered()
        stage.say(f"The NodeManager registered as {own.node_id_text}, with the {own.vcores} vcore of its own file.")
        await stage.create(PODS, _node_manager_pod(own.node_id_text))
        informers = InformerFactory(stage.client, stage.clock)
        operator = StandaloneProgram(
            "koord-yarn-operator",
            YarnOperator(
                stage.client,
                informers,
                stage.clock,
                [yarn.client()],
                OperatorSettings(interval_s=1.0, over_commit_timeout_ms=OVER_COMMIT_S * 1000),
                registry=MetricRegistry(),
            ),
        )
        informers.start()
        try:
            await informers.wait_for_cache_sync(START_S)
            await operator.start()
            await self._share()
        finally:
            await operator.stop()
            await informers.stop()

    async def _share(self) -> None:
        stage = self._stage
        first = await self._until(
            "the NodeManager offers what the node lends", lambda one: _follows(one) and one.offered.vcores > 2
        )
        stage.say(
            "koord-yarn-operator told the ResourceManager what the node lends, less what the NodeManager's pod asks "
            "for:"
        )
        self._show(first)

        for number in range(1, CONTAINERS + 1):
            await asyncio.to_thread(self._yarn.submit, f"job-{number}", "sleep 600", MEMORY_MIB, VCORES)
        full = CONTAINERS * VCORES
        filled = await self._until(
            f"YARN runs {CONTAINERS} containers and the node says so",
            lambda one: one.used.vcores == full and _is_subtracted(one),
        )
        stage.say(
            f"YARN runs {CONTAINERS} containers of {VCORES} vcores. What they hold is subtracted from what batch pods "
            "get:"
        )
        self._show(filled)

        stage.say(f"The service gets busy: {BUSY_CPU} CPUs. The node reports averages of a minute.")
        await self._load(BUSY_CPU)
        shrunk = await self._until(
            "the NodeManager offers less than its containers hold", lambda one: one.offered.vcores < full
        )
        since = stage.passed_s
        stage.say(
            f"The node lends less than YARN holds. No container may start; those that run have {OVER_COMMIT_S} s to be "
            "given back:"
        )
        self._show(shrunk)
        stage.check(shrunk.yarn.containers == CONTAINERS, "no container is killed at once")
        await stage.sleep(OVER_COMMIT_S / 2 - (stage.passed_s - since))
        halfway = await self._look()
        stage.check(
            halfway is not None and halfway.yarn.containers == CONTAINERS, f"all run after half of {OVER_COMMIT_S} s"
        )

        left = await self._until(
            "what is over goes after the timeout",
            lambda one: one.used.vcores <= one.offered.vcores and _is_subtracted(one),
        )
        fits = left.offered.vcores // VCORES
        stage.say(
            f"After {stage.passed_s - since:.0f} s the ResourceManager ended what does not fit, and nothing else:"
        )
        self._show(left)
        stage.check(left.yarn.containers == fits, f"{fits} containers fit and run on, not {left.yarn.containers}")

        await self._load(IDLE_CPU)
        again = await self._until("YARN runs all again", lambda one: one.used.vcores == full and _is_subtracted(one))
        stage.say("The service is idle again: the node lends more, and YARN starts by itself what it had to end:")
        self._show(again)

    async def _registered(self) -> _Registered:
        async def is_there() -> bool:
            ended = self._yarn.ended()
            self._stage.check(not ended, ended)
            # A ResourceManager lists NodeManagers a moment before it takes changes.
            return await self._yarn.report() is not None and await self._yarn.client().update(()) is None

        await self._stage.until("the NodeManager registers", is_there, START_S)
        report = await self._yarn.report()
        assert report is not None
        assert report.node_id is not None, "a ResourceManager lists NodeManagers by their identity"
        capability = report.capability or ResourceMessage()
        return _Registered(f"{report.node_id.host}:{report.node_id.port}", capability.vcores)

    async def _load(self, cpu: str) -> None:
        patch = {"metadata": {"annotations": {"sim.koord.sh/usage": _usage(cpu)}}}
        unwrap(await self._stage.client.patch(PODS, SERVICE, patch, NAMESPACE, kind="merge"))

    async def _look(self) -> SharedNode | None:
        node = unwrap(await self._stage.client.get(NODES, NODE))
        report = await self._yarn.report()
        origin = node_codecs.parse_origin_allocatable(node.metadata.annotations)
        if report is None or isinstance(origin, MalformedAnnotation) or BATCH_CPU not in node.status.allocatable:
            return None
        left = Quantity.parse(node.status.allocatable[BATCH_CPU]).value()
        held = held_by_yarn(node.metadata.annotations)
        return SharedNode(
            lent_milli=left if origin is None else Quantity.parse(origin.resources[BATCH_CPU]).value(),
            left_milli=left,
            held_milli=0 if held is None else held.cpu_milli,
            yarn=report,
        )

    async def _until(self, what: str, holds: Callable[[SharedNode], bool]) -> SharedNode:
        """Wait until the node is as wanted, and return how it was then."""
        wanted: list[SharedNode] = []

        async def seen() -> bool:
            found = await self._look()
            if found is not None and holds(found):
                wanted.append(found)
            return bool(wanted)

        await self._stage.until(what, seen, REPORTED_S)
        return wanted[0]

    def _show(self, one: SharedNode) -> None:
        self._stage.table(
            ("NODE LENDS", "YARN OFFERS", "YARN HOLDS", "CONTAINERS", "LEFT FOR PODS"),
            [
                (
                    f"{one.lent_milli / 1000:.1f} CPUs",
                    f"{one.offered.vcores} vcores",
                    f"{one.used.vcores} vcores",
                    str(one.yarn.containers),
                    f"{one.left_milli / 1000:.1f} CPUs",
                )
            ],
        )


class _Registered(msgspec.Struct, frozen=True):
    node_id_text: str
    vcores: int


def _follows(one: SharedNode) -> bool:
    return one.offered.vcores == -(-(one.lent_milli - _OWN_MILLI) // MILLI_PER_VCORE)


def _is_subtracted(one: SharedNode) -> bool:
    """Return whether koord-manager has taken in what YARN holds."""
    is_told = one.held_milli == one.used.vcores * MILLI_PER_VCORE
    return is_told and one.left_milli == max(one.lent_milli - one.held_milli, 0)


def _usage(cpu: str) -> str:
    return json.dumps({"model": "constant", "cpu": cpu, "memory": "2Gi"})


def _service() -> dict[str, Any]:
    pod = a_pod(SERVICE, SERVICE, "8", labels={"koordinator.sh/qosClass": "LS"}, priorityClassName="koord-prod")
    pod["metadata"]["annotations"] = {"sim.koord.sh/usage": _usage(IDLE_CPU)}
    return pod


_OWN_MILLI = 500  # what the NodeManager's own pod asks for


def _node_manager_pod(node_id: str) -> dict[str, Any]:
    """Return the pod that stands for the NodeManager, as Koordinator's chart makes it; its process runs outside."""
    amounts = {BATCH_CPU: str(_OWN_MILLI), BATCH_MEMORY: "512Mi"}
    labels = {"app.kubernetes.io/component": "node-manager", "koordinator.sh/qosClass": "BE"}
    pod = a_pod(
        "node-manager",
        "node-manager",
        "",
        labels=labels,
        resources={"requests": amounts, "limits": amounts},
        priorityClassName="koord-batch",
        nodeName=NODE,
    )
    usage = json.dumps({"model": "constant", "cpu": "100m", "memory": "256Mi"})
    pod["metadata"]["annotations"] = {A_NODE_ID: node_id, "sim.koord.sh/usage": usage}
    return pod
