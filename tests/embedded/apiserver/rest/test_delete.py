"""DELETE: preconditions, propagation, finalizers, the grace of pods, namespaces, collections, and the
response.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.meta import DeleteOptions
from koord.embedded.apiserver.rest.delete import DeleteFacts, decide_delete, finalizers_after_delete
from tests.embedded.apiserver.rest_harness import NS, Api, config_map, fresh, pod

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
async def api() -> Api:
    return await fresh()


async def test_answer_is_a_status_with_the_uid(api: Api) -> None:
    _, made = await api.post(f"{NS}/configmaps", config_map("a"))
    status, body = await api.delete(f"{NS}/configmaps/a")
    assert status == 200
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]},
    }
    assert (await api.delete(f"{NS}/configmaps/a"))[0] == 404


async def test_services_are_answered_with_themselves(api: Api) -> None:
    await api.post(f"{NS}/services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    assert (await api.delete(f"{NS}/services/s"))[1]["kind"] == "Service"


async def test_preconditions(api: Api) -> None:
    _, made = await api.post(f"{NS}/configmaps", config_map("a"))
    status, body = await api.delete(f"{NS}/configmaps/a", {"preconditions": {"uid": "x"}})
    assert (status, body["message"]) == (
        409,
        'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (x) does not match the UID in '
        f"record ({made['metadata']['uid']}). The object might have been deleted and then recreated",
    )
    status, body = await api.delete(f"{NS}/configmaps/a", {"preconditions": {"resourceVersion": "1"}})
    assert (status, body["reason"]) == (409, "Conflict")
    good = {"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}}
    assert (await api.delete(f"{NS}/configmaps/a", good))[0] == 200


BAD_OPTIONS: list[Any] = [
    pytest.param({"propagationPolicy": "Foo"}, 422, id="policy"),
    pytest.param({"propagationPolicy": "Orphan", "orphanDependents": True}, 422, id="two-policies"),
    pytest.param({"kind": "Foo", "apiVersion": "v1"}, 400, id="kind"),
    pytest.param({"dryRun": ["Some"]}, 422, id="dry-run"),
    pytest.param({"gracePeriodSeconds": "x"}, 400, id="not-a-number"),
    pytest.param(b"{bad", 400, id="not-json"),
]


@pytest.mark.parametrize(("options", "status"), BAD_OPTIONS)
async def test_bad_options(api: Api, options: Any, status: int) -> None:
    await api.post(f"{NS}/configmaps", config_map("a"))
    assert (await api.delete(f"{NS}/configmaps/a", options))[0] == status
    assert (await api.get(f"{NS}/configmaps/a"))[0] == 200


async def test_foreground_deletion_waits_for_its_finalizer(api: Api) -> None:
    await api.post(f"{NS}/configmaps", config_map("a"))
    _, marked = await api.delete(f"{NS}/configmaps/a?propagationPolicy=Foreground")
    meta = marked["metadata"]
    assert (meta["finalizers"], meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == (
        ["foregroundDeletion"],
        NOW,
        0,
    )
    _, again = await api.delete(f"{NS}/configmaps/a?propagationPolicy=Foreground")
    assert again["metadata"]["resourceVersion"] == meta["resourceVersion"]
    status, body = await api.patch(f"{NS}/configmaps/a", {"metadata": {"finalizers": ["foregroundDeletion", "a.b/c"]}})
    assert (status, body["message"]) == (
        422,
        'ConfigMap "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is '
        'being deleted, found new finalizers []string{"a.b/c"}',
    )
    status, _ = await api.patch(f"{NS}/configmaps/a", {"metadata": {"finalizers": None}})
    assert status == 200
    assert (await api.get(f"{NS}/configmaps/a"))[0] == 404


async def test_jobs_orphan_their_pods_unless_told_otherwise(api: Api) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    await api.post(jobs, {"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": []}}}})
    _, body = await api.delete(f"{jobs}/j")
    assert body["metadata"]["finalizers"] == ["orphan"]
    await api.post(jobs, {"metadata": {"name": "k"}, "spec": {"template": {"spec": {"containers": []}}}})
    assert (await api.delete(f"{jobs}/k?propagationPolicy=Background"))[1]["kind"] == "Status"


async def test_pod_that_runs_nowhere_goes_at_once(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("p", terminationGracePeriodSeconds=30))
    status, body = await api.delete(f"{NS}/pods/p")
    assert (status, body["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    assert (await api.get(f"{NS}/pods/p"))[0] == 404


async def test_grace_of_a_running_pod_can_only_shrink(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("p", nodeName="n", terminationGracePeriodSeconds=30))
    _, body = await api.delete(f"{NS}/pods/p")
    assert (body["metadata"]["deletionTimestamp"], body["metadata"]["deletionGracePeriodSeconds"]) == (
        "2026-01-01T00:00:30Z",
        30,
    )
    api.clock.advance(10)
    _, longer = await api.delete(f"{NS}/pods/p?gracePeriodSeconds=100")
    assert longer == body
    _, shorter = await api.delete(f"{NS}/pods/p?gracePeriodSeconds=5")
    assert shorter["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:05Z"
    await api.delete(f"{NS}/pods/p", {"gracePeriodSeconds": 0})
    assert (await api.get(f"{NS}/pods/p"))[0] == 404


async def test_pod_with_finalizers_outlives_its_grace(api: Api) -> None:
    body = pod("p", nodeName="n")
    body["metadata"]["finalizers"] = ["a.b/c"]
    await api.post(f"{NS}/pods", body)
    await api.delete(f"{NS}/pods/p?gracePeriodSeconds=0")
    assert (await api.get(f"{NS}/pods/p"))[0] == 200
    await api.patch(f"{NS}/pods/p", {"metadata": {"finalizers": []}})
    assert (await api.get(f"{NS}/pods/p"))[0] == 404


async def test_dry_run_deletes_nothing(api: Api) -> None:
    await api.post(f"{NS}/configmaps", config_map("a"))
    assert (await api.delete(f"{NS}/configmaps/a?dryRun=All"))[1]["status"] == "Success"
    assert (await api.get(f"{NS}/configmaps/a"))[0] == 200


async def test_namespace_terminates_until_it_is_finalized(api: Api) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
    _, body = await api.delete("/api/v1/namespaces/n")
    assert (body["status"]["phase"], "deletionGracePeriodSeconds" in body["metadata"]) == ("Terminating", False)
    assert (await api.patch("/api/v1/namespaces/n", {"spec": {"finalizers": []}}))[1]["spec"]["finalizers"]
    _, body = await api.put("/api/v1/namespaces/n/finalize", {"metadata": {"name": "n"}, "spec": {"finalizers": []}})
    assert body["spec"] == {}
    assert (await api.get("/api/v1/namespaces/n"))[0] == 404


async def test_collection_is_deleted_by_selector_and_answered_as_it_was(api: Api) -> None:
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        await api.post(f"{NS}/configmaps", config_map(name, labels={"l": label}))
    status, body = await api.delete(f"{NS}/configmaps?labelSelector=l=x")
    assert (status, [item["metadata"]["name"] for item in body["items"]]) == (200, ["a", "c"])
    _, left = await api.get(f"{NS}/configmaps")
    assert [item["metadata"]["name"] for item in left["items"]] == ["b"]
    assert (await api.delete("/api/v1/namespaces"))[0] == 405


POLICIES = st.sampled_from([None, "Foreground", "Background", "Orphan"])
HELD = st.lists(st.sampled_from(["orphan", "foregroundDeletion", "a.b/c", "d.e/f"]), unique=True)


@given(held=HELD, policy=POLICIES)
def test_a_policy_touches_only_the_two_finalizers_it_owns(held: list[str], policy: str | None) -> None:
    wanted = finalizers_after_delete(held, DeleteOptions(propagation_policy=policy), orphans_by_default=False)
    own = {"orphan", "foregroundDeletion"}
    assert [f for f in wanted if f not in own] == [f for f in held if f not in own]
    expected = {"Foreground": {"foregroundDeletion"}, "Orphan": {"orphan"}, "Background": set()}
    if policy is not None:
        assert set(wanted) & own == expected[policy]
    else:
        assert set(wanted) == set(held)


@given(
    finalizers=HELD,
    node=st.booleans(),
    termination=st.integers(0, 60),
    asked=st.none() | st.integers(-1, 90),
    second=st.none() | st.integers(0, 90),
)
def test_grace_never_grows_and_finalizers_always_hold(
    finalizers: list[str], node: bool, termination: int, asked: int | None, second: int | None
) -> None:
    obj: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": NOW, "resourceVersion": "1"},
        "spec": {"terminationGracePeriodSeconds": termination, **({"nodeName": "n"} if node else {})},
    }
    if finalizers:
        obj["metadata"]["finalizers"] = finalizers
    facts = DeleteFacts(NOW, graceful=True)
    first = decide_delete(obj, DeleteOptions(grace_period_seconds=asked), facts)
    assert first.marked is not None
    grace = first.marked["metadata"]["deletionGracePeriodSeconds"]
    assert first.remove == (grace == 0 and not first.marked["metadata"].get("finalizers"))
    again = decide_delete(first.marked, DeleteOptions(grace_period_seconds=second), facts)
    if again.marked is not None:
        assert again.marked["metadata"]["deletionGracePeriodSeconds"] < grace
    assert "deletionTimestamp" not in obj["metadata"]
