"""These tests check that defaulting is idempotent and that accepted objects may be sent back unchanged."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.kinds.cron_job import cron_schedule_error
from koord.embedded.apiserver.kinds.internal_types import internal_diff, to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_pull_policy
from koord.embedded.apiserver.kinds.registry import STRATEGIES
from koord.embedded.apiserver.kinds.resource_validation import total_container_request
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.values.quantity import Quantity
from tests.embedded.apiserver.kinds.corpus import Obj, objects, with_namespace

OBJECTS = {name: obj for name, obj in objects().items() if obj["kind"] != "ServiceAccount"}  # it has no rules


def _decoded(name: str) -> tuple[Obj, KindStrategy]:
    obj = with_namespace(OBJECTS[name], "ns")
    group, _, version = obj["apiVersion"].rpartition("/")
    node = builtin_types().node_for(group, version, obj["kind"])
    assert node is not None
    value = decode_builtin(obj, node).value
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
    assert isinstance(cron_schedule_error(text), str)


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    day=st.integers(1, 31),
    month=st.integers(1, 12),
    weekday=st.integers(0, 6),
)
def test_every_moment_of_a_year_can_be_scheduled(minute: int, hour: int, day: int, month: int, weekday: int) -> None:
    assert cron_schedule_error(f"{minute} {hour} {day} {month} {weekday}") == ""


@given(st.text())
def test_every_image_has_a_pull_policy(image: str) -> None:
    assert default_pull_policy(image) in ("Always", "IfNotPresent")


amounts = st.lists(st.integers(0, 10_000), max_size=4)


@given(main=amounts, init=st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=4))
def test_a_pod_asks_for_its_worst_moment(main: list[int], init: list[tuple[int, bool]]) -> None:
    def container(milli: int, sidecar: bool = False) -> Obj:
        return {"resources": {"requests": {"cpu": f"{milli}m"}}, **({"restartPolicy": "Always"} if sidecar else {})}

    spec = {"containers": [container(m) for m in main], "initContainers": [container(m, s) for m, s in init]}
    moments = [sum(main) + sum(m for m, sidecar in init if sidecar)]
    for i, (milli, _) in enumerate(init):
        moments.append(milli + sum(m for m, sidecar in init[:i] if sidecar))
    total = total_container_request(spec, "cpu")
    assert (total or Quantity.from_value(0)) == Quantity.from_milli(max(moments))


def test_inner_form_shows_what_was_never_set() -> None:
    assert to_internal("Toleration", {"key": "a"}) == {
        "Key": "a",
        "Operator": "",
        "Value": "",
        "Effect": "",
        "TolerationSeconds": None,
    }


def test_difference_of_equals_is_empty() -> None:
    assert internal_diff("PodSpec", {"containers": []}, {"containers": []}) == ""
