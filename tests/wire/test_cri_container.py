"""The messages by which containers of a pod are listed and stopped, as CRI defines their fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire import cri, raw_fields
from koord.wire.cri import CriContainerState, PodContainer
from koord.wire.raw_fields import MalformedMessage, encode_chunk, encode_int, encode_string, encode_string_map


@given(uid=st.text(max_size=40))
def test_the_list_asks_for_the_pods_label_and_nothing_else(uid: str) -> None:
    request = cri.list_containers_of_pod(uid)
    (only,) = raw_fields.scan_fields(request)
    (selector,) = raw_fields.scan_fields(raw_fields.message_of(request, 1) or b"")
    assert (only.number, selector.number) == (1, 4)
    assert raw_fields.string_map_of(raw_fields.message_of(request, 1) or b"", 4) == {"io.kubernetes.pod.uid": uid}


@given(id=st.text(min_size=1, max_size=70), grace_s=st.integers(0, 1 << 40))
def test_a_stop_names_the_container_and_the_grace_period(id: str, grace_s: int) -> None:
    request = cri.stop_container(id, grace_s)
    assert (raw_fields.string_of(request, 1), raw_fields.int_of(request, 2)) == (id, grace_s)


def test_containers_are_read_among_fields_that_are_not_known() -> None:
    listed = (
        encode_string(1, "c1")
        + encode_chunk(3, encode_string(1, "main") + encode_int(2, 4))
        + encode_int(6, 1)
        + encode_string_map(8, {"io.kubernetes.pod.uid": "u", "app": "x"})
        + encode_chunk(900, b"newer")
    )
    assert cri.pod_containers(encode_chunk(1, listed) + encode_chunk(1, b"")) == [
        PodContainer(id="c1", name="main", state=1, pod_uid="u"),
        PodContainer(id="", name="", state=0, pod_uid=""),
    ]


@pytest.mark.parametrize(
    ("state", "stoppable"),
    [
        (CriContainerState.CREATED, False),
        (CriContainerState.RUNNING, True),
        (CriContainerState.EXITED, False),
        (CriContainerState.UNKNOWN, True),
        (17, False),
    ],
)
def test_which_containers_a_stop_has_an_effect_on(state: int, stoppable: bool) -> None:
    assert PodContainer(id="c", name="main", state=state, pod_uid="u").can_be_stopped is stoppable


@given(st.binary(max_size=60))
def test_any_bytes_are_containers_or_malformed(data: bytes) -> None:
    found = cri.pod_containers(data)
    assert isinstance(found, (list, MalformedMessage))
