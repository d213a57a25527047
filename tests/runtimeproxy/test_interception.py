"""What hook servers are asked, what their answers change, and what is remembered of it."""

from __future__ import annotations

import grpc
import grpc.aio
import msgspec
import pytest

from koord.wire import raw_fields
from koord.wire.protobuf import codec_of
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerMetadata,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
    RuntimeHookStage,
    echo_container,
    echo_pod,
)
from tests.runtimeproxy.cri_messages import (
    RESOURCES,
    UNKNOWN,
    by_id,
    create_container,
    run_pod_sandbox,
    update_resources,
)
from tests.runtimeproxy.fake_runtime import METHOD
from tests.runtimeproxy.proxy_site import Site

LABELS, ANNOTATIONS = {"app": "web"}, {"note": "1"}
CREATE, UPDATE = RuntimeHookStage.PRE_CREATE_CONTAINER, RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES
POD = PodSandboxMetadata(name="web", uid="u", namespace="default")


async def pod(site: Site) -> str:
    return await site.id_of("RunPodSandbox", run_pod_sandbox(LABELS, ANNOTATIONS))


async def container(site: Site) -> str:
    return await site.id_of("CreateContainer", create_container(await pod(site)))


def created_resources(site: Site) -> LinuxContainerResources:
    raw = raw_fields.message_of(site.runtime.last("CreateContainer"), 2, 15, 1)
    assert raw is not None
    assert raw.endswith(UNKNOWN)
    return codec_of(LinuxContainerResources).decode(raw)


async def test_a_pod_and_its_container_from_beginning_to_end(site: Site) -> None:
    site.register()
    sandbox = await pod(site)
    made = await site.id_of("CreateContainer", create_container(sandbox))
    await site.call("StartContainer", by_id(made))
    await site.call("UpdateContainerResources", update_resources(made, LinuxContainerResources(cpu_shares=1024)))
    await site.call("StopContainer", by_id(made))
    await site.call("RemoveContainer", by_id(made))
    await site.call("StopPodSandbox", by_id(sandbox))
    await site.call("RemovePodSandbox", by_id(sandbox))
    assert site.hooks.stages() == [
        "PreRunPodSandbox",
        "PreCreateContainer",
        "PreStartContainer",
        "PostStartContainer",
        "PreUpdateContainerResources",
        "PostStopContainer",
        "PostStopPodSandbox",
    ]
    requests = [request for _, request in site.hooks.calls]
    assert requests[0] == requests[6]
    assert requests[0] == PodSandboxHookRequest(
        pod_meta=POD, runtime_handler="runc", labels=LABELS, annotations=ANNOTATIONS, cgroup_parent="/kubepods/podu"
    )
    asked = ContainerResourceHookRequest(
        pod_meta=POD,
        container_meta=ContainerMetadata(name="main", attempt=3),
        container_annotations={"own": "yes"},
        container_resources=RESOURCES,
        pod_annotations=ANNOTATIONS,
        pod_labels=LABELS,
        pod_cgroup_parent="/kubepods/podu",
        container_envs={"A": "1", "B": "2"},
    )
    assert requests[1] == asked
    known = msgspec.structs.replace(asked, container_meta=ContainerMetadata(name="main", attempt=3, id=made))
    assert requests[2] == requests[3] == known
    updated = msgspec.structs.replace(known, container_resources=msgspec.structs.replace(RESOURCES, cpu_shares=1024))
    assert requests[4] == requests[5] == updated
    assert (site.proxy.checkpoint.pods, site.proxy.checkpoint.containers) == ({}, {})


async def test_an_echo_changes_no_byte(site: Site) -> None:
    site.register("Fail")
    run = run_pod_sandbox(LABELS, ANNOTATIONS)
    sandbox = await site.id_of("RunPodSandbox", run)
    created = create_container(sandbox, envs=(("A", b"1"), ("B", b"2"), ("A", b"3"), ("BIN", b"\xff")))
    await site.call("CreateContainer", created)
    assert site.runtime.last("RunPodSandbox") == run
    assert site.runtime.last("CreateContainer") == created


async def test_nobody_registered_changes_no_byte(site: Site) -> None:
    sandbox = await pod(site)
    made = await site.id_of("CreateContainer", create_container(sandbox))
    update = update_resources(made, LinuxContainerResources(cpu_shares=7))
    await site.call("UpdateContainerResources", update)
    assert site.runtime.last("CreateContainer") == create_container(sandbox)
    assert site.runtime.last("UpdateContainerResources") == update
    assert site.hooks.calls == []


