"""A handler that fails or is too slow keeps no container from starting, unless the failure policy says so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from koord.koordlet.nri.session import NriConnectError, open_session
from koord.koordlet.nri.settings import NriSettings, handler_deadline_s
from koord.telemetry.clock import WallClock
from koord.wire.nri_messages import (
    ContainerAdjustment,
    CreateContainerRequest,
    LinuxContainerAdjustment,
    LinuxCpu,
    LinuxResources,
    NriEvent,
    StateChangeEvent,
    UpdateContainerRequest,
)
from koord.wire.ttrpc import UNKNOWN
from tests.koordlet.nri.fake_runtime import TtrpcError
from tests.koordlet.nri.nri_fixture import (
    CONTAINER,
    POD,
    Outcomes,
    RecordingHandler,
    runtime_at,
    session_in,
    settings_in,
    soon,
)

CREATE = CreateContainerRequest(pod=POD, container=CONTAINER)


def _raise(method: str) -> None:
    if method != "synchronize":
        raise ValueError(f"no {method} today")


async def test_a_handler_that_raises_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with session_in(tmp_path) as met:
        met.handler.before, met.handler.adjustment = _raise, ContainerAdjustment(env={"a": "b"})
        assert await met.peer.call("CreateContainer", CREATE) == b""
        assert await met.peer.call("UpdateContainer", UpdateContainerRequest(pod=POD, container=CONTAINER)) == b""
        assert await met.peer.call("StateChange", StateChangeEvent(event=NriEvent.RUN_POD_SANDBOX, pod=POD)) == b""
        detail = "pod default/web, container main: ValueError: no"
        assert met.outcomes.found[1:] == [
            ("PreCreateContainer", "failed", f"{detail} create today"),
            ("PreUpdateContainerResources", "failed", f"{detail} update today"),
            ("PreRunPodSandbox", "failed", "pod default/web: ValueError: no run today"),
        ]
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 3
        assert lines[0] == f"NRI PreCreateContainer of {detail} create today (failure policy Ignore)"


async def test_with_the_policy_fail_the_runtime_is_told(tmp_path: Path) -> None:
    async with session_in(tmp_path, failure_policy="Fail") as met:
        met.handler.before = _raise
        with pytest.raises(TtrpcError) as refused:
            await met.peer.call("CreateContainer", CREATE)
        assert refused.value.code == UNKNOWN
        assert refused.value.text == (
            "PreCreateContainer of pod default/web, container main: ValueError: no create today"
        )


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_a_handler_that_is_too_slow_is_not_waited_for(tmp_path: Path, policy: str) -> None:
    gate, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with session_in(tmp_path, max_handler_s=0.05, failure_policy=policy) as met:
        met.handler.before, met.handler.adjustment = lambda _: wait(), ContainerAdjustment(env={"a": "b"})
        if policy == "Ignore":
            assert await met.peer.call("CreateContainer", CREATE) == b""
        else:
            with pytest.raises(TtrpcError) as refused:
                await met.peer.call("CreateContainer", CREATE)
            assert refused.value.code == UNKNOWN
            assert refused.value.text.endswith("no result after 0.05 s")
        await soon(cancelled.wait())
        stage, outcome, detail = met.outcomes.found[-1]
        assert (stage, outcome) == ("PreCreateContainer", "timeout")
        assert detail.endswith("no result after 0.05 s")


async def test_the_deadline_is_under_the_one_that_the_call_carries(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        met.handler.before = lambda _: asyncio.Event().wait()
        assert await met.peer.call("CreateContainer", CREATE, timeout_s=0.08) == b""
        assert met.outcomes.found[-1][2].endswith("no result after 0.06 s")


async def test_a_late_result_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The handler goes on in spite of its cancellation; its stream has been answered, and gets no second answer."""
    gate, done = asyncio.Event(), asyncio.Event()

    async def persist() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        done.set()

    async with session_in(tmp_path, max_handler_s=0.05) as met:
        met.handler.adjustment = ContainerAdjustment(env={"a": "b"})
        met.handler.before = lambda _: persist()
        assert await met.peer.call("CreateContainer", CREATE) == b""
        gate.set()
        await soon(done.wait())
        met.handler.before = None
        assert await met.peer.call("CreateContainer", CREATE) != b""
        assert [outcome for _, outcome, _ in met.outcomes.found] == ["success", "timeout", "success"]


