"""koordlet's NRI plugin with a real container runtime: what it answers is what containers start with.

`KOORD_RUNTIME`, as `make test-containerd17` and `make test-crio` set it, takes another in place of containerd 2.2.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.koordlet.nri.plugin import NriPlugin, NriStatus
from koord.koordlet.nri.settings import FailurePolicy, NriSettings
from koord.telemetry.clock import WallClock
from koord.wire.nri_messages import (
    ContainerAdjustment,
    ContainerUpdate,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxCpu,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)
from koord.wire.ttrpc import TtrpcStatus
from tests.real.real_node import SHARES, Site, web
from tools import realnode
from tools.nodeagent import PODS, is_running, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

MARK = "nri.test/mark"
RUNTIME = os.environ.get("KOORD_RUNTIME") or realnode.CONTAINERD_2
# What each says of itself.
NAMES = {
    realnode.CONTAINERD_2: ("containerd", "2.2."),
    realnode.CONTAINERD_17: ("containerd", "1.7."),
    realnode.CRI_O: ("cri-o", "1.34."),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing(RUNTIME)
    if reason:
        pytest.skip(reason)
    with realnode.running(runtime=RUNTIME) as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        yield Site(node, tree, tmp_path_factory.mktemp("nri"))


class ShareHandler:
    """Gives containers `shares` and an environment variable of `size` bytes, and notes the pods that it sees."""

    def __init__(self, *, size: int = 10, fail: Callable[[], object] | None = None) -> None:
        self.shares = 333
        self.size = size
        self.fail = fail
        self.seen: list[str] = []
        self.removed: list[NriPodSandbox] = []
        self.requested: list[LinuxResources] = []

    async def synchronize(self, pods: tuple[NriPodSandbox, ...], containers: tuple[NriContainer, ...]) -> None:
        self.seen += [f"synchronize {one.name}" for one in pods]
        self.seen += [f"synchronize {one.name}" for one in containers]

    async def run_pod_sandbox(self, pod: NriPodSandbox) -> None:
        self.seen.append(f"run {pod.name}")

    async def remove_pod_sandbox(self, pod: NriPodSandbox) -> None:
        self.removed.append(pod)

    async def create_container(self, pod: NriPodSandbox, container: NriContainer) -> ContainerAdjustment | None:
        self.seen.append(f"create {pod.name}/{container.name}")
        if self.fail is not None:
            found = self.fail()
            if asyncio.iscoroutine(found):
                await found
        return ContainerAdjustment(
            env={"KOORD_NRI": "x" * self.size},
            linux=LinuxContainerAdjustment(resources=LinuxResources(cpu=LinuxCpu(shares=self.shares))),
        )

    async def update_container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources
    ) -> ContainerUpdate | None:
        self.seen.append(f"update {pod.name}/{container.name}")
        self.requested.append(resources)
        wanted = LinuxResources(cpu=LinuxCpu(shares=self.shares))
        return ContainerUpdate(linux=LinuxContainerUpdate(resources=wanted))


class RunningPlugin:
    """The plugin on a thread of its own, so that tests may wait for the node."""

    def __init__(self, site: Site, handler: ShareHandler, failure_policy: FailurePolicy) -> None:
        self.outcomes: list[tuple[str, str]] = []
        self._settings = NriSettings(
            socket_path=str(site.node.nri_socket),
            lock_path=str(site.folder / "nri.lock"),
            failure_policy=failure_policy,
        )
        self._loop = asyncio.new_event_loop()
        self._plugin = NriPlugin(self._settings, handler, WallClock(), on_outcome=self._note)
        self._thread = threading.Thread(target=self._run)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._plugin.run())
        self._thread.start()

    def stop(self) -> None:
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()

    def status(self) -> NriStatus:
        return self._plugin.status()

    def update(self, container: str, shares: int) -> tuple[ContainerUpdate, ...] | TtrpcStatus:
        wanted = LinuxContainerUpdate(resources=LinuxResources(cpu=LinuxCpu(shares=shares)))
        asked = self._plugin.update_containers([ContainerUpdate(container_id=container, linux=wanted)])
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(timeout=20)

    def _note(self, stage: str, outcome: str, seconds: float, detail: str) -> None:
        self.outcomes.append((stage, outcome))

    def _run(self) -> None:
        assert self._task is not None
        try:
            self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        finally:
            self._loop.close()


@contextmanager
def plugin(site: Site, handler: ShareHandler, failure_policy: FailurePolicy = "Ignore") -> Iterator[RunningPlugin]:
    running = RunningPlugin(site, handler, failure_policy)
    running.start()
    try:
        until(lambda: running.status().connected, f"the plugin is connected: {running.status()}")
        yield running
    finally:
        running.stop()


def _environment(site: Site, name: str) -> dict[str, str]:
    procs = Path(site.tree.group_path("cpu", site.container(name))) / "cgroup.procs"
    text = (Path("/proc") / procs.read_text().split()[0] / "environ").read_text()
    return dict(part.split("=", 1) for part in text.split("\0") if part)


def _fail(kind: str) -> object:
    if kind == "raises":
        raise ValueError("not today")
    return asyncio.Event().wait()


def test_it_registers_and_learns_what_runs(site: Site) -> None:
    site.run(web("before"))
    handler = ShareHandler()
    with plugin(site, handler) as running:
        found = running.status()
        name, version = NAMES[RUNTIME]
        assert found.runtime_name == name
        assert found.runtime_version.removeprefix("v").startswith(version)
        assert found.synchronized is not None
        assert (found.synchronized.pods, found.synchronized.containers) == (1, 1)
        assert handler.seen == ["synchronize before", "synchronize main"]
    assert not running.status().connected
    site.remove("before")


@pytest.mark.parametrize("size", [10, 6000, 100_000])
def test_a_container_starts_with_the_adjustment(site: Site, size: int) -> None:
    """In one frame an answer of 6 kB would be lost, and the plugin with it."""
    name = f"adjusted-{size}"
    handler = ShareHandler(size=size)
    with plugin(site, handler) as running:
        site.run(pod(name, {"requests": {"cpu": "50m"}}))
        assert site.value(SHARES, site.container(name)) == "333"
        assert _environment(site, name)["KOORD_NRI"] == "x" * size
        assert [one for one in handler.seen if name in one] == [f"run {name}", f"create {name}/main"]
        assert running.status().attempts == 1
    site.remove(name)


def test_a_pod_that_goes_is_told_with_its_annotations(site: Site) -> None:
    """The kubelet removes sandboxes of pods that ended once a minute; containerd 2.2 then tells no annotations."""
    handler = ShareHandler()
    with plugin(site, handler) as running:
        site.run(pod("leaving", annotations={MARK: "yes"}))
        site.remove("leaving")
        until(lambda: "leaving" in [one.name for one in handler.removed], "its removal was told", 120)
        assert [one.annotations[MARK] for one in handler.removed if one.name == "leaving"] == ["yes"]
        assert ("PreRemoveRunPodSandbox", "success") in running.outcomes


def test_updates_in_both_directions(site: Site) -> None:
    handler = ShareHandler()
    with plugin(site, handler) as running:
        site.run(pod("updated", {"requests": {"cpu": "50m"}}))
        container = site.container("updated")
        plain = site.tree.layout.container_id_of_dir(container.rpartition("/")[2])
        assert plain is not None
        assert running.update(plain, 444) == ()
        assert site.value(SHARES, container) == "444"
        handler.shares = 555
        found = site.api.seen(f"{PODS}/updated")
        found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "80m"}}
        site.api.ask("PUT", f"{PODS}/updated/resize", found)
        until(lambda: site.value(SHARES, container) == "555", "the update was answered")
        assert handler.requested[0].cpu is not None
        assert handler.requested[0].cpu.shares == 81  # what the kubelet asked for, of 80m
    site.remove("updated")


@pytest.mark.parametrize("kind", ["raises", "hangs"])
def test_a_handler_that_fails_keeps_no_container_from_starting(site: Site, kind: str) -> None:
    with plugin(site, ShareHandler(fail=partial(_fail, kind))) as running:
        site.run(pod(f"spared-{kind}", {"requests": {"cpu": "50m"}}))
        assert site.value(SHARES, site.container(f"spared-{kind}")) == "51"
        assert ("PreCreateContainer", "failed" if kind == "raises" else "timeout") in running.outcomes
        assert running.status().attempts == 1  # the runtime did not drop it
    site.remove(f"spared-{kind}")


@pytest.mark.parametrize(("kind", "why"), [("raises", "ValueError: not today"), ("hangs", "no result after 1.50 s")])
def test_with_the_policy_fail_the_container_does_not_start(site: Site, kind: str, why: str) -> None:
    name = f"refused-{kind}"
    handler = ShareHandler(fail=partial(_fail, kind))
    with plugin(site, handler, "Fail") as running:
        site.api.create(PODS, pod(name))
        until(lambda: why in str((site.pod(name) or {}).get("status")), "the pod says why")
        assert not is_running(site.pod(name))
        handler.fail = None
        until(lambda: is_running(site.pod(name)), "it runs once it may", 60)
        assert running.status().attempts == 1
    site.remove(name)


def test_a_restart_of_containerd_is_followed_by_a_new_session(site: Site) -> None:
    handler = ShareHandler()
    with plugin(site, handler) as running:
        site.run(pod("early", {"requests": {"cpu": "50m"}}))
        since = running.status().since
        site.node.stop(site.node.runtime_program)
        until(lambda: not running.status().connected, "the session ended")
        site.node.start(site.node.runtime_program)
        until(lambda: running.status().connected, f"a new session: {running.status()}")
        assert running.status().since != since
        assert {"synchronize early", "synchronize main"} <= set(handler.seen)
        site.run(pod("late", {"requests": {"cpu": "50m"}}))
        assert site.value(SHARES, site.container("late")) == "333"
    site.remove("early", "late")
