"""kube-scheduler and ours allocate devices to the same claims: random slices, classes, claims and pods on one server.

kube-scheduler decides; ours watches the same server as a standby would. A pod that is refused must be refused by ours
in the same words; one that is bound must be on a node that ours scores highest, with the allocations that ours would
have written there. More cases than the usual ones: KOORD_CLAIM_SEEDS="1 2 3", KOORD_CLAIM_PODS=200.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koord.api.kubernetes.builtin_kinds import (
    DEVICE_CLASSES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
)
from koord.api.kubernetes.dynamic_resources import AllocationResult
from koord.api.model import convert, encode
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.framework.attempt import failure_of_decision
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.dynamic_resources.claim_cache import FINALIZER, ClaimCache
from tests.real.reach import connect
from tests.real.test_scheduler_takeover import MARGIN_S, SECOND_THOUGHT_S, Standby, kube_scheduler
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

SEEDS = [int(seed) for seed in os.environ.get("KOORD_CLAIM_SEEDS", "1 2").split()]
COUNT = int(os.environ.get("KOORD_CLAIM_PODS", "45"))
NODE_COUNT = 6
PATIENCE_S = 60
GPU, NIC, FABRIC, NET = "gpu.example.com", "nic.example.com", "fabric.example.com", "net.example.com"
TAINTS, PARTITIONS = "DRADeviceTaints", "DRAPartitionableDevices"
GATE = "example.com/wait"
Allocations = dict[str, AllocationResult]  # by claim
# What kube-scheduler 1.35.4 says of a pod with an allocated claim and one that is not (see quirks.md).
SCORE_FAULT = 'running Score plugins: plugin "DynamicResources" failed with: number of allocations '


def _gate_flag(names: Sequence[str]) -> str:
    return f"--feature-gates={','.join(f'{name}=true' for name in names)}"


@pytest.fixture(scope="module")
def claim_plane() -> Iterator[ControlPlane]:
    """A scheduler counts every node of its cluster, so it needs one of its own."""
    missing = [n for n in ("etcd", "kube-apiserver", "kube-scheduler") if not (assets.folder() / n).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running((_gate_flag((TAINTS, PARTITIONS)),)) as running:
        yield running


@pytest.fixture
async def client(claim_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(claim_plane.kubeconfig) as made:
        yield made


class ClaimStandby(Standby):
    """The whole scheduler as far as it watches and judges pods with claims."""

    watched = (PODS, NODES, DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS)

    def allocations(self, pod: Pod) -> dict[str, Allocations] | str:
        """The nodes that score highest, each with the allocations that would be written; or the refusal's words."""
        engine, state = self.engine, self.scheduler.state
        info = state.pod_info(pod)
        attempt = engine.decide(info)
        decision, found = attempt.decision, attempt.evaluation
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(attempt)
        if not isinstance(decision, ChosenNode):
            return failure_of_decision(decision).message
        assert found is not None
        total = found.score_results.total
        (plugin,) = (p for p in engine.profile.plugins_at(Plugin.pre_bind) if p.name == "DynamicResources")
        cache, told = state.derived(ClaimCache), dict[str, Allocations]()
        for row in np.flatnonzero(total == np.max(total)):
            node = state.table.nodes[row]
            assert node is not None
            refused = plugin.reserve(attempt.cycle, info, node)
            assert refused is None, (node.name, refused)
            made = {uid: cache.pending(uid) for uid in self._uids(pod)}
            told[node.name] = {
                pending.claim.metadata.name: convert(pending.result, AllocationResult)
                for pending in made.values()
                if pending is not None
            }
            plugin.unreserve(attempt.cycle, info, node.name)
        return told

    def _uids(self, pod: Pod) -> list[str]:
        informer = self._informers.for_resource(RESOURCE_CLAIMS)
        names = [each.resource_claim_name or "" for each in pod.spec.resource_claims]
        found = (informer.get(pod.metadata.namespace, name) for name in names)
        return [claim.metadata.uid for claim in found if claim is not None]


# The cluster ---------------------------------------------------------------------------------------------------------


