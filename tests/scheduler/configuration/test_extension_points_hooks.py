"""Hooks around the extension points run only where their plugin is enabled, in the configured order."""

from __future__ import annotations

import pytest

from tests.scheduler.configuration.fake_plugins import assembled, factories, names, profile

AROUND = {
    "before_pre_filter": "preFilter",
    "after_pre_filter": "preFilter",
    "find_one_node": "preFilter",
    "prefer_nodes": "preFilter",
    "before_filter": "filter",
    "before_score": "score",
    "after_post_filter": "postFilter",
    "apply_patch": "preBind",
}
MADE = factories(dict.fromkeys("ABC", ("permit", *AROUND)) | {"Plain": ("permit", "filter")})


def on(*plugins: str) -> dict[str, list[dict[str, str]]]:
    return {"enabled": [{"name": name} for name in plugins]}


@pytest.mark.parametrize("method", AROUND)
def test_follows_the_order_of_its_point(method: str) -> None:
    found = names(profile({AROUND[method]: on("C", "A")}, MADE), method)
    assert [name for name in found if name != "DefaultPreBind"] == ["C", "A"]


@pytest.mark.parametrize("method", AROUND)
def test_is_off_where_the_plugin_is_enabled_elsewhere(method: str) -> None:
    assert names(profile({"permit": on("A")}, MADE), method) == [
        name for name in ("DefaultPreBind",) if method == "apply_patch"
    ]


@pytest.mark.parametrize("method", AROUND)
def test_is_off_where_its_point_is(method: str) -> None:
    plugins = {"multiPoint": on("A", "B"), AROUND[method]: {"disabled": [{"name": "A"}, {"name": "DefaultPreBind"}]}}
    assert names(profile(plugins, MADE), method) == ["B"]


def test_alone_it_makes_no_plugin_of_the_point_itself() -> None:
    found = profile({"preFilter": on("A"), "filter": on("A"), "score": on("A")}, MADE)
    for point in ("pre_filter", "filter", "score"):
        assert "A" not in names(found, point)


def test_the_next_pod_needs_no_point() -> None:
    made = factories({"Leader": ("permit", "next_pod")})
    assert names(profile({"permit": on("Leader")}, made), "next_pod") == ["Leader"]
    assert names(profile({}, made), "next_pod") == []


def test_undoing_alone_is_a_part_of_reserving() -> None:
    found = profile({"reserve": on("Undoes")}, factories({"Undoes": ("unreserve",)}))
    assert names(found, "unreserve") == ["VolumeBinding", "DynamicResources", "Undoes"]


def test_a_plugin_without_the_point_is_refused() -> None:
    errors = assembled({"profiles": [{"plugins": {"preFilter": on("Plain")}}]}, MADE)
    assert isinstance(errors, list)
    assert "its points are: filter, permit" in errors[0].rule