async def test_what_a_hook_changes_of_a_pod(site: Site) -> None:
    site.register()
    site.hooks.answers[RuntimeHookStage.PRE_RUN_POD_SANDBOX] = lambda request: PodSandboxHookResponse(
        labels={"app": "changed", "new": "l"},
        annotations={"added": "a"},
        cgroup_parent="/elsewhere",
        resources=LinuxContainerResources(cpu_shares=5),
    )
    sandbox = await pod(site)
    sent = site.runtime.last("RunPodSandbox")
    config = raw_fields.message_of(sent, 1)
    assert config is not None
    assert raw_fields.string_map_of(config, 6) == {"app": "changed", "new": "l"}
    assert raw_fields.string_map_of(config, 7) == {"note": "1", "added": "a"}
    assert raw_fields.string_of(raw_fields.message_of(config, 8) or b"", 1) == "/elsewhere"
    assert raw_fields.message_of(config, 8, 5) is None  # CRI mode has no resources of the sandbox
    assert sent.count(UNKNOWN) == 3
    assert site.proxy.checkpoint.pods[sandbox].labels == {"app": "changed", "new": "l"}
    await site.call("CreateContainer", create_container(sandbox))
    assert site.hooks.last(CREATE).pod_labels == {"app": "changed", "new": "l"}


@pytest.mark.parametrize(
    ("answered", "applied"),
    [
        ({"cpu_shares": 2}, {"cpu_shares": 2}),
        ({"cpu_shares": 0}, {}),
        ({"cpu_quota": -1}, {"cpu_quota": -1}),
        ({"cpu_quota": 0}, {}),
        ({"cpu_period": 50_000}, {"cpu_period": 50_000}),
        ({"memory_limit_in_bytes": -1}, {}),
        ({"memory_limit_in_bytes": 5}, {"memory_limit_in_bytes": 5}),
        ({"oom_score_adj": 0}, {"oom_score_adj": 0}),
        ({"oom_score_adj": -1000}, {"oom_score_adj": -1000}),
        ({"oom_score_adj": 1001}, {}),
        ({"cpuset_cpus": ""}, {"cpuset_cpus": ""}),
        ({"cpuset_cpus": "3", "cpuset_mems": "1"}, {"cpuset_cpus": "3", "cpuset_mems": "1"}),
        ({"unified": {"memory.high": "9"}}, {"unified": {"memory.high": "9"}}),
        ({"memory_swap_limit_in_bytes": 8}, {"memory_swap_limit_in_bytes": 8}),
        ({"memory_swap_limit_in_bytes": -1}, {}),
    ],
)
async def test_what_a_hook_changes_of_resources(
    site: Site, answered: dict[str, object], applied: dict[str, object]
) -> None:
    site.register()
    site.hooks.changes_resources(CREATE, **answered)
    await container(site)
    assert created_resources(site) == msgspec.structs.replace(RESOURCES, **applied)


async def test_an_answer_without_resources_keeps_them(site: Site) -> None:
    site.register()
    site.hooks.answers[CREATE] = lambda _: ContainerResourceHookResponse()
    await container(site)
    assert created_resources(site) == RESOURCES


async def test_a_request_without_resources_gets_none(site: Site) -> None:
    site.register()
    answer = ContainerResourceHookResponse(container_resources=LinuxContainerResources(cpu_shares=5))
    site.hooks.answers[CREATE] = lambda _: answer
    sandbox = await pod(site)
    await site.call("CreateContainer", create_container(sandbox, resources=None))
    assert raw_fields.message_of(site.runtime.last("CreateContainer"), 2, 15, 1) is None


async def test_what_a_hook_changes_of_a_container_beside_resources(site: Site) -> None:
    site.register()
    site.hooks.answers[CREATE] = lambda request: msgspec.structs.replace(
        echo_container(request),
        container_annotations={"own": "no", "more": "x"},
        pod_cgroup_parent="/p",
        container_envs={"B": "new", "Z": "26", "C": "3"},
        container_devices=(ContainerDevice(container_path="/dev/a", host_path="/dev/b", permissions="rw"),),
    )
    await container(site)
    sent = site.runtime.last("CreateContainer")
    config = raw_fields.message_of(sent, 2)
    assert config is not None
    assert raw_fields.string_map_of(config, 10) == {"own": "no", "more": "x"}
    assert raw_fields.string_of(raw_fields.message_of(sent, 3, 8) or b"", 1) == "/p"
    envs = [(raw_fields.string_of(one, 1), raw_fields.string_of(one, 2)) for one in raw_fields.chunks_of(config, 6)]
    assert envs == [("B", "new"), ("C", "3"), ("Z", "26")]
    (device,) = raw_fields.chunks_of(config, 8)
    assert [raw_fields.string_of(device, number) for number in (1, 2, 3)] == ["/dev/a", "/dev/b", "rw"]


async def test_an_update_states_all_that_is_wanted(site: Site) -> None:
    site.register()
    site.hooks.changes_resources(CREATE, cpu_shares=2, cpu_quota=-1)
    made = await container(site)
    site.hooks.changes_resources(UPDATE, cpuset_cpus="")
    update = LinuxContainerResources(memory_limit_in_bytes=2 << 30, cpuset_mems="0", oom_score_adj=3)
    await site.call("UpdateContainerResources", update_resources(made, update))
    wanted = msgspec.structs.replace(
        RESOURCES, cpu_shares=2, cpu_quota=-1, memory_limit_in_bytes=2 << 30, cpuset_mems="0"
    )
    assert site.hooks.last(UPDATE).container_resources == wanted
    raw = raw_fields.message_of(site.runtime.last("UpdateContainerResources"), 2)
    assert raw is not None
    assert raw.endswith(UNKNOWN)
    applied = msgspec.structs.replace(wanted, cpuset_cpus="")
    assert codec_of(LinuxContainerResources).decode(raw) == applied
    assert site.proxy.checkpoint.containers[made].request.container_resources == applied


