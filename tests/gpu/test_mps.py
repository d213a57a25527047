"""MPS daemons through a control program without a card."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.gpu.mps import MpsControl, MpsServers, MpsSettings

CONTROL = str(Path(__file__).with_name("fake_mps_control"))


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[MpsControl]:
    made = MpsControl(MpsSettings(folder=str(tmp_path), command=(CONTROL,), call_s=5.0))
    yield made
    for minor in made.minors():
        for name in ("hangs", "broken"):
            (tmp_path / str(minor) / name).unlink(missing_ok=True)
        await made.quit(minor)


async def test_a_daemon_is_started_asked_and_ended(control: MpsControl, tmp_path: Path) -> None:
    assert "Cannot find" in str(await control.servers(1))
    assert await control.start(1, "GPU-1") is None
    assert await control.servers(1) == MpsServers(())
    assert control.minors() == (1,)
    (tmp_path / "1" / "servers").write_text("12\n34\n")
    assert await control.servers(1) == MpsServers((12, 34))
    assert await control.quit(1) is None
    assert isinstance(await control.servers(1), str)
    assert (tmp_path / "1" / "calls").read_text().startswith("GPU-1 -d\n"), "the daemon sees its own card alone"


async def test_a_daemon_that_died_is_missed(control: MpsControl, tmp_path: Path) -> None:
    await control.start(0, "GPU-0")
    os.kill(int((tmp_path / "0" / "pipe" / "daemon").read_text()), signal.SIGKILL)
    assert "Cannot find" in str(await control.servers(0))


async def test_words_in_place_of_numbers_are_no_servers(control: MpsControl, monkeypatch: pytest.MonkeyPatch) -> None:
    await control.start(0, "GPU-0")
    await control.quit(0)
    monkeypatch.setenv("FAKE_MPS_STATUS", "0")
    assert await control.servers(0) == "Cannot find MPS control daemon process"


async def test_what_fails_is_told(control: MpsControl, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "broken").touch()
    assert "ended with status 1: Failed to start" in str(await control.start(0, "GPU-0"))
    missing = MpsControl(MpsSettings(folder=str(tmp_path), command=("/none/mps",)))
    assert await missing.start(0, "GPU-0") == "/none/mps: No such file or directory"
    (tmp_path / "file").touch()
    nowhere = MpsControl(MpsSettings(folder=str(tmp_path / "file"), command=(CONTROL,)))
    assert "Not a directory" in str(await nowhere.start(0, "GPU-0"))


async def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    control = MpsControl(MpsSettings(folder=str(tmp_path), command=(CONTROL,), call_s=0.2))
    (tmp_path / "0" / "pipe").mkdir(parents=True)
    (tmp_path / "0" / "hangs").touch()
    assert "did not answer" in str(await control.servers(0))


def test_a_machine_without_daemons(tmp_path: Path) -> None:
    assert MpsControl(MpsSettings(folder=str(tmp_path / "none"))).minors() == ()


def test_a_program_that_ends_before_it_has_read_is_a_problem_on_every_event_loop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is an extra")
    control = MpsControl(MpsSettings(folder=str(tmp_path), command=("false",)))
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            for _ in range(20):  # whether the end or the request comes first is chance
                assert "ended with status 1" in str(runner.run(control.servers(0)))
