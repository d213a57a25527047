"""The audit log is bounded, read newest first page by page, and survives a full disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.host.audit_log import AuditEvent, AuditLog, AuditPage, AuditPageRefused
from koord.host.io_error import IoError
from koord.telemetry.clock import ManualClock


def _log(folder: Path, **settings: int) -> tuple[AuditLog, ManualClock]:
    clock = ManualClock()
    return AuditLog(str(folder), clock, **settings), clock


def _event(number: int, text: str = "") -> AuditEvent:
    return AuditEvent(type="node", reason="Test", message=f"{number} {text}")


def _numbers(page: AuditPage | AuditPageRefused | IoError) -> list[int]:
    assert isinstance(page, AuditPage), page
    return [int(msgspec.json.decode(line, type=AuditEvent).message.split()[0]) for line in page.lines]


def test_events_are_lines_of_json_without_empty_fields(tmp_path: Path) -> None:
    log, _ = _log(tmp_path)
    log.append(AuditEvent(type="pod", namespace="ns", name="web", reason="CFSQuotaBurst", message="m"))
    log.flush()
    found = msgspec.json.decode((tmp_path / "audit.log").read_bytes())
    assert sorted(found) == ["createdAt", "message", "name", "namespace", "reason", "type"]
    assert found["createdAt"].startswith("20")


def test_events_are_written_after_five_seconds_of_events(tmp_path: Path) -> None:
    log, clock = _log(tmp_path)
    log.append(_event(1))
    assert not (tmp_path / "audit.log").exists()
    clock.advance(5)
    log.append(_event(2))
    assert len((tmp_path / "audit.log").read_text().splitlines()) == 2


@pytest.mark.parametrize(("kept", "verbose"), [(3, 3), (0, 9), (3, 0)], ids=["equal", "all", "lower"])
def test_events_of_low_verbosity_are_kept(tmp_path: Path, kept: int, verbose: int) -> None:
    log, _ = _log(tmp_path, verbose=kept)
    log.append(_event(1), verbose)
    assert _numbers(log.page()) == [1]


def test_events_of_high_verbosity_are_dropped(tmp_path: Path) -> None:
    log, _ = _log(tmp_path, verbose=3)
    log.append(_event(1), 4)
    assert _numbers(log.page()) == []


def test_pages_newest_first_over_rotated_files(tmp_path: Path) -> None:
    log, clock = _log(tmp_path)
    total = 60
    for number in range(total):
        log.append(_event(number, "x" * 100_000))
        clock.advance(1)
    found: list[int] = []
    token, pages = "", 0
    while pages == 0 or token:
        page = log.page(7, token)
        found += _numbers(page)
        assert isinstance(page, AuditPage)
        token, pages = page.token, pages + 1
    assert found == list(reversed(range(total)))
    assert (len(list(tmp_path.iterdir())), pages) == (3, 9)


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    log, clock = _log(tmp_path, max_mb=4)
    for number in range(100):
        log.append(_event(number, "x" * 100_000))
        clock.advance(1)
    log.flush()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) <= 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6 << 20


def test_readers_are_few_and_expire(tmp_path: Path) -> None:
    log, clock = _log(tmp_path)
    for number in range(10):
        log.append(_event(number))
    tokens = []
    for _ in range(5):
        page = log.page(1)
        assert isinstance(page, AuditPage)
        tokens.append(page.token)
        clock.advance(1)
    oldest = log.page(1, tokens[0])
    assert isinstance(oldest, AuditPageRefused)
    assert oldest.expired
    assert _numbers(log.page(2, tokens[4])) == [8, 7]
    clock.advance(601)
    assert isinstance(log.page(1, tokens[4]), AuditPageRefused)
    log.close()


@pytest.mark.parametrize("size", [-1, 2049])
def test_sizes_that_are_none(tmp_path: Path, size: int) -> None:
    log, _ = _log(tmp_path)
    found = log.page(size)
    assert isinstance(found, AuditPageRefused)
    assert not found.expired


def test_a_log_that_cannot_be_written_says_so_and_stays_small(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log, clock = _log(tmp_path / "file/below")
    io_errors = []
    for number in range(40):
        clock.advance(5)
        io_errors.append(log.append(_event(number, "x" * 100_000)))
    assert all(isinstance(io_error, IoError) for io_error in io_errors)
    assert len(log._buffer) <= 1 << 20


@given(lengths=st.lists(st.integers(0, 9000), max_size=30), size=st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_whatever_their_length_all_lines_come_back_in_reverse(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int
) -> None:
    log, _ = _log(tmp_path_factory.mktemp("audit"))
    for number, length in enumerate(lengths):
        log.append(_event(number, "é" * length))
    found: list[int] = []
    page = log.page(size)
    found += _numbers(page)
    while isinstance(page, AuditPage) and page.token:
        page = log.page(size, page.token)
        found += _numbers(page)
    assert found == list(reversed(range(len(lengths))))
    log.close()
