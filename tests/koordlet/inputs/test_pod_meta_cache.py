"""The cache of PodMetas after any history equals one built anew from the last list."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.inputs.pod_source import PodMetaCache, _rows
from tests.koordlet.inputs.fake_kubelet import pod

LAYOUT = CgroupLayout("systemd")
LISTS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5, unique_by=lambda one: one[0]),
    min_size=1,
    max_size=8,
)


def told(listed: list[tuple[int, int]]) -> list[msgspec.Raw]:
    pods: list[dict[str, Any]] = [pod(f"p{name}", labels={"version": str(version)}) for name, version in listed]
    return [msgspec.Raw(msgspec.json.encode(one)) for one in pods]


@given(history=LISTS)
def test_any_history_ends_in_the_last_list(history: list[list[tuple[int, int]]]) -> None:
    roster = PodMetaCache(LAYOUT)
    for listed in history:
        before = roster.pods
        changed = roster.update(_rows(told(listed)))
        assert changed == (roster.pods is not before)
    anew = PodMetaCache(LAYOUT)
    anew.update(_rows(told(history[-1])))
    assert roster.pods == anew.pods


@given(listed=LISTS)
def test_the_same_list_again_changes_nothing(listed: list[list[tuple[int, int]]]) -> None:
    roster = PodMetaCache(LAYOUT)
    roster.update(_rows(told(listed[0])))
    before = roster.pods
    assert not roster.update(_rows(list(reversed(told(listed[0])))))
    assert roster.pods is before
