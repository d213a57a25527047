"""The built-in admission plugins add and refuse what kube-apiserver's do, in its words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.embedded.apiserver.admission.plugins import merge_tolerations
from tests.embedded.apiserver.admission.admitted_objects import (
    CLAIMS,
    CONFIG_MAPS,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    claim,
    config_map,
    pod,
)
from tests.embedded.apiserver.rest_harness import Api, started

Obj = dict[str, Any]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = await started(seed=5)
    yield made
    await made.server.close()


class Test_namespaces:
    async def test_missing_namespace(self, api: Api) -> None:
        status, body = await api.post("/api/v1/namespaces/nope/configmaps", config_map())
        assert (status, body["message"]) == (404, 'namespaces "nope" not found')
        assert body["details"] == {"name": "nope", "kind": "namespaces"}

    async def test_missing_namespace_is_said_before_other_faults(self, api: Api) -> None:
        status, body = await api.post("/api/v1/namespaces/nope/configmaps", config_map("Not_A_Name"))
        assert (status, body["reason"]) == (404, "NotFound")

    @pytest.mark.parametrize(("name", "status"), [("default", 403), ("kube-system", 403), ("kube-public", 403)])
    async def test_protected_namespaces(self, api: Api, name: str, status: int) -> None:
        found, body = await api.delete(f"/api/v1/namespaces/{name}")
        assert found == status
        assert body["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'

    async def test_lease_namespace_can_go(self, api: Api) -> None:
        assert (await api.delete("/api/v1/namespaces/kube-node-lease"))[0] == 200

    async def test_nothing_new_in_a_dying_namespace(self, api: Api) -> None:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "old"}})
        assert (await api.post("/api/v1/namespaces/old/configmaps", config_map("kept")))[0] == 201
        await api.delete("/api/v1/namespaces/old")
        status, body = await api.post("/api/v1/namespaces/old/configmaps", config_map("late"))
        assert status == 403
        assert body["message"] == (
            'configmaps "late" is forbidden: unable to create new content in namespace old because it is being '
            "terminated"
        )
        (cause,) = body["details"]["causes"]
        assert cause["reason"] == "NamespaceTerminating"
        changed = await api.patch("/api/v1/namespaces/old/configmaps/kept", {"data": {"k": "w"}})
        assert changed[0] == 200

    async def test_a_namespace_made_again_takes_objects(self, api: Api) -> None:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "phoenix"}})
        await api.post("/api/v1/namespaces/phoenix/configmaps", config_map())
        await api.delete("/api/v1/namespaces/phoenix/configmaps/x")
        await api.delete("/api/v1/namespaces/phoenix")
        _, found = await api.get("/api/v1/namespaces/phoenix")
        await api.put("/api/v1/namespaces/phoenix/finalize", {**found, "spec": {}})
        assert (await api.post("/api/v1/namespaces/phoenix/configmaps", config_map()))[0] == 404
        await api.post("/api/v1/namespaces", {"metadata": {"name": "phoenix"}})
        assert (await api.post("/api/v1/namespaces/phoenix/configmaps", config_map()))[0] == 201


FORBIDDEN_NUMBER = (
    'pods "p" is forbidden: the integer value of priority ({}) must not be provided in pod spec; '
    "priority admission controller computed {} from the given PriorityClass name"
)
FORBIDDEN_POLICY = (
    'pods "p" is forbidden: the string value of PreemptionPolicy (Never) must not be provided in pod spec; '
    "priority admission controller computed PreemptLowerPriority from the given PriorityClass name"
)


class Test_priority:
    @pytest.mark.parametrize(
        ("spec", "outcome"),
        [
            pytest.param({}, (0, None, "PreemptLowerPriority"), id="nothing-said"),
            pytest.param({"priority": 0}, (0, None, "PreemptLowerPriority"), id="zero-said"),
            pytest.param(
                {"priorityClassName": "system-node-critical"},
                (2_000_001_000, "system-node-critical", "PreemptLowerPriority"),
                id="class",
            ),
            pytest.param({"priority": 5}, FORBIDDEN_NUMBER.format(5, 0), id="number-without-class"),
            pytest.param(
                {"priority": 7, "priorityClassName": "system-cluster-critical"},
                FORBIDDEN_NUMBER.format(7, 2_000_000_000),
                id="another-number",
            ),
            pytest.param({"preemptionPolicy": "Never"}, FORBIDDEN_POLICY, id="another-policy"),
            pytest.param(
                {"priorityClassName": "nope"},
                'pods "p" is forbidden: no PriorityClass with name nope was found',
                id="no-such-class",
            ),
        ],
    )
    async def test_of_a_new_pod(self, api: Api, spec: Obj, outcome: Any) -> None:
        status, body = await api.post(PODS, pod(**spec))
        if isinstance(outcome, str):
            assert (status, body["message"]) == (403, outcome)
            return
        found = body["spec"]
        assert (found["priority"], found.get("priorityClassName"), found["preemptionPolicy"]) == outcome

    async def test_default_class_follows_the_store(self, api: Api) -> None:
        quiet: Obj = {"metadata": {"name": "quiet"}, "value": 50, "globalDefault": True, "preemptionPolicy": "Never"}
        await api.post(PODS, pod("before"))
        await api.post(PRIORITY_CLASSES, quiet)
        _, body = await api.post(PODS, pod("with"))
        assert (body["spec"]["priority"], body["spec"]["priorityClassName"]) == (50, "quiet")
        assert body["spec"]["preemptionPolicy"] == "Never"
        await api.delete(f"{PRIORITY_CLASSES}/quiet")
        _, body = await api.post(PODS, pod("after"))
        assert body["spec"]["priority"] == 0

    async def test_one_default_only(self, api: Api) -> None:
        await api.post(PRIORITY_CLASSES, {"metadata": {"name": "first"}, "value": 1, "globalDefault": True})
        status, body = await api.post(
            PRIORITY_CLASSES, {"metadata": {"name": "second"}, "value": 2, "globalDefault": True}
        )
        assert status == 403
        assert body["message"].endswith("PriorityClass first is already marked as default. Only one default can exist")
        assert (await api.patch(f"{PRIORITY_CLASSES}/first", {"description": "still the one"}))[0] == 200

    async def test_system_classes_stay(self, api: Api) -> None:
        status, body = await api.delete(f"{PRIORITY_CLASSES}/system-node-critical")
        assert status == 403
        assert body["message"].endswith("this is a system priority class and cannot be deleted")

    async def test_writing_a_pod_back_without_its_numbers(self, api: Api) -> None:
        _, made = await api.post(PODS, pod(priorityClassName="system-node-critical"))
        spec = {k: v for k, v in made["spec"].items() if k not in ("priority", "preemptionPolicy")}
        status, body = await api.put(f"{PODS}/p", {**made, "spec": spec})
        assert (status, body["spec"]["priority"]) == (200, 2_000_001_000)


READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
REACHABLE = {**READY, "key": "node.kubernetes.io/unreachable"}


class Test_tolerations:
    @pytest.mark.parametrize(
        ("held", "added"),
        [
            pytest.param([], [READY, REACHABLE], id="none"),
            pytest.param([{"operator": "Exists"}], [], id="everything"),
            pytest.param([{"operator": "Exists", "effect": "NoExecute"}], [], id="every-execution-taint"),
            pytest.param([{**READY, "tolerationSeconds": 5}], [REACHABLE], id="own-patience"),
            pytest.param([{"key": REACHABLE["key"], "operator": "Exists"}], [READY], id="any-effect"),
            pytest.param([{**REACHABLE, "effect": "NoSchedule"}], [READY, REACHABLE], id="other-effect"),
            pytest.param([{"key": "a", "operator": "Exists"}], [READY, REACHABLE], id="other-key"),
        ],
    )
    async def test_of_a_new_pod(self, api: Api, held: list[Obj], added: list[Obj]) -> None:
        for toleration in held:
            if toleration.get("effect") == "NoSchedule":
                toleration.pop("tolerationSeconds", None)
        _, body = await api.post(PODS, pod(tolerations=held))
        assert body["spec"]["tolerations"] == [*held, *added]


class Test_storage:
    async def test_claims_and_volumes_are_protected(self, api: Api) -> None:
        body = claim()
        body["metadata"]["finalizers"] = ["example.com/own"]
        _, made = await api.post(CLAIMS, body)
        assert made["metadata"]["finalizers"] == ["example.com/own", "kubernetes.io/pvc-protection"]
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        _, volume = await api.post("/api/v1/persistentvolumes", {"metadata": {"name": "v"}, "spec": spec})
        assert volume["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]

    async def test_newest_default_class(self, api: Api) -> None:
        mark = {"storageclass.kubernetes.io/is-default-class": "true"}
        for name in ("older", "newer-b", "newer-a", "plain"):
            notes = {} if name == "plain" else {"annotations": mark}
            await api.post(STORAGE_CLASSES, {"metadata": {"name": name, **notes}, "provisioner": "example.com/p"})
            if name == "older":
                api.clock.advance(10)
        _, made = await api.post(CLAIMS, claim())
        assert made["spec"]["storageClassName"] == "newer-a"
        _, none = await api.post(CLAIMS, claim("n", storageClassName=""))
        assert none["spec"]["storageClassName"] == ""


async def test_what_every_cluster_has(api: Api) -> None:
    _, namespaces = await api.get("/api/v1/namespaces")
    assert [item["metadata"]["name"] for item in namespaces["items"]] == [
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
    ]
    _, classes = await api.get(PRIORITY_CLASSES)
    assert {c["metadata"]["name"]: c["value"] for c in classes["items"]} == {
        "system-cluster-critical": 2_000_000_000,
        "system-node-critical": 2_000_001_000,
    }


async def test_definitions_are_remarked_on(api: Api) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "zzz"}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [version],
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, _ = await api.post(path, {"metadata": {"name": "things.example.com"}, "spec": spec})
    assert (status, api.warning) == (201, '299 - "unrecognized format \\"zzz\\""')


async def test_untouched_kinds_stay_as_they_are(api: Api) -> None:
    _, made = await api.post(CONFIG_MAPS, config_map())
    assert set(made) == {"kind", "apiVersion", "metadata", "data"}


class Test_runtime_classes:
    """Answers of kube-apiserver 1.35 to the same requests."""

    CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
    KATA: Obj = {
        "metadata": {"name": "kata"},
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
        "scheduling": {
            "nodeSelector": {"kata": "yes"},
            "tolerations": [
                {"key": "kata", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "a", "operator": "Exists"},
            ],
        },
    }

    @pytest.fixture(autouse=True)
    async def classes(self, api: Api) -> None:
        assert (await api.post(self.CLASSES, self.KATA))[0] == 201
        assert (await api.post(self.CLASSES, {"metadata": {"name": "plain"}, "handler": "x"}))[0] == 201

    async def test_overhead_and_scheduling_are_merged(self, api: Api) -> None:
        held = [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}, {"key": "b", "operator": "Exists"}]
        asked = pod("a", runtimeClassName="kata", nodeSelector={"x": "y"}, tolerations=held)
        status, made = await api.post(PODS, asked)
        assert status == 201
        spec = made["spec"]
        assert (spec["overhead"], spec["nodeSelector"]) == (
            {"cpu": "250m", "memory": "120Mi"},
            {"kata": "yes", "x": "y"},
        )
        assert [toleration["key"] for toleration in spec["tolerations"]] == [
            "kata",
            "b",
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "a",
        ]

    @pytest.mark.parametrize(
        ("spec", "why"),
        [
            ({"runtimeClassName": "nope"}, 'pod rejected: RuntimeClass "nope" not found'),
            (
                {"runtimeClassName": "kata", "nodeSelector": {"kata": "no"}},
                "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no",
            ),
            (
                {"runtimeClassName": "kata", "overhead": {"cpu": "1"}},
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            ),
            (
                {"runtimeClassName": "plain", "overhead": {"cpu": "1"}},
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            ),
            (
                {"overhead": {"cpu": "1"}},
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            ),
        ],
        ids=["unknown", "conflict", "other-overhead", "class-without-overhead", "no-class"],
    )
    async def test_refusals(self, api: Api, spec: Obj, why: str) -> None:
        status, body = await api.post(PODS, pod("p", **spec))
        assert (status, body["message"]) == (403, f'pods "p" is forbidden: {why}')

    async def test_an_equal_overhead_and_a_bare_class_pass(self, api: Api) -> None:
        overhead = {"cpu": "250m", "memory": "120Mi"}
        assert (await api.post(PODS, pod("p", runtimeClassName="kata", overhead=overhead)))[0] == 201
        status, made = await api.post(PODS, pod("q", runtimeClassName="plain"))
        assert (status, "overhead" in made["spec"]) == (201, False)

    async def test_an_empty_name_is_refused(self, api: Api) -> None:
        status, body = await api.post(PODS, pod("p", runtimeClassName=""))
        assert (status, body["message"]) == (500, "resource name may not be empty")


@pytest.mark.parametrize(
    ("found", "merged"),
    [
        ([{"key": "a", "operator": "Exists"}, {"operator": "Exists"}], [{"operator": "Exists"}]),
        (
            [{"key": "a", "operator": "Equal", "value": "1"}, {"key": "a", "operator": "Exists"}],
            [{"key": "a", "operator": "Exists"}],
        ),
        (
            [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}] * 2,
            [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        ),
        (
            [
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9},
            ],
            [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}],
        ),
        (
            [{"key": "a", "operator": "Equal", "value": "1"}, {"key": "a", "operator": "Equal", "value": "2"}],
            [{"key": "a", "operator": "Equal", "value": "1"}, {"key": "a", "operator": "Equal", "value": "2"}],
        ),
    ],
    ids=["all", "any-value", "equal", "longer", "other-value"],
)
def test_tolerations_that_others_cover_are_left_out(found: list[Obj], merged: list[Obj]) -> None:
    assert merge_tolerations(found) == merged
