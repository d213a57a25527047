"""Pods come from the kubelet, from the API server when it is silent, and at once when a group appears."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.protocol import BURSTABLE
from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.host import libc
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.pleg import PodLifecycleEventType
from koord.host.io_error import OPEN, IoError
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.inputs.pod_source import API_SERVER, KUBELET, PodSource
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual
from tests.host.fake_machine import FakeMachine
from tests.koordlet.inputs.fake_kubelet import FakeKubelet, pod

Test = Callable[[PodSource, Client], Awaitable[None]]
LOG = "koord.koordlet.inputs"


def run(
    root: Path,
    kubelet: FakeKubelet,
    test: Test,
    layout: CgroupLayout | None = None,
    settings: PodSourceSettings | None = None,
) -> FakeMachine:
    machine = FakeMachine(root, 1, layout, only=frozenset({"cpu.stat"}))

    async def main(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        source = PodSource(machine.tree, client, clock, "node-1", kubelet, settings or PodSourceSettings())
        task = asyncio.create_task(source.run())
        try:
            await asyncio.sleep(0.5)
            await test(source, client)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cluster.stop()
        assert kubelet.closed

    run_virtual(main)
    return machine


async def place(client: Client, name: str, node: str = "node-1", **annotations: str) -> None:
    body = pod(name, annotations=annotations)
    del body["metadata"]["uid"], body["status"]
    body["spec"]["nodeName"] = node
    unwrap(await client.create(PODS, body, "work"))


def names(source: PodSource) -> list[str]:
    assert source.pods is not None
    return [view.name for view in source.pods]


def test_pods_of_the_kubelet_have_their_groups(tmp_path: Path) -> None:
    async def test(source: PodSource, client: Client) -> None:
        assert names(source) == ["a", "b"]
        assert source.origin == KUBELET
        assert source.pods is not None
        view = source.pods[0]
        assert view.group == "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid_a.slice"
        assert [one.group for one in view.containers] == [f"{view.group}/cri-containerd-uid-a-one.scope"]
        assert view.containers[0].running

    run(tmp_path, FakeKubelet(pod("b"), pod("a")), test, CgroupLayout("systemd"))


def test_a_kind_node_has_its_groups_elsewhere(tmp_path: Path) -> None:
    async def test(source: PodSource, client: Client) -> None:
        assert source.pods is not None
        assert source.pods[0].group == "kubelet/kubepods/burstable/poduid-a"
        assert source.pods[0].containers[0].group == "kubelet/kubepods/burstable/poduid-a/uid-a-one"

    run(tmp_path, FakeKubelet(pod("a")), test, CgroupLayout("cgroupfs", ("kubelet",)))


def test_views_are_the_same_object_until_a_pod_changes(tmp_path: Path) -> None:
    kubelet = FakeKubelet(pod("a"), pod("b"))
    changes: list[int] = []

    async def test(source: PodSource, client: Client) -> None:
        source.on_change(lambda views: changes.append(len(views)))
        before = source.pods
        kubelet.listed.reverse()
        await asyncio.sleep(25)
        assert source.pods is before, "another order is no change"
        kubelet.listed[0] = pod("b", labels={"koordinator.sh/qosClass": "LS"})
        await asyncio.sleep(10)
        assert source.pods is not None
        assert before is not None
        assert source.pods[1].qos == "LS"
        assert source.pods[0] is before[0], "only the pod that changed is made anew"
        assert changes == [2]

    run(tmp_path, kubelet, test)


def test_no_pods_are_an_answer_too_but_not_at_the_first_word(tmp_path: Path) -> None:
    kubelet = FakeKubelet()

    async def test(source: PodSource, client: Client) -> None:
        await source.wait_synced()
        assert source.pods == ()
        kubelet.listed = [pod("a")]
        await asyncio.sleep(10)
        kubelet.listed = []
        await asyncio.sleep(10)
        assert names(source) == ["a"], "a kubelet that starts lists nothing for a moment"
        await asyncio.sleep(10)
        assert names(source) == []

    run(tmp_path, kubelet, test)


def test_a_pod_that_cannot_be_read_is_left_out_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = pod("broken")
    broken["spec"] = "none"

    async def test(source: PodSource, client: Client) -> None:
        await asyncio.sleep(60)
        assert names(source) == ["a"]

    with caplog.at_level(logging.INFO, LOG):
        run(tmp_path, FakeKubelet(pod("a"), broken), test)
    assert len([line for line in caplog.messages if "cannot be read" in line]) == 1


def test_the_api_server_stands_in_while_the_kubelet_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kubelet = FakeKubelet(pod("k"))
    kubelet.problem = "connection refused"

    async def test(source: PodSource, client: Client) -> None:
        await asyncio.sleep(2)
        assert source.origin == API_SERVER
        assert names(source) == []
        await place(client, "here")
        await place(client, "elsewhere", node="node-2")
        await asyncio.sleep(2)
        assert names(source) == ["here"]
        await asyncio.sleep(120)
        kubelet.problem = ""
        await asyncio.sleep(11)
        assert source.origin == KUBELET
        assert names(source) == ["k"]
        await place(client, "later")
        await asyncio.sleep(5)
        assert names(source) == ["k"], "nobody listens to the API server any more"

    with caplog.at_level(logging.INFO, LOG):
        run(tmp_path, kubelet, test)
    assert len(caplog.messages) == 2, caplog.messages
    assert "connection refused" in caplog.messages[0]


def test_a_short_silence_keeps_the_last_answer(tmp_path: Path) -> None:
    kubelet = FakeKubelet(pod("k"))

    async def test(source: PodSource, client: Client) -> None:
        kubelet.problem = "busy"
        await asyncio.sleep(15)
        assert (source.origin, names(source)) == (KUBELET, ["k"])
        await asyncio.sleep(30)
        assert source.origin == API_SERVER

    run(tmp_path, kubelet, test)


@pytest.mark.parametrize("stated", ["kubelet", "apiserver"])
def test_one_source_may_be_the_only_one(tmp_path: Path, stated: Any) -> None:
    kubelet = FakeKubelet(pod("k"))
    kubelet.problem = "no" if stated == "kubelet" else ""

    async def test(source: PodSource, client: Client) -> None:
        await place(client, "a")
        await asyncio.sleep(30)
        if stated == "kubelet":
            assert source.pods is None
            assert source.problem == "no"
        else:
            assert names(source) == ["a"]
            assert not kubelet.questions

    run(tmp_path, kubelet, test, settings=PodSourceSettings(source=stated))


def test_a_static_pods_group_is_not_named_by_the_uid_of_its_copy(tmp_path: Path) -> None:
    kubelet = FakeKubelet()
    kubelet.problem = "silent"
    marks = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.hash": "static-uid"}

    async def test(source: PodSource, client: Client) -> None:
        await place(client, "etcd", **marks)
        await asyncio.sleep(3)
        assert source.pods is not None
        assert source.pods[0].group.endswith("/podstatic-uid")

    run(tmp_path, kubelet, test)


def test_a_new_group_makes_the_question_urgent(tmp_path: Path) -> None:
    kubelet = FakeKubelet(pod("a"))
    heard: list[tuple[PodLifecycleEventType, str]] = []

    async def test(source: PodSource, client: Client) -> None:
        source.on_group(lambda event: heard.append((event.kind, event.pod)))
        await asyncio.sleep(2)
        asked = kubelet.questions
        kubelet.listed.append(pod("new"))
        machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))
        machine.pod(BURSTABLE, "uid-new", "containerd://x")
        await asyncio.sleep(0.1)  # the event is there at once
        await asyncio.sleep(1)
        assert names(source) == ["a", "new"]
        await asyncio.sleep(2.5)
        assert kubelet.questions == asked + 2, "at once, and again when its containers have their names"

    run(tmp_path, kubelet, test)
    assert (PodLifecycleEventType.POD_ADDED, "uid-new") in heard


def test_groups_are_listed_while_the_kernel_has_no_inotify_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full, real = [True], libc.inotify_open
    monkeypatch.setattr(
        libc, "inotify_open", lambda flags: IoError("inotify", OPEN, errno.EMFILE) if full[0] else real(flags)
    )
    heard: list[str] = []
    machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))

    async def test(source: PodSource, client: Client) -> None:
        source.on_group(lambda event: heard.append(event.pod))
        machine.pod(BURSTABLE, "one")
        await asyncio.sleep(5)
        assert heard == ["one"]
        full[0] = False
        await asyncio.sleep(5)
        machine.pod(BURSTABLE, "two")
        await asyncio.sleep(0.1)
        assert heard == ["one", "two"], "noticed at once, not by the next list"

    with caplog.at_level(logging.INFO, LOG):
        run(tmp_path, FakeKubelet(pod("a")), test)
    lines = [line for line in caplog.messages if "groups of pods" in line]
    assert lines == [
        "not all groups of pods can be watched, they are listed every 2s: open inotify: Too many open files",
        "all groups of pods are watched again",
    ]
