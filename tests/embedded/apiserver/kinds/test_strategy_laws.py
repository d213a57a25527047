"""These tests check that defaulting is idempotent and that accepted objects may be sent back unchanged."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.kinds import STRATEGIES
from koord.embedded.apiserver.kinds.cron import schedule_refusal
from koord.embedded.apiserver.kinds.internal import difference, internal
from koord.embedded.apiserver.kinds.pod.image import pull_policy
from koord.embedded.apiserver.kinds.pod.pod_amount import containers_request
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.apiserver.schema.decoding import decode
from koord.values.quantity import Quantity
from tests.embedded.apiserver.kinds.corpus import Obj, fill, objects

OBJECTS = {name: obj for name, obj in objects().items() if obj["kind"] != "ServiceAccount"}  # it has no rules


def _decoded(name: str) -> tuple[Obj, Strategy]:
    obj = fill(OBJECTS[name], "ns")
    group, _, version = obj["apiVersion"].rpartition("/")
    node = builtin().node_for(group, version, obj["kind"])
    assert node is not None
    value = decode(obj, node).value
    meta = value["metadata"]
    meta.update({"namespace": "ns", "uid": "0-1-2", "creationTimestamp": "2026-01-01T00:00:00Z"})
    return value, STRATEGIES[group, obj["kind"]]


@pytest.mark.parametrize("name", OBJECTS)
def test_defaults_settle_at_once(name: str) -> None:
    obj, strategy = _decoded(name)
    strategy.default(obj)
    once = copy.deepcopy(obj)
    strategy.default(obj)
    assert obj == once


@pytest.mark.parametrize("name", OBJECTS)
def test_what_was_taken_may_be_sent_back(name: str) -> None:
    obj, strategy = _decoded(name)
    strategy.default(obj)
    strategy.prepare_create(obj)
    assert strategy.validate_create(obj) == []
    again = copy.deepcopy(obj)
    strategy.default(again)
    strategy.prepare_update(again, obj)
    assert again == obj
    assert strategy.validate_update(again, obj) == []


@given(st.text())
def test_no_text_breaks_the_reading_of_schedules(text: str) -> None:
    assert isinstance(schedule_refusal(text), str)


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    day=st.integers(1, 31),
    month=st.integers(1, 12),
    weekday=st.integers(0, 6),
)
def test_every_moment_of_a_year_can_be_scheduled(minute: int, hour: int, day: int, month: int, weekday: int) -> None:
    assert schedule_refusal(f"{minute} {hour} {day} {month} {weekday}") == ""


@given(st.text())
def test_every_image_has_a_pull_policy(image: str) -> None:
    assert pull_policy(image) in ("Always", "IfNotPresent")


amounts = st.lists(st.integers(0, 10_000), max_size=4)


@given(main=amounts, init=st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=4))
def test_a_pod_asks_for_its_worst_moment(main: list[int], init: list[tuple[int, bool]]) -> None:
    def container(milli: int, sidecar: bool = False) -> Obj:
        return {"resources": {"requests": {"cpu": f"{milli}m"}}, **({"restartPolicy": "Always"} if sidecar else {})}

    spec = {"containers": [container(m) for m in main], "initContainers": [container(m, s) for m, s in init]}
    moments = [sum(main) + sum(m for m, sidecar in init if sidecar)]
    for i, (milli, _) in enumerate(init):
        moments.append(milli + sum(m for m, sidecar in init[:i] if sidecar))
    total = containers_request(spec, "cpu")
    assert (total or Quantity.from_value(0)) == Quantity.from_milli(max(moments))


def test_inner_form_shows_what_was_never_set() -> None:
    assert internal("Toleration", {"key": "a"}) == {
        "Key": "a",
        "Operator": "",
        "Value": "",
        "Effect": "",
        "TolerationSeconds": None,
    }


def test_difference_of_equals_is_empty() -> None:
    assert difference("PodSpec", {"containers": []}, {"containers": []}) == ""