async def test_what_a_handler_raises_after_its_deadline_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    async def fail_late() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise RuntimeError("the disk is gone") from None

    async with session_in(tmp_path, max_handler_s=0.05) as met:
        met.handler.before = lambda _: fail_late()
        assert await met.peer.call("CreateContainer", CREATE) == b""
        await soon(ended.wait())
        await met.peer.call("StopContainer", CREATE)
    assert "NRI: nri-handler-PreCreateContainer failed after its deadline: the disk is gone" in caplog.messages


@pytest.mark.parametrize(
    ("adjustment", "why"),
    [
        pytest.param(
            ContainerAdjustment(linux=LinuxContainerAdjustment(resources=LinuxResources(cpu=LinuxCpu(shares=-1)))),
            "LinuxCpu.shares: -1 is no uint64",
            id="no-encoding",
        ),
        pytest.param(ContainerAdjustment(env={"a": "x" * (4 << 20)}), "longer than the runtime takes", id="too-long"),
        pytest.param("nonsense", "AttributeError", id="another-type"),
    ],
)
async def test_an_adjustment_that_cannot_be_sent_is_a_failure(
    tmp_path: Path, adjustment: ContainerAdjustment, why: str
) -> None:
    async with session_in(tmp_path) as met:
        met.handler.adjustment = adjustment
        assert await met.peer.call("CreateContainer", CREATE) == b""
        stage, outcome, detail = met.outcomes.found[-1]
        assert (stage, outcome) == ("PreCreateContainer", "failed")
        assert why in detail


async def test_an_observer_that_fails_keeps_no_container_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(stage: str, outcome: str, seconds: float, detail: str) -> None:
        raise OSError("no metrics today")

    async with runtime_at(tmp_path) as runtime:
        handler = RecordingHandler()
        handler.adjustment = ContainerAdjustment(env={"a": "b"})
        session = await open_session(settings_in(tmp_path), handler, WallClock(), observe)
        assert not isinstance(session, NriConnectError)
        peer = await runtime.peer()
        assert await peer.call("CreateContainer", CREATE) != b""
        await session.close()
    assert "NRI: the outcome of PreCreateContainer could not be recorded" in caplog.messages


@pytest.mark.parametrize(("policy", "connects"), [("Ignore", True), ("Fail", False)])
async def test_a_failed_synchronize(tmp_path: Path, policy: str, connects: bool) -> None:
    def fail(method: str) -> None:
        raise ValueError("not now")

    async with runtime_at(tmp_path):
        handler, outcomes = RecordingHandler(), Outcomes()
        handler.before = fail
        session = await open_session(settings_in(tmp_path, failure_policy=policy), handler, WallClock(), outcomes)
        assert outcomes.found == [("Synchronize", "failed", "0 pods and 0 containers: ValueError: not now")]
        if connects:
            assert not isinstance(session, NriConnectError)
            await session.close()
        else:
            assert isinstance(session, NriConnectError)
            assert "ValueError: not now" in session.why


async def test_closing_a_session_ends_its_handlers(tmp_path: Path) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # it has something to put right first
                await asyncio.sleep(0)
            cancelled.set()

    async with session_in(tmp_path, max_handler_s=60.0) as met:
        met.handler.before = lambda _: wait()
        asked = asyncio.create_task(met.peer.call("CreateContainer", CREATE))
        await soon(began.wait())
        await met.session.close()
        assert cancelled.is_set()
        await asyncio.gather(asked, return_exceptions=True)


@pytest.mark.parametrize(
    ("told_s", "caller_s", "wanted_s"),
    [
        pytest.param(2.0, 0.0, 1.5, id="containerd-default"),
        pytest.param(1.0, 0.0, 0.75, id="a-quarter-under"),
        pytest.param(1.0, 0.4, 0.3, id="the-call-is-shorter"),
        pytest.param(1.0, 2.0, 0.75, id="the-call-is-longer"),
        pytest.param(0.0, 0.0, 1.5, id="not-told"),
        pytest.param(-1.0, 0.0, 1.5, id="negative"),
        pytest.param(60.0, 60.0, 1.5, id="never-more"),
    ],
)
def test_the_deadline_of_a_handler(told_s: float, caller_s: float, wanted_s: float) -> None:
    assert handler_deadline_s(NriSettings(), told_s, caller_s) == pytest.approx(wanted_s)