async def test_an_update_that_the_runtime_refused_is_not_remembered(site: Site) -> None:
    made = await container(site)
    before = site.proxy.checkpoint.containers[made]
    site.runtime.failures[METHOD("UpdateContainerResources")] = (grpc.StatusCode.INVALID_ARGUMENT, "no", ())
    with pytest.raises(grpc.aio.AioRpcError):
        await site.call("UpdateContainerResources", update_resources(made, LinuxContainerResources(cpu_shares=9)))
    assert site.proxy.checkpoint.containers[made] == before


async def test_an_update_that_cannot_be_read_passes_untouched(site: Site) -> None:
    site.register("Fail")
    made = await container(site)
    before = site.proxy.checkpoint.containers[made]
    message = raw_fields.encode_string(1, made) + raw_fields.encode_chunk(2, b"\xff")
    await site.call("UpdateContainerResources", message)
    assert site.runtime.last("UpdateContainerResources") == message
    assert site.proxy.checkpoint.containers[made] == before
    assert site.hooks.stages()[-1] == "PreCreateContainer"


async def test_a_pod_that_opts_out_is_run_without_hooks(site: Site) -> None:
    site.register("Fail")
    label = {site.settings.opt_out_key: site.settings.opt_out_value}
    sandbox = await site.id_of("RunPodSandbox", run_pod_sandbox(label))
    made = await site.id_of("CreateContainer", create_container(sandbox))
    for name in ("StartContainer", "StopContainer"):
        await site.call(name, by_id(made))
    await site.call("StopPodSandbox", by_id(sandbox))
    assert site.hooks.calls == []


async def test_an_annotation_or_another_value_opts_nobody_out(site: Site) -> None:
    site.register()
    key = site.settings.opt_out_key
    await site.call("RunPodSandbox", run_pod_sandbox({key: "false"}, {key: "true"}))
    assert site.hooks.stages() == ["PreRunPodSandbox"]


async def test_what_is_not_known_passes_untouched(site: Site) -> None:
    site.register("Fail")
    messages = {
        "CreateContainer": create_container("nowhere"),
        "StartContainer": by_id("nothing"),
        "StopContainer": by_id("nothing"),
        "UpdateContainerResources": update_resources("nothing", RESOURCES),
        "StopPodSandbox": by_id("nowhere"),
    }
    for name, message in messages.items():
        await site.call(name, message)
        assert site.runtime.last(name) == message
    assert site.hooks.calls == []


@pytest.mark.parametrize("name", ["StopPodSandbox", "StopContainer"])
async def test_what_is_stopped_is_forgotten_and_told_even_if_the_runtime_failed(site: Site, name: str) -> None:
    site.register()
    made = await container(site)
    sandbox = site.proxy.checkpoint.containers[made].sandbox_id
    site.runtime.failures[METHOD(name)] = (grpc.StatusCode.UNKNOWN, "busy", ())
    with pytest.raises(grpc.aio.AioRpcError, match="busy"):
        await site.call(name, by_id(sandbox if name == "StopPodSandbox" else made))
    assert site.hooks.stages()[-1] == f"Post{name}"
    known = site.proxy.checkpoint.pods if name == "StopPodSandbox" else site.proxy.checkpoint.containers
    assert known == {}


async def test_a_container_that_ended_by_itself_is_forgotten_with_its_removal(site: Site) -> None:
    first, second = await container(site), await container(site)
    sandbox = site.proxy.checkpoint.containers[second].sandbox_id
    await site.call("RemoveContainer", by_id(first))
    assert set(site.proxy.checkpoint.containers) == {second}
    await site.call("RemovePodSandbox", by_id(sandbox))
    assert site.proxy.checkpoint.containers == {}
    assert sandbox not in site.proxy.checkpoint.pods


async def test_a_start_that_failed_is_told_as_well(site: Site) -> None:
    site.register()
    made = await container(site)
    site.runtime.failures[METHOD("StartContainer")] = (grpc.StatusCode.UNKNOWN, "no such file", ())
    with pytest.raises(grpc.aio.AioRpcError, match="no such file"):
        await site.call("StartContainer", by_id(made))
    assert site.hooks.stages()[-2:] == ["PreStartContainer", "PostStartContainer"]


async def test_a_pod_that_could_not_be_made_is_not_remembered(site: Site) -> None:
    site.runtime.failures[METHOD("RunPodSandbox")] = (grpc.StatusCode.UNKNOWN, "no network", ())
    with pytest.raises(grpc.aio.AioRpcError):
        await pod(site)
    assert site.proxy.checkpoint.pods == {}


def test_echoes_leave_what_they_echo() -> None:
    request = PodSandboxHookRequest(labels=LABELS, resources=RESOURCES)
    assert echo_pod(request) == PodSandboxHookResponse(labels=LABELS, resources=RESOURCES)
