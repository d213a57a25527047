"""A hook server that is down, slow, broken or absurd keeps no pod from running unless its registration says so."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import msgspec
import pytest

from koord.runtimeproxy.backend import MAX_MESSAGE_BYTES
from koord.wire.runtime_hook import RuntimeHookStage
from tests.runtimeproxy.cri_messages import RESOURCES, by_id, create_container, run_pod_sandbox, update_resources
from tests.runtimeproxy.fake_hook_server import register
from tests.runtimeproxy.proxy_site import Site

FAULTS = ("down", "slow", "error", "malformed", "oversized")
OUTCOMES = {"down": "error", "slow": "timeout", "error": "error", "malformed": "malformed", "oversized": "error"}


async def break_hooks(site: Site, fault: str) -> None:
    if fault == "down":
        await site.hooks.stop()
    elif fault == "slow":
        site.hooks.hang = True
    elif fault == "error":
        site.hooks.error = "plugin failed"
    else:
        answer = b"\x0a\xff\xff" if fault == "malformed" else bytes(MAX_MESSAGE_BYTES + 1)
        site.hooks.answers = dict.fromkeys(RuntimeHookStage, lambda _: answer)


@pytest.fixture
async def impatient(site: Site) -> Site:
    """The proxy again, with the shortest patience."""
    await site.stop()
    site.settings = msgspec.structs.replace(site.settings, hook_timeout_s=0.5)
    await site.start()
    return site


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["Ignore", "", "fail", "Whatever"])
async def test_ignored_failures_change_nothing(impatient: Site, fault: str, policy: str) -> None:
    site = impatient
    site.register(policy)
    await break_hooks(site, fault)
    run = run_pod_sandbox()
    sandbox = await site.id_of("RunPodSandbox", run)
    created = create_container(sandbox)
    made = await site.id_of("CreateContainer", created)
    for name in ("StartContainer", "StopContainer"):
        await site.call(name, by_id(made))
    assert site.runtime.last("RunPodSandbox") == run
    assert site.runtime.last("CreateContainer") == created
    observed = {labels for labels, _ in site.proxy.metrics.hook_s}
    assert ("PreCreateContainer", OUTCOMES[fault]) in observed
    assert {outcome for _, outcome in observed} == {OUTCOMES[fault]}


@pytest.mark.parametrize("fault", FAULTS)
async def test_failures_of_a_server_that_must_answer_refuse_the_call(impatient: Site, fault: str) -> None:
    site = impatient
    sandbox = await site.id_of("RunPodSandbox", run_pod_sandbox())
    made = await site.id_of("CreateContainer", create_container(sandbox))
    site.register("Fail")
    await break_hooks(site, fault)
    before = site.runtime.names()
    for name, message in (
        ("RunPodSandbox", run_pod_sandbox()),
        ("CreateContainer", create_container(sandbox)),
        ("StartContainer", by_id(made)),
        ("UpdateContainerResources", update_resources(made, RESOURCES)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await site.call(name, message)
        assert failed.value.code() is grpc.StatusCode.UNKNOWN
        assert (failed.value.details() or "").startswith("hook server err: ")
    assert site.runtime.names() == before
    assert dict(site.proxy.metrics.refused)[("PreRunPodSandbox",)].value == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stop_is_never_refused(impatient: Site, fault: str) -> None:
    site = impatient
    sandbox = await site.id_of("RunPodSandbox", run_pod_sandbox())
    site.register("Fail")
    await break_hooks(site, fault)
    await site.call("StopPodSandbox", by_id(sandbox))
    assert site.runtime.names()[-1] == "StopPodSandbox"


async def test_the_servers_own_words_reach_the_kubelet(site: Site) -> None:
    site.register("Fail")
    site.hooks.error = "no such cgroup"
    with pytest.raises(grpc.aio.AioRpcError, match="hook server err: INTERNAL: no such cgroup"):
        await site.call("RunPodSandbox", run_pod_sandbox())


async def test_a_server_that_came_back_is_asked_again(site: Site) -> None:
    site.register()
    await site.hooks.stop()
    await site.call("RunPodSandbox", run_pod_sandbox())
    assert site.hooks.calls == []
    await site.hooks.start(site.hook_socket)
    while not site.hooks.calls:
        await site.call("RunPodSandbox", run_pod_sandbox())
        await asyncio.sleep(0.05)


async def test_exactly_one_server_is_asked_the_first_by_file_name(site: Site) -> None:
    nowhere = str(site.folder / "nowhere.sock")
    register(site.configs, nowhere, "Fail", ("PreCreateContainer",), "a.json")
    register(site.configs, site.hook_socket, "Fail", ("PreRunPodSandbox", "PreCreateContainer"), "b.json")
    register(site.configs, nowhere, "Fail", ("PreRunPodSandbox",), "c.json")
    site.proxy.configs.scan()
    sandbox = await site.id_of("RunPodSandbox", run_pod_sandbox())
    with pytest.raises(grpc.aio.AioRpcError, match="hook server err"):
        await site.call("CreateContainer", create_container(sandbox))
    assert site.hooks.stages() == ["PreRunPodSandbox"]


async def test_a_hook_never_outlasts_the_kubelets_patience(site: Site) -> None:
    """With ten seconds for a hook, the call must end by the deadline of the kubelet, which is shorter."""
    site.register("Ignore")
    site.hooks.hang = True
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await site.call("RunPodSandbox", run_pod_sandbox(), timeout=0.3)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "RunPodSandbox" not in site.runtime.names()
