"""The journal of evictions keeps requests until their records are written, and says when it cannot."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from koord.host.io_error import IoError
from koord.koordlet.evictor import FILE_NAME, EvictionJournal
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.policy.eviction import KOORDLET, EvictionRecord


def request(uid: str, reason: str = "short of memory", frees: int = 1) -> EvictionRequest:
    record = EvictionRecord(
        actor=KOORDLET, rule="BEMemoryEvict", namespace="default", name=f"pod-{uid}", uid=uid, frees={"memory": frees}
    )
    return EvictionRequest(reason=reason, message="it goes", record=record)


requests = st.lists(
    st.builds(request, st.text("abc", min_size=1), st.text(), st.integers(0, 2**62)), unique_by=lambda one: one.uid
)


@given(asked=requests)
def test_the_next_process_finds_what_was_asked_for(tmp_path_factory: object, asked: list[EvictionRequest]) -> None:
    path = Path(tmp_path_factory.mktemp("journal"), FILE_NAME)  # type: ignore[attr-defined]
    journal = EvictionJournal(path)
    for one in asked:
        assert journal.begin(one) is None
    assert EvictionJournal(path).load() == asked
    assert journal.clear() is None
    assert EvictionJournal(path).load() == []


def test_what_was_left_stays_while_more_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "state" / FILE_NAME
    EvictionJournal(path).begin(request("a"))
    again = EvictionJournal(path)
    again.load()
    again.begin(request("b"))
    assert EvictionJournal(path).load() == [request("a"), request("b")]


def test_a_file_that_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("[{")
    assert isinstance(EvictionJournal(path).load(), IoError)
    path.unlink()
    path.mkdir()
    assert isinstance(EvictionJournal(path).load(), IoError)
    journal = EvictionJournal(path)
    assert isinstance(journal.begin(request("a")), IoError)
    assert isinstance(journal.clear(), IoError)
    assert len(journal) == 1


def test_without_a_path_nothing_is_kept() -> None:
    journal = EvictionJournal(None)
    assert journal.begin(request("a")) is None
    assert journal.load() == []
    assert journal.clear() is None
