"""Rounds of the daemon: the file that koordlet reads, and what becomes of cards whose tool fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.devicedaemon.program import RETRY_S, DeviceDaemon, run_round
from koord.devicedaemon.settings import DeviceDaemonSettings
from koord.devicedaemon.vendor_probe import (
    PROBE_FAILED,
    CardFailed,
    HostTools,
    KnownCards,
    ProbeResult,
    ToolFailed,
    next_cards,
)
from koord.host.devices import xpus
from koord.host.hardware import Xpu, XpuStatus
from koord.host.io_error import IoError
from tests.devicedaemon.vendor_machine import KUNLUN, VendorMachine

GOOD = XpuStatus(healthy=True)


def card(minor: int, status: XpuStatus = GOOD) -> Xpu:
    return Xpu(vendor="huawei", uuid=f"npu-{minor}", minor=str(minor), status=status)


class TestKnownCards:
    def test_one_failed_round_changes_nothing_and_the_second_does(self) -> None:
        known = next_cards(KnownCards(), ProbeResult((card(0), card(1))))
        once = next_cards(known, ToolFailed("hangs"))
        assert once.devices == known.devices
        twice = next_cards(once, ToolFailed("hangs"))
        wanted = XpuStatus(err_code=PROBE_FAILED, err_message="hangs")
        assert [one.status for one in twice.devices] == [wanted, wanted]
        assert next_cards(twice, ProbeResult((card(0), card(1)))) == known, "a good round ends it"

    def test_a_known_card_that_cannot_be_described_is_unhealthy(self) -> None:
        known = KnownCards((card(0), card(1)))
        found = next_cards(known, ProbeResult((card(1),), (CardFailed("0", "silent"), CardFailed("7", "never seen"))))
        assert [(one.minor, one.status == GOOD) for one in found.devices] == [("0", False), ("1", True)]

    def test_a_card_that_is_not_listed_any_more_is_gone(self) -> None:
        assert next_cards(KnownCards((card(0), card(1))), ProbeResult((card(1),))).devices == (card(1),)


def test_a_vendor_whose_tool_fails_takes_nothing_from_the_others(tmp_path: Path) -> None:
    machine = VendorMachine(tmp_path)
    machine.put_ascends()
    machine.put_card("0000:05:00.0", KUNLUN)
    found = run_round(machine.host, machine.run, {})
    assert [one.uuid for one in found.devices] == ["npu-1-2", "npu-4-10"]
    (problem,) = found.problems
    assert problem.startswith("kunlun: xpu_smi -m")


class SteppedClock:
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self.go: asyncio.Queue[None] = asyncio.Queue()

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        await self.go.get()


@pytest.fixture
def machine(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path / "root")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "infos" / "ic-device"


def settings(machine: VendorMachine, output: Path | str, *, oneshot: bool = False) -> DeviceDaemonSettings:
    return DeviceDaemonSettings(oneshot=oneshot, output_file=str(output), host_root=str(machine.root), sleep_s=900.0)


def written_to(file: Path) -> Any:
    text = file.read_text()
    assert text.startswith("[\n  {\n"), "two blanks deep"
    return json.loads(text)


def put(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)


async def test_rounds_keep_the_file_until_the_end(machine: VendorMachine, output: Path) -> None:
    clock, stop = SteppedClock(), asyncio.Event()
    machine.put_ascends()
    daemon = DeviceDaemon(settings(machine, output), clock, machine.run)
    task = asyncio.create_task(daemon.run(stop))
    async with asyncio.timeout(30):
        assert await clock.asked.get() == 900.0
        devices = xpus(machine.host, str(output.parent))
        assert not isinstance(devices, IoError), devices
        assert [one.uuid for one in devices] == ["npu-1-2", "npu-4-10"], "koordlet reads it"
        assert [one.status is not None and one.status.healthy for one in devices] == [True, False]
        written = written_to(output)
        assert written[0]["topology"]["busID"] == "0000:c1:00.0"
        machine.answers.clear()
        clock.go.put_nowait(None)
        assert await clock.asked.get() == RETRY_S, "a round that failed is repeated sooner"
        assert written_to(output) == written
        clock.go.put_nowait(None)
        await clock.asked.get()
        assert {one["status"]["errCode"] for one in written_to(output)} == {PROBE_FAILED}
        stop.set()
        assert await task == 0
    daemon.remove_file()
    assert list(output.parent.iterdir()) == []


async def test_a_machine_without_accelerators_has_no_file(machine: VendorMachine, output: Path) -> None:
    put(output, "[]")
    daemon = DeviceDaemon(settings(machine, output, oneshot=True), SteppedClock(), machine.run)
    assert await daemon.run(asyncio.Event()) == 0
    assert not list(output.parent.iterdir())


async def test_one_round_leaves_its_file_and_tells_failures(machine: VendorMachine, output: Path) -> None:
    machine.put_ascends()
    daemon = DeviceDaemon(settings(machine, output, oneshot=True), SteppedClock(), machine.run)
    assert await daemon.run(asyncio.Event()) == 0
    daemon.remove_file()
    assert len(written_to(output)) == 2
    machine.put_card("0000:05:00.0", KUNLUN)
    again = DeviceDaemon(settings(machine, output, oneshot=True), SteppedClock(), machine.run)
    assert await again.run(asyncio.Event()) == 1
    assert len(written_to(output)) == 2, "what is known is written all the same"


async def test_without_a_file_it_prints(machine: VendorMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.put_ascends()
    daemon = DeviceDaemon(settings(machine, "", oneshot=True), SteppedClock(), machine.run)
    assert await daemon.run(asyncio.Event()) == 0
    assert [one["minor"] for one in json.loads(capsys.readouterr().out)] == ["2", "10"]


async def test_a_file_that_cannot_be_written_ends_it(machine: VendorMachine, output: Path) -> None:
    machine.put_ascends()
    output.parent.write_text("a file where the folder should be")
    daemon = DeviceDaemon(settings(machine, output), SteppedClock(), machine.run)
    assert await daemon.run(asyncio.Event()) == 1


class TestHostTools:
    def test_what_a_program_prints_and_why_it_fails(self) -> None:
        tools = HostTools("/", timeout_s=20.0)
        assert tools.run("printf", "%s", "a b") == "a b"
        failed = tools.run("sh", "-c", "echo so; echo bad >&2; exit 3")
        assert isinstance(failed, ToolFailed)
        assert failed.reason.endswith("exit status 3: bad")
        assert isinstance(tools.run("no-such-program-here"), ToolFailed)

    def test_one_that_hangs_is_ended(self) -> None:
        failed = HostTools("/", timeout_s=0.05).run("sleep", "600")
        assert isinstance(failed, ToolFailed)
        assert "no answer" in failed.reason
