"""The keeper of MPS daemons: they are started, watched, started again, and one card's fault stays with it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.gpu.mps import MpsControl, MpsServers, MpsSettings, end_daemons
from koord.host.hardware import GpuCard
from koord.koordlet.gpu_shares import MpsKeeper
from koord.telemetry.clock import ManualClock

CONTROL = str(Path(__file__).parents[1] / "gpu" / "fake_mps_control")
CARDS = tuple(
    GpuCard(uuid=f"GPU-{n}", minor=n, total_bytes=1 << 30, address=f"0000:0{n}:00.0", model="m") for n in range(2)
)


class Node:
    """A keeper of two cards on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.told: list[tuple[str, str]] = []
        self.cards: tuple[GpuCard, ...] | None = CARDS
        self.control = MpsControl(MpsSettings(folder=str(folder), command=(CONTROL,), call_s=5.0))
        self.keeper = self.new_keeper(enabled=True)

    def new_keeper(self, *, enabled: bool) -> MpsKeeper:
        return MpsKeeper(
            self.control,
            self.clock,
            lambda: self.cards,
            lambda reason, message: self.told.append((reason, message)),
            enabled=enabled,
        )

    def daemon(self, minor: int) -> int:
        return int((self.folder / str(minor) / "pipe" / "daemon").read_text())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    for minor in (0, 1):
        (tmp_path / str(minor) / "broken").unlink(missing_ok=True)
    assert await end_daemons(made.control) == []


async def test_each_card_has_a_daemon(node: Node) -> None:
    await node.keeper.check()
    assert node.keeper.problems == {0: "", 1: ""}
    await node.keeper.check()
    assert [one.starts for one in node.keeper.statuses()] == [1, 1]
    assert node.told == []


async def test_cards_that_are_not_known_yet_have_none(node: Node) -> None:
    node.cards = None
    await node.keeper.check()
    assert node.keeper.problems == {}


async def test_a_daemon_that_died_is_started_again(node: Node) -> None:
    await node.keeper.check()
    before = node.daemon(1)
    os.kill(before, signal.SIGKILL)
    await node.keeper.check()
    assert node.keeper.problems == {0: "", 1: ""}
    assert node.daemon(1) != before
    assert [one.starts for one in node.keeper.statuses()] == [1, 2]


async def test_one_cards_fault_stays_with_it_and_is_told_once(node: Node) -> None:
    (node.folder / "1").mkdir()
    (node.folder / "1" / "broken").touch()
    await node.keeper.check()
    await node.keeper.check()
    assert node.keeper.problems[0] == ""
    assert "Failed to start" in node.keeper.problems[1]
    ((reason, message),) = node.told
    assert reason == "MPSDaemonFailed"
    assert "GPU 1" in message
    assert "other GPUs are not affected" in message


async def test_attempts_become_rarer_and_begin_anew_after_a_success(node: Node) -> None:
    (node.folder / "0").mkdir()
    (node.folder / "0" / "broken").touch()
    for _ in range(12):
        await node.keeper.check()
        await node.clock.sleep(5)
    starts = node.keeper.statuses()[0].starts
    assert starts == 6, "at 0, 5, 10, 15, 25 and 45 s: the pause doubles each time"
    (node.folder / "0" / "broken").unlink()
    await node.clock.sleep(60)
    await node.keeper.check()
    assert node.keeper.problems[0] == ""
    os.kill(node.daemon(0), signal.SIGKILL)
    await node.keeper.check()
    assert node.keeper.statuses()[0].starts == starts + 2


async def test_the_next_agent_finds_the_daemons(node: Node) -> None:
    await node.keeper.check()
    after = node.new_keeper(enabled=True)
    await after.check()
    assert after.problems == {0: "", 1: ""}
    assert [one.starts for one in after.statuses()] == [0, 0]


async def test_with_the_gate_off_they_are_ended(node: Node) -> None:
    await node.keeper.check()
    await node.new_keeper(enabled=False).run()
    assert not isinstance(await node.control.servers(0), MpsServers)
    assert not isinstance(await node.control.servers(1), MpsServers)
