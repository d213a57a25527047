"""Gangs: names and settings with their deprecated aliases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import gang_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json

G = "gang.scheduling.koordinator.sh/"
P = "pod-group.scheduling.sigs.k8s.io"


@pytest.mark.parametrize(
    ("labels", "annotations", "name", "from_pod_group"),
    [
        pytest.param({P: "a", f"{P}/name": "b"}, {f"{G}name": "c"}, "a", True, id="pod-group-label"),
        pytest.param({f"{P}/name": "b"}, {f"{G}name": "c"}, "b", False, id="deprecated-label"),
        pytest.param({}, {f"{G}name": "c"}, "c", False, id="annotation"),
        pytest.param({P: ""}, {f"{G}name": "c"}, "c", False, id="empty-label"),
        pytest.param({}, {}, None, False, id="no-gang"),
    ],
)
def test_name(labels: dict[str, str], annotations: dict[str, str], name: str | None, from_pod_group: bool) -> None:
    assert gang_codecs.gang_name_of_pod(labels, annotations) == name
    assert gang_codecs.is_defined_by_pod_group(labels) is from_pod_group


@pytest.mark.parametrize(
    ("labels", "annotations", "minimum"),
    [
        pytest.param({f"{P}/min-available": "3"}, {f"{G}min-available": "5"}, 3, id="label-wins"),
        pytest.param({f"{P}/min-available": ""}, {f"{G}min-available": "5"}, 5, id="empty-label"),
        pytest.param({}, {f"{G}min-available": "5"}, 5, id="annotation"),
        pytest.param({}, {}, None, id="missing"),
    ],
)
def test_min_available(labels: dict[str, str], annotations: dict[str, str], minimum: int | None) -> None:
    assert gang_codecs.gang_min_available(labels, annotations) == minimum


@pytest.mark.parametrize("text", ["", "x", "1.5", "0x3", "2147483648"])
def test_unreadable_min_available(text: str) -> None:
    assert isinstance(gang_codecs.gang_min_available({}, {f"{G}min-available": text}), MalformedAnnotation)


@pytest.mark.parametrize(("text", "total"), [(None, 3), ("5", 5), ("2", 3), ("0", 3), ("x", 3), ("-4", 3)])
def test_total_number_is_at_least_the_minimum(text: str | None, total: int) -> None:
    assert gang_codecs.gang_total_number({} if text is None else {f"{G}total-number": text}, 3) == total


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("30s", 30_000_000_000),
        ("1m30s", 90_000_000_000),
        ("0s", None),
        ("0", None),
        ("-5s", None),
        ("30", None),
        ("", None),
    ],
)
def test_waiting_time(text: str, nanoseconds: int | None) -> None:
    assert gang_codecs.gang_waiting_time_ns({f"{G}waiting-time": text}) == nanoseconds
    assert gang_codecs.gang_waiting_time_ns({}) is None


@pytest.mark.parametrize(
    ("text", "mode"), [(None, "Strict"), ("Strict", "Strict"), ("NonStrict", "NonStrict"), ("Loose", "Strict")]
)
def test_mode(text: str | None, mode: str) -> None:
    assert gang_codecs.gang_mode({} if text is None else {f"{G}mode": text}) == mode


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [
        pytest.param({}, "once-satisfied", id="default"),
        pytest.param({f"{G}match-policy": "only-waiting"}, "only-waiting", id="primary"),
        pytest.param({f"{P}/match-policy": "waiting-and-running"}, "waiting-and-running", id="alias"),
        pytest.param(
            {f"{G}match-policy": "only-waiting", f"{P}/match-policy": "waiting-and-running"},
            "only-waiting",
            id="primary-wins",
        ),
        pytest.param({f"{G}match-policy": "sometimes"}, "once-satisfied", id="illegal"),
    ],
)
def test_match_policy(annotations: dict[str, str], policy: str) -> None:
    assert gang_codecs.gang_match_policy(annotations) == policy


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        pytest.param(None, ("ns/me",), id="missing"),
        pytest.param("ns/b", ("ns/me",), id="unreadable"),
        pytest.param("[]", ("ns/me",), id="empty"),
        pytest.param('["ns/b","ns/a"]', ("ns/a", "ns/b"), id="sorted"),
    ],
)
def test_groups(text: str | None, groups: tuple[str, ...]) -> None:
    assert gang_codecs.gang_groups({} if text is None else {f"{G}groups": text}, "ns/me") == groups


@given(st.lists(st.from_regex(r"[a-z]{1,4}/[a-z]{1,4}", fullmatch=True), min_size=1, unique=True), st.randoms())
def test_the_group_id_does_not_depend_on_order(ids: list[str], random: object) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert gang_codecs.gang_group_id(ids) == gang_codecs.gang_group_id(shuffled) == ",".join(sorted(ids))
    assert gang_codecs.gang_groups({f"{G}groups": dump_json(shuffled)}, "x/y") == tuple(sorted(ids))


@pytest.mark.parametrize(("text", "index"), [(None, None), ("0", 0), ("7", 7), ("-1", None)])
def test_network_topology_index(text: str | None, index: int | None) -> None:
    assert (
        gang_codecs.parse_network_topology_index({} if text is None else {f"{G}network-topology-index": text}) == index
    )


def test_members_with_an_index_come_first() -> None:
    members = [(None, "a"), (2, "b"), (None, "0"), (1, "z"), (1, "c")]
    assert sorted(members, key=lambda m: gang_codecs.network_topology_sort_key(*m)) == [
        (1, "c"),
        (1, "z"),
        (2, "b"),
        (None, "0"),
        (None, "a"),
    ]
