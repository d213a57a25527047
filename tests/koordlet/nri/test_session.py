"""A session with a runtime over a real socket: registration, calls both ways, and their ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from koord.koordlet.nri.session import MAX_REMEMBERED_PODS, NriConnectError, open_session
from koord.telemetry.clock import WallClock
from koord.wire.nri_messages import (
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerRequest,
    CreateContainerResponse,
    EmptyMessage,
    LinuxContainer,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxCpu,
    LinuxMemory,
    LinuxPodSandbox,
    LinuxResources,
    NriContainer,
    NriEvent,
    NriPodSandbox,
    StateChangeEvent,
    SynchronizeRequest,
    UpdateContainerRequest,
    UpdateContainerResponse,
    decode_message,
)
from koord.wire.ttrpc import DEADLINE_EXCEEDED, UNAVAILABLE, UNIMPLEMENTED, TtrpcStatus
from tests.koordlet.nri.fake_runtime import FakeRuntime, TtrpcError
from tests.koordlet.nri.nri_fixture import CONTAINER, POD, RecordingHandler, runtime_at, session_in, settings_in, soon


@pytest.mark.parametrize("answers_first", [False, True])
async def test_it_registers_configures_and_synchronizes(tmp_path: Path, answers_first: bool) -> None:
    """The runtime calls Configure and Synchronize before it answers RegisterPlugin, or after."""

    def prepare(runtime: FakeRuntime) -> None:
        runtime.answers_first = answers_first
        runtime.pods, runtime.containers = (POD,), (CONTAINER,)
        runtime.configuration = msgspec.structs.replace(runtime.configuration, nri_version="v0.12.3")

    async with session_in(tmp_path, prepare) as met:
        assert met.peer.registered is not None
        assert (met.peer.registered.plugin_name, met.peer.registered.plugin_idx) == ("koordlet_nri", "00")
        assert met.peer.events == 141
        assert met.handler.calls == [("synchronize", (1, 1))]
        assert (met.session.runtime.runtime_name, met.session.runtime.nri_version) == ("fake", "v0.12.3")
        assert met.session.synchronized is not None
        assert (met.session.synchronized.pods, met.session.synchronized.containers) == (1, 1)
        assert met.outcomes.found == [("Synchronize", "success", "1 pods and 1 containers")]


async def test_five_hundred_containers_come_in_several_messages(tmp_path: Path) -> None:
    def prepare(runtime: FakeRuntime) -> None:
        runtime.pods = tuple(NriPodSandbox(id=f"p{n}") for n in range(250))
        runtime.containers = tuple(
            NriContainer(id=f"c{n}", pod_sandbox_id=f"p{n // 2}", env=("A=" + "x" * 200,)) for n in range(500)
        )
        runtime.chunk = 70

    async with session_in(tmp_path, prepare) as met:
        assert met.handler.calls == [("synchronize", (250, 500))]
        assert met.handler.pods == met.runtime.pods
        assert met.handler.containers == met.runtime.containers
        assert [answer.more for answer in met.peer.synchronize_answers] == [True] * 8 + [False]
        assert all(answer.update == () for answer in met.peer.synchronize_answers)


async def test_a_second_synchronize_begins_anew(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        await met.peer.call("Synchronize", SynchronizeRequest(pods=(POD,), more=True))
        await met.peer.call("Synchronize", SynchronizeRequest())
        assert met.handler.calls == [("synchronize", (0, 0)), ("synchronize", (1, 0))]


async def test_the_configuration_of_the_runtime_chooses_the_events(tmp_path: Path) -> None:
    def prepare(runtime: FakeRuntime) -> None:
        runtime.configuration = msgspec.structs.replace(runtime.configuration, config="events: [CreateContainer]")

    async with session_in(tmp_path, prepare) as met:
        assert met.peer.events == 8


@pytest.mark.parametrize("size", [10, 3000, 4090, 6000, 300_000])
async def test_an_adjustment_of_any_size_reaches_the_runtime(tmp_path: Path, size: int) -> None:
    """The fake reads as Go does: a message that begins in a frame of more than 4096 bytes ends the connection."""
    adjustment = ContainerAdjustment(
        env={"KOORD": "x" * size},
        linux=LinuxContainerAdjustment(resources=LinuxResources(cpu=LinuxCpu(shares=333, quota=-1))),
    )
    async with session_in(tmp_path) as met:
        met.handler.adjustment = adjustment
        answer = await met.peer.call("CreateContainer", CreateContainerRequest(pod=POD, container=CONTAINER))
        assert decode_message(CreateContainerResponse, answer) == CreateContainerResponse(adjust=adjustment)
        assert met.handler.calls[-1] == ("create", (POD, CONTAINER))
        assert met.outcomes.found[-1] == ("PreCreateContainer", "success", "pod default/web, container main")


async def test_no_adjustment_is_an_empty_answer(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        assert await met.peer.call("CreateContainer", CreateContainerRequest(pod=POD, container=CONTAINER)) == b""
        assert await met.peer.call("UpdateContainer", UpdateContainerRequest(pod=POD, container=CONTAINER)) == b""


async def test_an_update_names_its_container_and_zero_is_not_given(tmp_path: Path) -> None:
    has = LinuxResources(cpu=LinuxCpu(shares=1024, quota=20_000), memory=LinuxMemory(limit=1 << 20))
    asked = LinuxResources(cpu=LinuxCpu(shares=700, quota=0), memory=LinuxMemory(limit=0))
    container = msgspec.structs.replace(CONTAINER, linux=LinuxContainer(resources=has))
    update = ContainerUpdate(linux=LinuxContainerUpdate(resources=LinuxResources(cpu=LinuxCpu(shares=333))))
    async with session_in(tmp_path) as met:
        met.handler.update = update
        request = UpdateContainerRequest(pod=POD, container=container, linux_resources=asked)
        answer = decode_message(UpdateContainerResponse, await met.peer.call("UpdateContainer", request))
        assert answer.update == (msgspec.structs.replace(update, container_id="c1"),)
        wanted = LinuxResources(cpu=LinuxCpu(shares=700, quota=20_000), memory=LinuxMemory(limit=1 << 20))
        assert met.handler.calls[-1] == ("update", (POD, container, wanted))


async def test_pods_come_and_go_by_state_changes(tmp_path: Path) -> None:
    """containerd 2.2 leaves out what a pod had when it is removed; the handler gets it all the same."""
    whole = msgspec.structs.replace(
        POD, linux=LinuxPodSandbox(cgroup_parent="/kubepods/podu1", cgroups_path="/kubepods/podu1/p1")
    )
    reduced = msgspec.structs.replace(POD, annotations={}, linux=LinuxPodSandbox(cgroup_parent="/kubepods/podu1"))
    async with session_in(tmp_path) as met:
        for event, pod in ((NriEvent.RUN_POD_SANDBOX, whole), (NriEvent.REMOVE_POD_SANDBOX, reduced)):
            assert await met.peer.call("StateChange", StateChangeEvent(event=event, pod=pod)) == b""
        assert met.handler.calls[1:] == [("run", whole), ("remove", whole)]
        await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.REMOVE_POD_SANDBOX, pod=reduced))
        assert met.handler.calls[-1] == ("remove", reduced)  # it was forgotten
        assert [stage for stage, _, _ in met.outcomes.found[1:3]] == ["PreRunPodSandbox", "PreRemoveRunPodSandbox"]


async def test_a_pod_of_synchronize_is_known_when_it_goes(tmp_path: Path) -> None:
    def prepare(runtime: FakeRuntime) -> None:
        runtime.pods = (POD,)

    async with session_in(tmp_path, prepare) as met:
        reduced = msgspec.structs.replace(POD, annotations={})
        await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.REMOVE_POD_SANDBOX, pod=reduced))
        assert met.handler.calls[-1] == ("remove", POD)


async def test_pods_whose_removal_is_never_told_are_forgotten(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        for number in range(MAX_REMEMBERED_PODS + 1):
            pod = msgspec.structs.replace(POD, id=f"p{number}")
            await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.RUN_POD_SANDBOX, pod=pod))
        for number, known in ((0, {}), (1, POD.annotations)):
            reduced = NriPodSandbox(id=f"p{number}")
            await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.REMOVE_POD_SANDBOX, pod=reduced))
            assert met.handler.calls[-1] == ("remove", msgspec.structs.replace(reduced, annotations=known))


async def test_other_events_and_methods_are_answered_with_nothing(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        others = [event for event in NriEvent if event not in (NriEvent.RUN_POD_SANDBOX, NriEvent.REMOVE_POD_SANDBOX)]
        for event in (*others, 99):
            assert await met.peer.call("StateChange", StateChangeEvent(event=event, pod=POD)) == b""
        for method in ("StopContainer", "UpdatePodSandbox", "ValidateContainerAdjustment"):
            assert await met.peer.call(method, CreateContainerRequest(pod=POD)) == b""
        assert len(met.handler.calls) == 1


async def test_methods_of_newer_runtimes_are_refused_and_repeated_as_state_changes(tmp_path: Path) -> None:
    """NRI v0.12 tries RunPodSandbox first and takes code 12 for: use StateChange."""
    async with session_in(tmp_path) as met:
        with pytest.raises(TtrpcError) as refused:
            await met.peer.call("RunPodSandbox", StateChangeEvent(pod=POD))
        assert refused.value.code == UNIMPLEMENTED
        await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.RUN_POD_SANDBOX, pod=POD))
        assert met.handler.calls[-1] == ("run", POD)


async def test_answers_leave_in_the_order_in_which_they_are_made(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with session_in(tmp_path, max_handler_s=60.0) as met:
        met.handler.before = lambda method: gate.wait() if method == "create" else None
        slow = asyncio.create_task(
            met.peer.call("CreateContainer", CreateContainerRequest(pod=POD, container=CONTAINER), timeout_s=60.0)
        )
        for _ in range(3):
            await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.RUN_POD_SANDBOX, pod=POD))
        assert not slow.done()
        gate.set()
        assert await soon(slow) == b""


async def test_the_runtime_is_asked_to_update_containers(tmp_path: Path) -> None:
    update = ContainerUpdate(
        container_id="c1", linux=LinuxContainerUpdate(resources=LinuxResources(cpu=LinuxCpu(shares=444)))
    )
    async with session_in(tmp_path) as met:
        assert await met.session.update_containers([update]) == ()
        met.runtime.failed = (update,)
        assert await met.session.update_containers([update]) == (update,)
        assert [request.update for request in met.peer.updates] == [(update,), (update,)]
        await met.peer.close()
        await soon(met.session.wait_ended())
        failed = await met.session.update_containers([update])
        assert isinstance(failed, TtrpcStatus)
        assert failed.code == UNAVAILABLE


async def test_a_call_that_waits_when_the_runtime_goes_is_told(tmp_path: Path) -> None:
    def prepare(runtime: FakeRuntime) -> None:
        runtime.configuration = msgspec.structs.replace(runtime.configuration, request_timeout=60_000)

    async with session_in(tmp_path, prepare) as met:
        met.peer.stop_reading()
        asked = asyncio.create_task(met.session.update_containers([]))
        await asyncio.sleep(0)
        await met.peer.close()
        failed = await soon(asked)
        assert isinstance(failed, TtrpcStatus)
        assert failed.code == UNAVAILABLE


async def test_a_runtime_that_does_not_answer_a_call_is_waited_for_as_long_as_it_told(tmp_path: Path) -> None:
    def prepare(runtime: FakeRuntime) -> None:
        runtime.configuration = msgspec.structs.replace(runtime.configuration, request_timeout=50)

    async with session_in(tmp_path, prepare) as met:
        met.peer.stop_reading()
        failed = await met.session.update_containers([])
        assert isinstance(failed, TtrpcStatus)
        assert failed.code == DEADLINE_EXCEEDED


async def test_shutdown_is_answered_and_ends_the_session(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        assert await met.peer.call("Shutdown", EmptyMessage()) == b""
        assert await soon(met.session.wait_ended()) == "the runtime sent Shutdown"


# How a session does not come about -------------------------------------------------------------------------------


async def test_no_socket(tmp_path: Path) -> None:
    found = await open_session(settings_in(tmp_path), RecordingHandler(), WallClock())
    assert found == NriConnectError("connect", f"{tmp_path}/nri.sock: No such file or directory")


async def test_a_refused_registration(tmp_path: Path) -> None:
    async with runtime_at(tmp_path) as runtime:
        runtime.refusal = TtrpcStatus(2, "invalid plugin index")
        found = await open_session(settings_in(tmp_path), RecordingHandler(), WallClock())
        assert found == NriConnectError("register", "invalid plugin index (code 2)")
        await soon(runtime.peers[0].gone.wait())


async def test_a_registration_without_answer(tmp_path: Path) -> None:
    async with runtime_at(tmp_path) as runtime:
        runtime.registers = False
        found = await open_session(settings_in(tmp_path, register_timeout_s=0.05), RecordingHandler(), WallClock())
        assert found == NriConnectError("register", "RegisterPlugin had no answer after 0.05 s (code 4)")


async def test_a_runtime_that_never_synchronizes(tmp_path: Path) -> None:
    async with runtime_at(tmp_path) as runtime:
        runtime.registers, runtime.answers_first = False, True
        found = await open_session(settings_in(tmp_path, connect_timeout_s=0.1), RecordingHandler(), WallClock())
        assert found == NriConnectError("synchronize", "not done after 0.1 s")
        await soon(runtime.peers[0].gone.wait())


@pytest.mark.parametrize("answers_first", [False, True])
async def test_a_configuration_that_makes_no_sense(tmp_path: Path, answers_first: bool) -> None:
    async with runtime_at(tmp_path) as runtime:
        runtime.answers_first = answers_first
        runtime.configuration = msgspec.structs.replace(runtime.configuration, config="events: [Created]")
        found = await open_session(settings_in(tmp_path), RecordingHandler(), WallClock())
        assert isinstance(found, NriConnectError)
        assert found.why == "the runtime's configuration of this plugin: unknown event 'created'"


async def test_one_that_is_cancelled_on_the_way_leaves_no_connection(tmp_path: Path) -> None:
    async with runtime_at(tmp_path) as runtime:
        runtime.registers = False
        opening = asyncio.create_task(open_session(settings_in(tmp_path), RecordingHandler(), WallClock()))
        await runtime.accepted(1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await soon(runtime.peers[0].gone.wait())
