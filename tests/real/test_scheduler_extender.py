"""kube-scheduler and ours ask the same extenders about equal pods on one real server, and end at the same answers.

Both run with one configuration. Each case has an extender of its own, which manages a resource that only the pods of
that case request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.kubernetes.builtin_kinds import NODES, PODS, SERVICE_ACCOUNTS
from koord.api.kubernetes.pod import Pod
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import WallClock
from tests.real.reach import connect
from tests.scheduler.fake_extender import FakeExtender, node_names
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 60
THEIRS, OURS = "theirs", "ours"
NODE_NAMES = ["n0", "n1", "n2"]


def some_fail(fake: FakeExtender) -> None:
    fake.failed, fake.unresolvable = {"n0": "no licence"}, {"n1": "wrong site"}


def all_fail(fake: FakeExtender) -> None:
    fake.failed, fake.unresolvable = {"n0": "no licence", "n2": "no licence"}, {"n1": "wrong site"}


def all_left_out(fake: FakeExtender) -> None:
    fake.silently_out = set(NODE_NAMES)


def answers_with_error(fake: FakeExtender) -> None:
    fake.error = "licence server is down"


def breaks(fake: FakeExtender) -> None:
    fake.status = 503


def invents(fake: FakeExtender) -> None:
    fake.invented = ["elsewhere"]


def likes_n2(fake: FakeExtender) -> None:
    fake.scores = {"n2": 10}


def hangs(fake: FakeExtender) -> None:
    fake.delay_s = 3600.0


FILTER: dict[str, Any] = {"filterVerb": "filter"}
SCORE: dict[str, Any] = {"prioritizeVerb": "prioritize", "weight": 100}
CASES: dict[str, tuple[Callable[[FakeExtender], None], dict[str, Any]]] = {
    "some-fail": (some_fail, FILTER),
    "some-fail-cached": (some_fail, {**FILTER, "nodeCacheCapable": True}),
    "all-fail": (all_fail, FILTER),
    "all-left-out": (all_left_out, FILTER),
    "error": (answers_with_error, FILTER),
    "status": (breaks, FILTER),
    "ignorable": (breaks, {**FILTER, "ignorable": True}),
    "invented": (invents, {**FILTER, "nodeCacheCapable": True}),
    "scores": (likes_n2, {**FILTER, **SCORE}),
    "no-scores": (breaks, SCORE),
    "hangs": (hangs, {**FILTER, "httpTimeout": "1s"}),
}
GONE = "gone"  # nobody listens at its address


def resource(case: str) -> str:
    return f"example.com/{case}"


def configuration(urls: dict[str, str], kubeconfig: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig},
        "extenders": [
            {
                "urlPrefix": url,
                "managedResources": [{"name": resource(case), "ignoredByScheduler": True}],
                **(CASES[case][1] if case in CASES else FILTER),
            }
            for case, url in urls.items()
        ],
    }


@pytest.fixture(scope="module")
def lone_plane() -> Any:
    missing = [n for n in ("etcd", "kube-apiserver", "kube-scheduler") if not (assets.folder() / n).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running


@asynccontextmanager
async def kube_scheduler(config: dict[str, Any], folder: Path) -> AsyncIterator[None]:
    path = folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump({**config, "profiles": [{"schedulerName": THEIRS}]}))
    with (folder / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(assets.folder() / "kube-scheduler"),
            *("--config", str(path), "--secure-port", "0"),
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def our_scheduler(config: dict[str, Any], client: Client) -> AsyncIterator[None]:
    given = load_configuration({**config, "profiles": [{"schedulerName": OURS}]})
    assert not isinstance(given, list), given
    made = CompletedConfig.complete(given, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    informers = InformerFactory(client, WallClock())
    leading = StandaloneScheduler(Scheduler(client, informers, WallClock(), made))
    await leading.start()
    informers.start()
    try:
        yield
    finally:
        await leading.stop()
        await informers.stop()


async def add_nodes(client: Client) -> None:
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    for name in NODE_NAMES:
        unwrap(await client.create(NODES, {"metadata": {"name": name}}))
        ready = [{"type": "Ready", "status": "True"}]
        status = {"status": {"capacity": room, "allocatable": room, "conditions": ready}}
        unwrap(await client.patch(NODES, name, status, kind="merge", subresource="status"))
        unwrap(await client.patch(NODES, name, {"spec": {"taints": None}}, kind="merge"))
    made = await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, "default")
    assert not isinstance(made, ApiError) or made.code == 409


def pod(case: str, scheduler: str) -> dict[str, Any]:
    amounts = {"requests": {"cpu": "100m", resource(case): "1"}, "limits": {resource(case): "1"}}
    return {
        "metadata": {"name": f"{case}-{scheduler}"},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i", "resources": amounts}]},
    }


async def outcome(client: Client, case: str, scheduler: str) -> tuple[str, str, str]:
    """The node; or the reason and the words of the refusal."""

    def told(seen: Pod) -> tuple[str, str, str] | None:
        if seen.spec.node_name:
            return seen.spec.node_name, "", ""
        found = [c for c in seen.status.conditions if c.type == "PodScheduled"]
        return ("", found[0].reason, found[0].message) if found else None

    async with asyncio.timeout(PATIENCE_S):
        while (found := told(unwrap(await client.get(PODS, f"{case}-{scheduler}", "default")))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # only the wire knows
    return found


def asked(fake: FakeExtender, case: str, scheduler: str) -> list[tuple[str, frozenset[str], frozenset[str]]]:
    """The first calls about a pod, in order: the verb, the keys of the arguments, the nodes. Retries are left out."""
    found = []
    for verb, args in fake.calls:
        if args["Pod"]["metadata"]["name"] == f"{case}-{scheduler}":
            found.append((verb, frozenset(args), frozenset(node_names(args))))
    return found[:2] if "prioritizeVerb" in CASES[case][1] else found[:1]


async def test_both_ask_alike_and_answer_alike(lone_plane: ControlPlane, tmp_path: Path) -> None:
    fakes = {case: FakeExtender() for case in CASES}
    async with AsyncExitStack() as stack:
        urls = {case: await stack.enter_async_context(fake.serve()) for case, fake in fakes.items()}
        async with FakeExtender().serve() as url:
            urls[GONE] = url
        for case, (prepare, _) in CASES.items():
            prepare(fakes[case])
        client = await stack.enter_async_context(connect(lone_plane.kubeconfig))
        await add_nodes(client)
        config = configuration(urls, str(lone_plane.kubeconfig))
        await stack.enter_async_context(kube_scheduler(config, tmp_path))
        await stack.enter_async_context(our_scheduler(config, client))
        for scheduler in (THEIRS, OURS):
            for case in urls:
                unwrap(await client.create(PODS, pod(case, scheduler), "default"))
        theirs = {case: await outcome(client, case, THEIRS) for case in urls}
        ours = {case: await outcome(client, case, OURS) for case in urls}
        free = {"ignorable", "no-scores"}  # any node will do
        assert {case: (bool(theirs[case][0]), bool(ours[case][0])) for case in free} == dict.fromkeys(
            free, (True, True)
        )
        compared = [case for case in urls if case not in free]
        assert {case: ours[case] for case in compared} == {case: theirs[case] for case in compared}
        assert {case: asked(fakes[case], case, OURS) for case in CASES} == {
            case: asked(fakes[case], case, THEIRS) for case in CASES
        }
