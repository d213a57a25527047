"""The plugin stays connected for the process's life: one session at a time, back-off, one koordlet of a node.

Everything runs in virtual time. The sockets are real; both of their ends are in one loop, so they never wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from koord.host.io_error import IoError
from koord.koordlet.nri.plugin import LOCK_POLL_S, LockHeld, NriLock, NriPlugin, NriStatus
from koord.koordlet.nri.settings import NriSettings, backoff_delay_s
from koord.telemetry.clock import VIRTUAL_EPOCH, LoopClock, run_virtual
from koord.wire.nri_messages import (
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerRequest,
    EmptyMessage,
    NriContainer,
    NriPodSandbox,
)
from koord.wire.ttrpc import UNAVAILABLE, TtrpcStatus
from tests.koordlet.nri.fake_runtime import FakeRuntime
from tests.koordlet.nri.nri_fixture import CONTAINER, POD, RecordingHandler, running, settings_in, soon

Story = Callable[[LoopClock], Awaitable[None]]


def in_virtual_time(story: Story) -> None:
    async def main(clock: LoopClock) -> None:
        await story(clock)

    run_virtual(main)


async def _until(clock: LoopClock, wanted: Callable[[], bool], what: str, limit_s: float = 300.0) -> None:
    end = clock.monotonic() + limit_s
    while not wanted():
        assert clock.monotonic() < end, f"after {limit_s:g} s: {what}"
        await clock.sleep(0.1)


def _plugin(clock: LoopClock, folder: Path, handler: RecordingHandler | None = None, **changes: object) -> NriPlugin:
    return NriPlugin(settings_in(folder, **changes), handler or RecordingHandler(), clock, rng=Random(1))


def test_without_a_socket_the_pauses_double_up_to_a_minute(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path, backoff_jitter=0.0)
        dialled: list[float] = []
        async with running(plugin):
            for _ in range(3000):
                await clock.sleep(0.1)
                if plugin.status().attempts > len(dialled):
                    dialled.append(clock.monotonic())
        assert [round(at) for at in dialled] == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
        found = plugin.status()
        assert (found.connected, found.since) == (False, None)
        assert found.last_error == f"connect: {tmp_path}/nri.sock: No such file or directory"

    in_virtual_time(story)


def test_pauses_have_jitter(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path, backoff_jitter=1.0, backoff_s=10.0, backoff_cap_s=10.0)
        async with running(plugin):
            await _until(clock, lambda: plugin.status().attempts == 3, "three dials")
        assert 20.5 < clock.monotonic() < 40

    in_virtual_time(story)


@pytest.mark.parametrize(
    ("failures", "changes", "wanted"),
    [
        (1, {}, 1.0),
        (2, {}, 2.0),
        (7, {}, 60.0),
        (10**9, {}, 60.0),
        (5, {"backoff_steps": 2}, 4.0),
        (3, {"backoff_factor": 3.0}, 9.0),
        (10**9, {"backoff_factor": 1.0}, 1.0),
        (1, {"backoff_s": 100.0}, 60.0),
    ],
)
def test_the_pause_after_failures(failures: int, changes: dict[str, float], wanted: float) -> None:
    assert backoff_delay_s(NriSettings(**changes), failures) == wanted  # type: ignore[arg-type]


def test_a_socket_that_appears_late_is_connected_to_at_once(tmp_path: Path) -> None:
    """The pause is a minute by then; the new socket ends it."""

    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path)
        async with running(plugin):
            await clock.sleep(200)
            runtime = FakeRuntime(tmp_path / "nri.sock")
            runtime.pods = (POD,)
            await runtime.start()
            await _until(clock, lambda: plugin.status().connected, "connected", 2)
            found = plugin.status()
            assert found == NriStatus(
                connected=True,
                since=found.since,
                runtime_name="fake",
                runtime_version="1.0",
                attempts=found.attempts,
                synchronized=found.synchronized,
            )
            assert found.since is not None
            assert found.since - VIRTUAL_EPOCH == pytest.approx(201, abs=2)
            assert found.synchronized is not None
            assert (found.synchronized.pods, found.synchronized.containers) == (1, 0)
        await runtime.stop()

    in_virtual_time(story)


def test_a_runtime_that_restarts_is_connected_to_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(clock: LoopClock) -> None:
        handler = RecordingHandler()
        handler.adjustment = ContainerAdjustment(env={"a": "b"})
        plugin = _plugin(clock, tmp_path, handler)
        async with running(plugin):
            for number in range(3):
                runtime = FakeRuntime(tmp_path / "nri.sock")
                await runtime.start()
                peer = await runtime.peer()
                await _until(clock, lambda: plugin.status().connected, f"connected {number}", 3)
                create = CreateContainerRequest(pod=POD, container=CONTAINER)
                assert await peer.call("CreateContainer", create) != b""
                assert await plugin.update_containers([ContainerUpdate(container_id="c1")]) == ()
                await clock.sleep(100)
                assert len(runtime.peers) == 1
                await runtime.stop()
                await _until(clock, lambda: not plugin.status().connected, "disconnected", 1)
                assert plugin.status().last_error == "the runtime closed the connection"
                await clock.sleep(20)
            failed = await plugin.update_containers([])
            assert isinstance(failed, TtrpcStatus)
            assert failed.code == UNAVAILABLE
        assert [method for method, _ in handler.calls] == ["synchronize", "create"] * 3

    caplog.set_level(logging.INFO)
    in_virtual_time(story)
    connected = [line for line in caplog.messages if line.startswith("NRI: connected to fake 1.0")]
    assert len(connected) == 3


@pytest.mark.parametrize("parts", [1, 4, 8])
def test_a_runtime_that_ends_in_the_middle_of_synchronize_is_learned_anew(tmp_path: Path, parts: int) -> None:
    async def story(clock: LoopClock) -> None:
        handler = RecordingHandler()
        plugin = _plugin(clock, tmp_path, handler)
        first = FakeRuntime(tmp_path / "nri.sock")
        first.pods, first.containers = _many("old", 500)
        first.chunk, first.ends_after_parts = 70, parts
        await first.start()
        async with running(plugin):
            await _until(clock, lambda: bool(plugin.status().last_error), "the first session ended", 3)
            assert plugin.status().last_error.startswith("register: the runtime closed the connection")
            assert handler.calls == []  # half of what runs is not told
            await first.stop()
            second = FakeRuntime(tmp_path / "nri.sock")
            second.pods, second.containers = _many("new", 501)
            second.chunk = 70
            await second.start()
            await _until(clock, lambda: plugin.status().connected, "connected to the second", 5)
            assert (handler.pods, handler.containers) == (second.pods, second.containers)
            assert handler.calls == [("synchronize", (251, 501))]
        await second.stop()

    in_virtual_time(story)


def _many(name: str, count: int) -> tuple[tuple[NriPodSandbox, ...], tuple[NriContainer, ...]]:
    """Containers of pods with two each, with the bulk that real ones have."""
    pods = tuple(NriPodSandbox(id=f"{name}-p{number}") for number in range((count + 1) // 2))
    containers = tuple(
        NriContainer(id=f"{name}-c{number}", pod_sandbox_id=pods[number // 2].id, env=("A=" + "x" * 200,))
        for number in range(count)
    )
    return pods, containers


def test_a_plugin_that_the_runtime_has_already_is_refused_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        runtime.refusal = TtrpcStatus(2, "plugin 00-koordlet_nri is registered already")
        await runtime.start()
        async with running(plugin):
            await clock.sleep(120)
            found = plugin.status()
            assert (found.connected, found.attempts > 3) == (False, True)
            assert found.last_error == "register: plugin 00-koordlet_nri is registered already (code 2)"
            runtime.refusal = None
            await _until(clock, lambda: plugin.status().connected, "connected once it is accepted", 70)
        await runtime.stop()

    in_virtual_time(story)
    assert caplog.text.count("is registered already") == 1


def test_a_shutdown_is_followed_by_a_new_session(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with running(plugin):
            peer = await runtime.peer()
            await clock.sleep(60)
            await peer.call("Shutdown", EmptyMessage())
            await soon(peer.gone.wait())
            await runtime.peer(1)
            await _until(clock, lambda: plugin.status().connected, "connected again", 3)
        await runtime.stop()

    in_virtual_time(story)


def test_a_runtime_that_drops_every_session_is_not_dialled_without_pause(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path, backoff_jitter=0.0)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        runtime.drops_at_once = True
        await runtime.start()
        async with running(plugin):
            await clock.sleep(60)
            assert plugin.status().attempts == 6  # at 0, 1, 3, 7, 15 and 31 s
            runtime.drops_at_once = False
            await _until(clock, lambda: plugin.status().connected, "connected", 10)
            # Dropped right after Synchronize: that is a failure too, and the pause grows on.
            await runtime.peers[-1].close()
            await _until(clock, lambda: not plugin.status().connected, "disconnected", 1)
            attempts = plugin.status().attempts
            await clock.sleep(50)
            assert plugin.status().attempts == attempts
        await runtime.stop()

    in_virtual_time(story)


def test_two_koordlets_of_one_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(clock: LoopClock) -> None:
        first, second = _plugin(clock, tmp_path), _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with running(first):
            await runtime.peer()
            async with running(second):
                await clock.sleep(100)
                assert len(runtime.peers) == 1
                found = second.status()
                assert (found.connected, found.attempts) == (False, 0)
                lock = tmp_path / "koordlet" / "nri.lock"
                assert found.last_error == f"another koordlet of this node (pid {os.getpid()}) holds {lock}"
        assert caplog.text.count("NRI waits: another koordlet") == 1
        async with running(second):
            await runtime.peer(1)
            await _until(clock, lambda: second.status().connected, "the second connects", LOCK_POLL_S + 1)
        await runtime.stop()

    in_virtual_time(story)


def test_a_koordlet_that_waits_takes_over_when_the_other_ends(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        first, second = _plugin(clock, tmp_path), _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        one = asyncio.create_task(first.run())
        await runtime.peer()
        async with running(second):
            await clock.sleep(30)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
            assert not first.status().connected
            await runtime.peer(1)
            await _until(clock, lambda: second.status().connected, "the second connects", LOCK_POLL_S + 1)
            assert runtime.peers[0].gone.is_set()
        await runtime.stop()

    in_virtual_time(story)


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "nri.lock")
    holder = (
        "import sys; from koord.koordlet.nri.plugin import NriLock; "
        "assert NriLock(sys.argv[1]).acquire() is None; print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = NriLock(path)
        assert lock.acquire() == LockHeld(path, str(process.pid))
        process.kill()
        process.wait()
        assert lock.acquire() is None
        assert lock.acquire() is None
    lock.release()
    other = NriLock(path)
    assert other.acquire() is None
    other.release()


def test_a_lock_that_cannot_be_made_is_told_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "koordlet").write_text("a file, where a folder should be")

    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with running(plugin):
            await clock.sleep(20)
            assert "nri.lock" in plugin.status().last_error
            assert plugin.status().attempts == 0
            (tmp_path / "koordlet").unlink()
            await _until(clock, lambda: plugin.status().connected, "connected", LOCK_POLL_S + 1)
        await runtime.stop()

    in_virtual_time(story)
    (tmp_path / "koordlet" / "nri.lock").unlink()
    (tmp_path / "koordlet").rmdir()
    (tmp_path / "koordlet").write_text("again")
    assert isinstance(NriLock(str(tmp_path / "koordlet" / "nri.lock")).acquire(), IoError)


def test_a_runtime_that_takes_nothing_is_given_up(tmp_path: Path) -> None:
    async def story(clock: LoopClock) -> None:
        handler = RecordingHandler()
        handler.adjustment = ContainerAdjustment(env={"a": "x" * (1 << 20)})
        plugin = _plugin(clock, tmp_path, handler)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with running(plugin):
            peer = await runtime.peer()
            await _until(clock, lambda: plugin.status().connected, "connected", 3)
            peer.stop_reading()
            for number in range(4):
                peer.send(
                    "CreateContainer", CreateContainerRequest(pod=POD, container=CONTAINER), stream=101 + 2 * number
                )
            await _until(clock, lambda: not plugin.status().connected, "given up", 60)
            assert plugin.status().last_error == "the connection failed: the runtime took nothing for 10 s"
        await runtime.stop()

    in_virtual_time(story)


def test_a_runtime_that_sends_and_takes_nothing_is_given_up(tmp_path: Path) -> None:
    """Refusals are not kept without limit for a peer that does not take them."""

    async def story(clock: LoopClock) -> None:
        plugin = _plugin(clock, tmp_path)
        runtime = FakeRuntime(tmp_path / "nri.sock")
        await runtime.start()
        async with running(plugin):
            peer = await runtime.peer()
            await _until(clock, lambda: plugin.status().connected, "connected", 3)
            peer.stop_reading()
            for _ in range(30_000):
                peer.send_frame(1, 2, 1, b"")  # clients use odd streams
            await _until(clock, lambda: not plugin.status().connected, "given up", 60)
            assert plugin.status().last_error == "the connection failed: the runtime took nothing for 10 s"
        await runtime.stop()

    in_virtual_time(story)
