"""NVML is read through a library of the same ABI: cards, who uses them, and how their health follows the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koord.host.hardware import LOST, NO_HEALTH_CHECK, GpuHealth, GpuProcessUsage, MigInstance
from koord.host.io_error import IoError
from koord.host.nvml import HealthTiming, Nvml
from tests.host.nvml_stub import NvmlStub

FAST = HealthTiming(look_s=0.02, quiet_s=0.1)
XID = 8
PATIENCE_S = 20.0


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    return NvmlStub(tmp_path)


@pytest.fixture
def nvml(stub: NvmlStub) -> Iterator[Nvml]:
    opened = Nvml.open(stub.path, FAST)
    assert isinstance(opened, Nvml)
    yield opened
    opened.close()
    assert stub.set("sets") == 0, "what was registered is given back"


def listed(nvml: Nvml) -> list[str]:
    cards = nvml.cards()
    assert not isinstance(cards, IoError), cards
    return [card.uuid for card in cards]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def becomes(nvml: Nvml, uuid: str, code: str, *, healthy: bool = False) -> None:
    until(lambda: (nvml.health()[uuid].healthy, nvml.health()[uuid].code) == (healthy, code))


def test_cards_and_who_uses_them(nvml: Nvml) -> None:
    assert nvml.driver() == "550.54"
    cards = nvml.cards()
    assert not isinstance(cards, IoError)
    assert [(card.minor, card.uuid, card.address) for card in cards] == [
        (0, "GPU-0", "0000:3b:00.0"),
        (1, "GPU-1", "0000:3b:01.0"),
    ]
    assert cards[0].total_bytes == 80 * 2**30
    assert nvml.uses(cards[0]) == [GpuProcessUsage(41, 30, 2**30), GpuProcessUsage(42, 100, 0)], (
        "the newest sample; no more than all"
    )
    assert nvml.uses(cards[0]) == [GpuProcessUsage(41, 0, 2**30), GpuProcessUsage(42, 0, 0)], "nobody computed since"
    assert nvml.uses(cards[1]) == []


def test_links_and_instances(tmp_path: Path) -> None:
    stub = NvmlStub(tmp_path, cards=3)
    for link, peer in ((0, 1), (1, 1), (2, 2), (3, -1)):
        stub.set("link", 0, link, peer)
    stub.set("mig", 2, 2)
    opened = Nvml.open(stub.path, FAST)
    assert isinstance(opened, Nvml)
    cards = opened.cards()
    assert not isinstance(cards, IoError)
    assert (cards[0].links, cards[0].switch_links) == ({"0000:3b:01.0": 2, "0000:3b:02.0": 1}, 1)
    assert (cards[1].links, cards[1].mig_enabled) == ({}, False)
    assert cards[2].mig_enabled
    assert cards[2].mig_instances == (MigInstance("MIG-1", "1g.10gb+me"),) * 2
    opened.close()


class TestHealth:
    def test_errors_of_applications_leave_a_card_healthy(self, stub: NvmlStub, nvml: Nvml) -> None:
        assert nvml.health() == {}, "no card was listed yet"
        assert listed(nvml) == ["GPU-0", "GPU-1"]
        assert nvml.health() == {"GPU-0": GpuHealth(), "GPU-1": GpuHealth()}
        for xid in (13, 31, 43, 45, 68, 109):
            stub.set("event", 0, XID, xid)
        stub.set("event", 0, 2, 79)  # another kind of event
        stub.set("event", 1, XID, 79)
        becomes(nvml, "GPU-1", "Xid79")
        assert nvml.health()["GPU-0"] == GpuHealth(), "events come in their order, so all were seen"

    def test_a_driver_that_does_not_say_when_it_is_over_is_not_believed_to_be(self, stub: NvmlStub, nvml: Nvml) -> None:
        listed(nvml)
        stub.set("event", 1, XID, 48)
        becomes(nvml, "GPU-1", "Xid48")
        stub.set("ecc", 0, 3)  # seen by a later look: several have passed since
        becomes(nvml, "GPU-0", "EccUncorrected")
        stub.set("ecc", 0, 0)
        becomes(nvml, "GPU-0", "", healthy=True)
        assert nvml.health()["GPU-1"].code == "Xid48"

    def test_a_card_that_needs_no_recovery_heals_after_a_while_without_errors(self, stub: NvmlStub, nvml: Nvml) -> None:
        listed(nvml)
        stub.set("recovery", 1, 1)
        stub.set("event", 1, XID, 95)
        becomes(nvml, "GPU-1", "Xid95")
        stub.set("recovery", 1, 0)
        becomes(nvml, "GPU-1", "", healthy=True)

    @pytest.mark.parametrize(
        ("what", "values", "over", "code"),
        [
            ("recovery", (1,), (0,), "GpuResetRequired"),
            ("recovery", (2,), (0,), "NodeRebootRequired"),
            ("rows", (1, 0), (0, 0), "RowRemapPending"),
            ("rows", (0, 1), (0, 0), "RowRemapFailed"),
            ("retiring", (1,), (0,), "PageRetirementPending"),
            ("ecc", (2,), (0,), "EccUncorrected"),
        ],
    )
    def test_what_the_driver_says_of_a_card_is_followed_both_ways(
        self, stub: NvmlStub, nvml: Nvml, what: str, values: tuple[int, ...], over: tuple[int, ...], code: str
    ) -> None:
        listed(nvml)
        stub.set(what, 0, *values)
        becomes(nvml, "GPU-0", code)
        assert nvml.health()["GPU-1"].healthy
        stub.set(what, 0, *over)
        becomes(nvml, "GPU-0", "", healthy=True)

    def test_a_lost_card_stays_listed_and_comes_back_after_a_reset(self, stub: NvmlStub, nvml: Nvml) -> None:
        listed(nvml)
        stub.set("event", 1, XID, 79)
        becomes(nvml, "GPU-1", "Xid79")
        stub.set("lose", 1)
        until(lambda: nvml.health()["GPU-1"] == LOST)
        assert listed(nvml) == ["GPU-0", "GPU-1"]
        assert nvml.health() == {"GPU-0": GpuHealth(), "GPU-1": LOST}
        stub.set("reset", 1)
        assert listed(nvml) == ["GPU-0", "GPU-1"]
        assert nvml.health()["GPU-1"] == GpuHealth(), "with the card its error is gone"
        stub.set("event", 1, XID, 48)
        becomes(nvml, "GPU-1", "Xid48")

    def test_a_card_that_is_lost_from_the_start_is_counted(self, stub: NvmlStub, nvml: Nvml) -> None:
        stub.set("lose", 1)
        assert listed(nvml) == ["GPU-0"]
        assert nvml.unidentified == 1
        stub.set("reset", 1)
        assert listed(nvml) == ["GPU-0", "GPU-1"]
        assert nvml.unidentified == 0

    def test_a_driver_that_is_gone_for_a_while_is_found_again(self, stub: NvmlStub, nvml: Nvml) -> None:
        listed(nvml)
        stub.set("lose", 0)
        until(lambda: nvml.health()["GPU-0"] == LOST)
        stub.set("init_code", 9)
        assert isinstance(nvml.cards(), IoError)
        stub.set("init_code", 0)
        stub.set("reset", 0)
        assert listed(nvml) == ["GPU-0", "GPU-1"]
        assert all(one.healthy for one in nvml.health().values())

    def test_a_card_whose_errors_are_not_told_works_and_says_so(self, stub: NvmlStub, nvml: Nvml) -> None:
        stub.set("told", 1, 0)
        listed(nvml)
        assert nvml.health() == {"GPU-0": GpuHealth(), "GPU-1": NO_HEALTH_CHECK}


def test_a_driver_that_does_not_answer(stub: NvmlStub) -> None:
    stub.set("init_code", 9)
    refused = Nvml.open(stub.path)
    assert isinstance(refused, IoError)
    assert "code 9" in str(refused)


def test_a_machine_without_the_library() -> None:
    assert isinstance(Nvml.open("libnothing-like-it.so.1"), IoError)