def _selected(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": text}} for text in expressions]


def _opaque(driver: str, word: str) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": {"word": word}}}


CLASSES: dict[str, dict[str, Any]] = {
    "gpu": {"selectors": _selected(f'device.driver == "{GPU}"')},
    "nic": {"selectors": _selected(f'device.driver == "{NIC}"')},
    "fabric": {"selectors": _selected(f'device.driver == "{FABRIC}"'), "config": [_opaque(FABRIC, "class")]},
    "net": {"selectors": _selected(f'device.driver == "{NET}"')},
    "big": {
        "selectors": _selected(
            f'device.driver == "{GPU}"', f'device.capacity["{GPU}"].memory.compareTo(quantity("40Gi")) >= 0'
        ),
        "config": [_opaque(GPU, "big"), _opaque(GPU, "more")],
    },
}
SELECTORS = (
    f'device.attributes["{GPU}"].model == "a"',
    f'device.attributes["{GPU}"].model.startsWith("b")',
    f'device.attributes["{GPU}"].numa == 0',
    f'device.attributes["{GPU}"].version.isGreaterThan(semver("1.5.0"))',
    f'device.capacity["{GPU}"].memory.isGreaterThan(quantity("20Gi"))',
    f'device.attributes["{GPU}"].healthy',
    'device.attributes["no.such.domain"].size() == 0',
    f'"special" in device.attributes["{GPU}"]',
    f'device.attributes["{GPU}"].special > 3',  # an error on the devices that do not have it
    "false",
)


class ClaimDice:
    """Random devices, claims and pods."""

    def __init__(self, seed: int, *, partitions: bool) -> None:
        """Make dice. With `partitions` no request is for all devices, on which kube-scheduler 1.35.4 ends then.

        No constraint is stated then either, and no partition has a taint: a partition that kube-scheduler passes over
        for one of these keeps what it would have taken from the counters until the search ends (see quirks.md).
        """
        self.random = random.Random(seed)
        self.partitions = partitions

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def device(self, i: int) -> dict[str, Any]:
        pick = self.random.choice
        attributes: dict[str, Any] = {
            "model": {"string": pick("ab")},
            "numa": {"int": pick((0, 1))},
            "version": {"version": pick(("1.0.0", "1.9.0", "2.0.0"))},
            "healthy": {"bool": self.chance(0.8)},
            "example.com/rack": {"string": pick("xy")},
        }
        if self.chance(0.3):
            attributes["special"] = {"int": i}
        found: dict[str, Any] = {
            "name": f"dev-{i}",
            "attributes": attributes,
            "capacity": {"memory": {"value": pick(("16Gi", "40Gi", "80Gi"))}},
        }
        if self.chance(0.15):
            found["taints"] = [{"key": "example.com/worn", "value": "yes", "effect": "NoSchedule"}]
        return found

    def exact(self, classes: tuple[str, ...] = ("gpu", "gpu", "gpu", "big", "nic", "fabric", "net")) -> dict[str, Any]:
        name = self.random.choice(classes)
        found: dict[str, Any] = {"deviceClassName": name}
        if self.chance(0.1) and not self.partitions:
            found["allocationMode"] = "All"
        else:
            found |= {"allocationMode": "ExactCount", "count": self.random.choice((1, 1, 1, 2, 3))}
        if name in ("gpu", "big") and self.chance(0.5):
            weights = (*(8 for _ in SELECTORS[:-2]), 1, 1)
            found["selectors"] = _selected(*self.random.choices(SELECTORS, weights, k=self.random.choice((1, 1, 2))))
        if self.chance(0.2):
            found["tolerations"] = [{"key": "example.com/worn", "operator": "Exists"}]
        return found

    def claim(self, name: str) -> dict[str, Any]:
        requests: list[dict[str, Any]] = []
        for r in range(self.random.choice((1, 1, 2, 3))):
            if self.chance(0.2):
                listed = [{"name": f"s{i}", **self.exact()} for i in range(self.random.choice((2, 3)))]
                requests.append({"name": f"r{r}", "firstAvailable": listed})
            else:
                requests.append({"name": f"r{r}", "exactly": self.exact()})
        devices: dict[str, Any] = {"requests": requests}
        if self.chance(0.3) and not self.partitions:
            attribute = self.random.choice((f"{GPU}/model", f"{GPU}/numa", "example.com/rack"))
            devices["constraints"] = [{"matchAttribute": attribute}]
            if len(requests) > 1 and self.chance(0.5):
                devices["constraints"][0]["requests"] = ["r0"]
        if self.chance(0.25):
            named = {"requests": [self.random.choice(requests)["name"]]} if self.chance(0.5) else {}
            devices["config"] = [{**named, **_opaque(GPU, "claim")}]
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


class ClaimStage:
    """One cluster and everything that happens on it."""

    def __init__(self, client: Client, dice: ClaimDice) -> None:
        self.client = client
        self.dice = dice
        self.claims: list[str] = []
        self._generation = 1

    async def clear(self) -> None:
        await self.client.delete_collection(PODS, "default", grace_seconds=0)
        for claim in unwrap(await self.client.list(RESOURCE_CLAIMS, "default")).items:
            await self.free(claim.metadata.name)
            empty = {"metadata": {"finalizers": None}}
            await self.client.patch(RESOURCE_CLAIMS, claim.metadata.name, empty, "default", kind="merge")
            await self.client.delete(RESOURCE_CLAIMS, claim.metadata.name, "default")
        await self.client.delete_collection(RESOURCE_SLICES)
        await self.client.delete_collection(NODES)

    async def build(self) -> None:
        for name, spec in CLASSES.items():
            made = await self.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})
            assert not isinstance(made, ApiError) or made.code == 409, made  # it is there already
        account = await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, "default")
        assert not isinstance(account, ApiError) or account.code == 409, account
        room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        for i in range(NODE_COUNT):
            labels = {"zone": "ab"[i % 2], "kubernetes.io/hostname": f"node{i}"}
            node = {"metadata": {"name": f"node{i}", "labels": labels}, "status": {"allocatable": room}}
            unwrap(await self.client.create(NODES, {**node, "status": {"allocatable": room, "capacity": room}}))
        for i in range(4):
            await self.publish_gpus(f"node{i}")
        for i in range(1, NODE_COUNT):
            nics = [{"name": f"nic-{n}", "attributes": {"example.com/rack": {"string": "xy"[n % 2]}}} for n in range(2)]
            await self.publish("nic", NIC, f"node{i}", nics, nodeName=f"node{i}")
        await self.publish_partitions("node4")
        await self.publish("half", GPU, "node5", [self.dice.device(0)], slices=2, nodeName="node5")
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        ports = [{"name": f"port-{i}"} for i in range(6)]
        await self.publish("fabric", FABRIC, "fabric", ports, nodeSelector={"nodeSelectorTerms": [term]})
        await self.publish("net", NET, "net", [{"name": f"net-{i}"} for i in range(8)], allNodes=True)

    async def publish_gpus(self, node: str) -> None:
        """Publish a new generation of a node's devices."""
        await self.client.delete(RESOURCE_SLICES, f"gpu-{node}")
        self._generation += 1
        devices = [self.dice.device(i) for i in range(self.dice.random.choice((2, 4, 6)))]
        await self.publish("gpu", GPU, node, devices, generation=self._generation, nodeName=node)

    async def publish_partitions(self, node: str) -> None:
        def part(name: str, memory: str) -> dict[str, Any]:
            taken = [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]
            untainted = {key: value for key, value in self.dice.device(0).items() if key != "taints"}
            return {**untainted, "name": name, "consumesCounters": taken}

        parts = [part("whole", "80Gi"), part("half-0", "40Gi"), part("half-1", "40Gi"), part("rest", "10Gi")]
        counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
        await self.publish("parts", GPU, node, parts, slices=2, nodeName=node)
        await self.publish("counters", GPU, node, [], slices=2, nodeName=node, sharedCounters=counters)

    async def publish(
        self,
        kind: str,
        driver: str,
        pool: str,
        devices: list[dict[str, Any]],
        generation: int = 1,
        slices: int = 1,
        **more: Any,
    ) -> None:
        of_pool = {"name": pool, "generation": generation, "resourceSliceCount": slices}
        listed = {"devices": devices} if devices else {}
        spec = {"driver": driver, "pool": of_pool, **listed, **more}
        unwrap(await self.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{kind}-{pool}"}, "spec": spec}))

    async def free(self, name: str) -> None:
        """Give back the devices of a claim, as the claim controller does."""
        patch = {"status": {"allocation": None, "reservedFor": None}}
        await self.client.patch(RESOURCE_CLAIMS, name, patch, "default", kind="merge", subresource="status")

    async def gated_pod(self, name: str) -> Pod:
        wanted: list[dict[str, str]] = []
        for i in range(self.dice.random.choice((1, 1, 1, 2))):
            if self.claims and self.dice.chance(0.2):
                claim = self.dice.random.choice(self.claims[-4:])
            else:
                claim = f"{name}-{i}"
                unwrap(await self.client.create(RESOURCE_CLAIMS, self.dice.claim(claim), "default"))
                self.claims.append(claim)
            if claim not in (each["resourceClaimName"] for each in wanted):
                wanted.append({"name": f"c{i}", "resourceClaimName": claim})
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "100m"}}}
        spec = {"containers": [container], "resourceClaims": wanted, "schedulingGates": [{"name": GATE}]}
        return unwrap(
            await self.client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        )

    async def let_go(self, pod: Pod) -> None:
        patch = {"spec": {"schedulingGates": None}}
        unwrap(await self.client.patch(PODS, pod.metadata.name, patch, "default", kind="merge"))

    async def answer(self, pod: Pod) -> tuple[str, str]:
        """What kube-scheduler made of a pod: its node, or the words of the refusal."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = unwrap(await self.client.get(PODS, pod.metadata.name, "default"))
                if seen.spec.node_name:
                    return seen.spec.node_name, ""
                for condition in seen.status.conditions:
                    if condition.type == "PodScheduled" and condition.reason in ("Unschedulable", "SchedulerError"):
                        return "", condition.message
                await asyncio.sleep(0.01)  # another process decides, and cannot set an event here

    async def written(self, pod: Pod, names: set[str]) -> Allocations:
        """The allocations of these claims, which must be reserved for the pod and protected."""
        found: Allocations = {}
        for wanted in pod.spec.resource_claims:
            claim = unwrap(await self.client.get(RESOURCE_CLAIMS, wanted.resource_claim_name or "", "default"))
            assert pod.metadata.uid in [user.uid for user in claim.status.reserved_for]
            if claim.metadata.name in names:
                assert claim.status.allocation is not None
                assert FINALIZER in claim.metadata.finalizers
                found[claim.metadata.name] = claim.status.allocation
        return found

    async def specs(self, pod: Pod) -> dict[str, bytes]:
        """What the claims of a pod ask for, to be read by people."""
        names = [wanted.resource_claim_name or "" for wanted in pod.spec.resource_claims]
        found = {name: await self.client.get(RESOURCE_CLAIMS, name, "default") for name in names}
        return {name: encode(claim.spec) for name, claim in found.items() if not isinstance(claim, ApiError)}

    async def end(self, pod: Pod) -> None:
        """Delete a pod and free the claims that nobody else uses."""
        await self.client.delete(PODS, pod.metadata.name, "default", grace_seconds=0)
        for wanted in pod.spec.resource_claims:
            claim = await self.client.get(RESOURCE_CLAIMS, wanted.resource_claim_name or "", "default")
            if not isinstance(claim, ApiError) and {u.uid for u in claim.status.reserved_for} <= {pod.metadata.uid}:
                await self.free(claim.metadata.name)


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_allocation_agrees_with_kube_scheduler(
    claim_plane: ControlPlane, client: Client, tmp_path: Path, seed: int
) -> None:
    gates = (TAINTS, PARTITIONS) if seed % 2 == 0 else (TAINTS,)
    dice = ClaimDice(seed, partitions=PARTITIONS in gates)
    stage = ClaimStage(client, dice)
    await stage.clear()
    await stage.build()
    outcomes = {"bound": 0, "refused": 0, "allocated": 0}
    differences: list[str] = []
    async with (
        kube_scheduler(claim_plane, tmp_path, _gate_flag(gates)),
        ClaimStandby(client, dict.fromkeys(gates, True)) as ours,
    ):
        for i in range(COUNT):
            if dice.chance(0.1):
                await stage.publish_gpus(f"node{dice.random.randrange(4)}")
            pod = await stage.gated_pod(f"pod{seed}-{i}")
            await ours.caught_up()
            told = ours.allocations(pod)
            await asyncio.sleep(MARGIN_S)
            await stage.let_go(pod)
            node, words = await stage.answer(pod)
            patience = time.monotonic() + SECOND_THOUGHT_S
            while words and words != told and not words.startswith(SCORE_FAULT) and time.monotonic() < patience:
                await asyncio.sleep(0.1)  # as in `answer`
                node, words = await stage.answer(pod)
            what = f"seed {seed}, {pod.metadata.name}: {await stage.specs(pod)}"
            if not node:
                outcomes["refused"] += 1
                if told != words and not words.startswith(SCORE_FAULT):
                    differences.append(f"{what}\n  kube: {words}\n  ours: {told if isinstance(told, str) else [*told]}")
            elif isinstance(told, str) or node not in told:
                outcomes["bound"] += 1
                differences.append(f"{what}\n  kube: {node}\n  ours: {told if isinstance(told, str) else [*told]}")
            else:
                outcomes["bound"] += 1
                outcomes["allocated"] += bool(told[node])
                written = await stage.written(pod, set(told[node]))
                if written != told[node]:
                    shown = [{name: encode(each) for name, each in of.items()} for of in (written, told[node])]
                    differences.append(f"{what} on {node}\n  kube: {shown[0]}\n  ours: {shown[1]}")
            if not node or dice.chance(0.5):
                await stage.end(pod)
    assert not differences, "\n".join(differences)
    assert min(outcomes.values()) > COUNT // 8, outcomes
