"""These tests check that names are given to CRDs first come, first served, within a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.crd.definition_strategy import decide_names, names_in_use
from tests.embedded.apiserver.crd.definition_fixture import (
    CRDS,
    GROUP,
    DefinitionApi,
    conditions,
    definition,
    place,
    started,
)

Obj = dict[str, Any]


@pytest.fixture
async def api() -> AsyncIterator[DefinitionApi]:
    made = await started()
    yield made
    await made.server.close()


async def test_accepted(api: DefinitionApi) -> None:
    made = await api.define(definition(names={"shortNames": ["t"], "categories": ["all"]}))
    assert conditions(made) == {
        "NamesAccepted": ("True", "NoConflicts"),
        "Established": ("True", "InitialNamesAccepted"),
    }
    assert made["status"]["acceptedNames"] == {
        "plural": "tops",
        "singular": "top",
        "shortNames": ["t"],
        "kind": "Top",
        "listKind": "TopList",
        "categories": ["all"],
    }


@pytest.mark.parametrize(
    ("names", "reason", "message", "kept"),
    [
        pytest.param(
            {"kind": "Top", "listKind": "OtherList", "singular": "other"},
            "KindConflict",
            '"Top" is already in use',
            {"plural": "others", "singular": "other", "kind": "", "listKind": "OtherList"},
            id="kind",
        ),
        pytest.param(
            {"kind": "Other", "listKind": "TopList"},
            "ListKindConflict",
            '"TopList" is already in use',
            {"plural": "others", "singular": "other", "kind": "Other"},
            id="list-kind",
        ),
        pytest.param(
            {"kind": "Other", "singular": "top"},
            "SingularConflict",
            '"top" is already in use',
            {"plural": "others", "kind": "Other", "listKind": "OtherList"},
            id="singular",
        ),
        pytest.param(
            {"kind": "Other", "shortNames": ["tops", "fine"]},
            "ShortNamesConflict",
            '"tops" is already in use',
            {"plural": "others", "singular": "other", "kind": "Other", "listKind": "OtherList"},
            id="short-name-is-anothers-plural",
        ),
    ],
)
async def test_conflicts(api: DefinitionApi, names: Obj, reason: str, message: str, kept: Obj) -> None:
    await api.define(definition())
    other = await api.define(definition("others", "Other", names=names))
    assert conditions(other) == {"NamesAccepted": ("False", reason), "Established": ("False", "NotAccepted")}
    assert other["status"]["conditions"][0]["message"] == message
    assert other["status"]["acceptedNames"] == kept
    assert (await api.get(place(plural="others")))[0] == 404


async def test_a_name_that_becomes_free_is_taken(api: DefinitionApi) -> None:
    await api.define(definition())
    await api.define(definition("others", "Top"))
    assert (await api.delete(f"{CRDS}/tops.{GROUP}"))[0] == 200
    other = await api.defined(f"others.{GROUP}")
    assert conditions(other)["Established"] == ("True", "InitialNamesAccepted")
    assert (await api.get(place(plural="others")))[0] == 200


async def test_a_served_definition_stays_served_when_it_wants_a_taken_name(api: DefinitionApi) -> None:
    await api.define(definition())
    await api.define(definition("others", "Other"))
    await api.redefine(f"others.{GROUP}", {"names": {"shortNames": ["tops"]}})
    other = await api.defined(f"others.{GROUP}")
    assert conditions(other) == {
        "NamesAccepted": ("False", "ShortNamesConflict"),
        "Established": ("True", "InitialNamesAccepted"),
    }
    assert (await api.get(place(plural="others")))[0] == 200


async def test_protected_groups_say_who_approved_them(api: DefinitionApi) -> None:
    body = definition()
    body["spec"]["group"] = "toys.k8s.io"
    body["metadata"] = {
        "name": "tops.toys.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    }
    made = await api.define(body)
    assert conditions(made)["KubernetesAPIApprovalPolicyConformant"] == ("False", "UnapprovedAnnotation")
    assert conditions(made)["Established"] == ("True", "InitialNamesAccepted")


_WORDS = st.sampled_from(["a", "b", "c"])
_NAMES = st.fixed_dictionaries(
    {"plural": _WORDS, "singular": _WORDS, "kind": _WORDS, "listKind": _WORDS},
    optional={"shortNames": st.lists(_WORDS)},
)


@given(wanted=st.lists(_NAMES, max_size=5))
def test_no_name_has_two_holders(wanted: list[Obj]) -> None:
    made: list[Obj] = []
    for names in wanted:
        new: Obj = {"metadata": {}, "spec": {"group": "g.example.com", "names": names}, "status": {}}
        new["status"]["acceptedNames"] = decide_names(new, names_in_use(made)).names
        made.append(new)
    for at, one in enumerate(made):
        others = names_in_use([*made[:at], *made[at + 1 :]])
        mine = names_in_use([one])
        assert not mine.resources & others.resources
        assert not mine.kinds & others.kinds
