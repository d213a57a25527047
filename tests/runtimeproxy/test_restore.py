"""A proxy that starts knows the pods and containers that run already."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc

from koord.wire.runtime_hook import ContainerMetadata, LinuxContainerResources, PodSandboxMetadata, RuntimeHookStage
from tests.runtimeproxy.cri_messages import RESOURCES, by_id, create_container, run_pod_sandbox, update_resources
from tests.runtimeproxy.fake_runtime import METHOD
from tests.runtimeproxy.proxy_site import Site

POD = PodSandboxMetadata(name="web", uid="u", namespace="default")


def records(site: Site) -> list[Path]:
    return list(Path(site.settings.state_dir).rglob("*.json"))


async def started(site: Site) -> tuple[str, str]:
    sandbox = await site.id_of("RunPodSandbox", run_pod_sandbox({"app": "web"}, {"note": "1"}))
    return sandbox, await site.id_of("CreateContainer", create_container(sandbox))


async def test_a_restart_loses_nothing(site: Site) -> None:
    _, made = await started(site)
    before = (dict(site.proxy.checkpoint.pods), dict(site.proxy.checkpoint.containers))
    await site.stop()
    await site.start()
    assert (site.proxy.checkpoint.pods, site.proxy.checkpoint.containers) == before
    site.register()
    await site.call("UpdateContainerResources", update_resources(made, LinuxContainerResources(cpu_shares=9)))
    resources = site.hooks.last(RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES).container_resources
    assert (resources.cpu_shares, resources.memory_limit_in_bytes) == (9, RESOURCES.memory_limit_in_bytes)


async def test_without_records_the_runtime_is_asked(site: Site) -> None:
    sandbox, made = await started(site)
    await site.stop()
    shutil.rmtree(site.settings.state_dir)
    await site.start()
    pod, record = site.proxy.checkpoint.pods[sandbox], site.proxy.checkpoint.containers[made]
    assert (pod.pod_meta, pod.labels, pod.annotations) == (POD, {"app": "web"}, {"note": "1"})
    assert (pod.runtime_handler, pod.cgroup_parent, pod.resources) == ("runc", "", None)
    request = record.request
    assert record.sandbox_id == sandbox
    assert request.container_meta == ContainerMetadata(name="main", attempt=3, id=made)
    assert (request.pod_meta, request.pod_labels, request.pod_annotations) == (POD, {"app": "web"}, {"note": "1"})
    assert (request.container_annotations, request.container_resources) == ({"own": "yes"}, None)
    site.register("Fail")
    await site.call("StartContainer", by_id(made))
    assert site.hooks.stages() == ["PreStartContainer", "PostStartContainer"]


async def test_records_of_what_is_gone_are_removed(site: Site) -> None:
    await started(site)
    await site.stop()
    site.runtime.sandboxes.clear()
    site.runtime.containers.clear()
    await site.start()
    assert (site.proxy.checkpoint.pods, site.proxy.checkpoint.containers) == ({}, {})
    assert records(site) == []


async def test_a_container_of_a_sandbox_that_is_not_listed_is_left_out(site: Site) -> None:
    sandbox, _ = await started(site)
    await site.stop()
    shutil.rmtree(site.settings.state_dir)
    del site.runtime.sandboxes[sandbox]
    await site.start()
    assert site.proxy.checkpoint.containers == {}


async def test_a_runtime_that_cannot_list_leaves_the_records(site: Site) -> None:
    sandbox, made = await started(site)
    await site.stop()
    site.runtime.failures[METHOD("ListContainers")] = (grpc.StatusCode.UNKNOWN, "starting", ())
    await site.start()
    assert (set(site.proxy.checkpoint.pods), set(site.proxy.checkpoint.containers)) == ({sandbox}, {made})


async def test_a_list_that_makes_no_sense_leaves_the_records(site: Site) -> None:
    sandbox, made = await started(site)
    await site.stop()
    site.runtime.replies[METHOD("ListPodSandbox")] = b"\x0a\xff"
    await site.start()
    assert (set(site.proxy.checkpoint.pods), set(site.proxy.checkpoint.containers)) == ({sandbox}, {made})
