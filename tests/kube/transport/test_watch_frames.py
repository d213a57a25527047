"""Frames come out the same however the network cut the stream."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.meta import Object
from koord.kube.client.list_watch import decode_event
from koord.kube.transport.watch_frames import HttpWatchFrame, WatchFrameSplitter

TYPES = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OBJECTS = st.fixed_dictionaries(
    {
        "kind": st.just("Thing"),
        "metadata": st.fixed_dictionaries({"name": TEXT, "annotations": st.dictionaries(TEXT, TEXT)}),
    },
    optional={"note": TEXT, "object": st.just({"type": "ADDED"}), "more": st.lists(st.integers())},
)
EVENTS = st.lists(st.tuples(TYPES, OBJECTS), max_size=6)


def tight(kind: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj})


def spaced(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def turned(kind: str, obj: Any) -> bytes:
    return msgspec.json.encode({"object": obj, "type": kind})


def padded(kind: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj, "later": {"field": "}"}})


WRITERS = st.sampled_from([tight, spaced, turned, padded])


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(edges)]


def fed(chunks: list[bytes]) -> tuple[list[HttpWatchFrame], WatchFrameSplitter]:
    splitter = WatchFrameSplitter()
    frames = [frame for chunk in chunks for frame in splitter.feed(chunk)]
    return frames + splitter.finish(), splitter


@given(EVENTS, WRITERS, st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
def test_any_cuts_give_the_same_events(
    events: list[tuple[str, Any]], write: Any, places: list[int], end: bytes
) -> None:
    stream = b"".join(write(kind, obj) + end for kind, obj in events)
    frames, splitter = fed(cut(stream, places))
    assert [(frame.type, frame.body.plain()) for frame in frames] == events
    assert [msgspec.json.decode(frame.body.raw()) for frame in frames] == [obj for _, obj in events]
    names = [frame.body.typed(Object).metadata.name for frame in frames]
    assert names == [obj["metadata"]["name"] for _, obj in events]
    assert not splitter.broken


@given(EVENTS.filter(bool), WRITERS, st.integers(1, 10_000))
def test_a_stream_cut_anywhere_gives_its_whole_events_and_no_other(
    events: list[tuple[str, Any]], write: Any, place: int
) -> None:
    lines = [write(kind, obj) + b"\n" for kind, obj in events]
    stream = b"".join(lines)[: -(place % len(lines[-1]) + 1)]
    frames, splitter = fed([stream])
    whole = events if stream.endswith(b"}") and len(stream) == sum(map(len, lines)) - 1 else events[:-1]
    assert [(frame.type, frame.body.plain()) for frame in frames] == whole
    assert not splitter.broken


@given(st.binary(max_size=40), st.lists(st.integers(0, 100), max_size=5))
def test_any_bytes_give_events_or_one_error_and_no_traceback(noise: bytes, places: list[int]) -> None:
    frames, _ = fed(cut(noise + b"\n", places))
    for frame in frames:
        decode_event(frame, Object)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"<html>502</html>", id="a-proxys-page"),
        pytest.param(b"{}", id="no-event"),
        pytest.param(b'"text"', id="a-string"),
        pytest.param(b'{"type":3,"object":{}}', id="type-is-a-number"),
    ],
)
def test_a_line_that_is_no_event_ends_the_stream_with_an_error(line: bytes) -> None:
    after = tight("ADDED", {"metadata": {"name": "late"}})
    frames, splitter = fed([line + b"\n" + after + b"\n"])
    assert [frame.type for frame in frames] == ["ERROR"]
    assert splitter.broken
    seen = decode_event(frames[0], Object)
    assert seen.status is not None
    assert seen.status.undecodable


def test_a_bare_status_is_an_error_with_the_servers_own_words() -> None:
    line = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}\n'
    frames, _ = fed([line])
    seen = decode_event(frames[0], Object)
    assert seen.status is not None
    assert (seen.type, seen.status.expired, seen.status.message) == ("ERROR", True, "too old")


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(b'{"metadata":{"name":"x"', id="unbalanced"),
        pytest.param(b'{"metadata":{"name":"\xff"}}', id="not-utf8"),
        pytest.param(b'{"metadata":{"labels":{"a":1}}}', id="metadata-that-cannot-be-read"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_an_object_that_cannot_be_read_at_all_is_an_error_event(inside: bytes) -> None:
    frames, _ = fed([b'{"type":"ADDED","object":' + inside + b"}\n"])
    seen = decode_event(frames[0], Object)
    assert seen.type == "ERROR"
    assert seen.status is not None
    assert seen.status.undecodable
