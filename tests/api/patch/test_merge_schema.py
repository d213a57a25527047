"""The merging lists of a pod, against the field table of the Kubernetes release that the embedded server speaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koord.api.patch.merge_patch import Obj, PatchFailed
from koord.api.patch.strategic_merge import POD_MERGE_SCHEMA, RESERVATION_MERGE_SCHEMA, MergeSchema, strategic_merge
from koord.embedded.apiserver.schema.builtin_types import builtin_types


def merging_lists(shape: MergeSchema, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and key of every list that merges."""
    for name, field in shape.fields.items():
        here = f"{path}.{name}"
        if "merge" in field.patch_strategy:
            yield here, field.patch_key
        yield from merging_lists(field, here)
        if field.items is not None:
            yield from merging_lists(field.items, here)


def test_the_lists_are_those_of_the_release() -> None:
    node = builtin_types().node_for("", "v1", "Pod")
    assert node is not None
    assert dict(merging_lists(POD_MERGE_SCHEMA)) == dict(merging_lists(node))


def test_a_reservation_merges_where_its_template_does() -> None:
    template = {path for path, _ in merging_lists(RESERVATION_MERGE_SCHEMA) if path.startswith(".spec.template")}
    expected = {
        f".spec.template{path}" for path, _ in merging_lists(POD_MERGE_SCHEMA) if not path.startswith(".status")
    }
    assert template == expected


LIVE: Obj = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "t"}],
        "fromTheFuture": {"items": [1], "depth": {"x": 1, "y": 2}},
    },
}


@pytest.mark.parametrize(
    ("patch", "spec"),
    [
        pytest.param({"tolerations": [{"key": "u"}]}, {"tolerations": [{"key": "u"}]}, id="a-plain-list-is-replaced"),
        pytest.param(
            {"containers": [{"name": "c", "env": [{"name": "B", "value": "2"}]}]},
            {
                "containers": [
                    {"name": "c", "image": "i", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}
                ]
            },
            id="lists-in-lists-merge",
        ),
        pytest.param(
            {"fromTheFuture": {"items": [2], "depth": {"x": 3}}},
            {"fromTheFuture": {"items": [2], "depth": {"x": 3, "y": 2}}},
            id="unknown-fields-merge-plainly",
        ),
        pytest.param({"containers": [{"name": "c", "$patch": "delete"}]}, {"containers": []}, id="items-can-go"),
    ],
)
def test_merges_without_a_schema(patch: Obj, spec: Obj) -> None:
    merged = strategic_merge(LIVE, {"spec": patch}, POD_MERGE_SCHEMA)
    assert not isinstance(merged, PatchFailed)
    assert merged == {**LIVE, "spec": {**LIVE["spec"], **spec}}


def test_items_without_their_key_are_refused() -> None:
    merged = strategic_merge(LIVE, {"spec": {"containers": [{"image": "x"}]}}, POD_MERGE_SCHEMA)
    assert isinstance(merged, PatchFailed)
    assert merged.message == "map: map[image:x] does not contain declared merge key: name"
