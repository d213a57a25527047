"""The subresources of pods and workloads: binding, eviction, scale, ephemeral containers, resize, logs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embedded.apiserver.rest_harness import MERGE, NS, STRATEGIC, Api, fresh, pod

PDBS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@pytest.fixture
async def api() -> Api:
    return await fresh()


def binding(name: str = "p", node: str = "n1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **meta},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


class Test_binding:
    async def test_bound_pod_has_its_node_condition_and_annotations(self, api: Api) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        status, body = await api.post(f"{NS}/pods/p/binding", binding(annotations={"a": "b"}, labels={"l": "m"}))
        assert (status, body) == (
            201,
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201},
        )
        _, found = await api.get(f"{NS}/pods/p")
        assert found["spec"]["nodeName"] == "n1"
        assert (found["metadata"]["annotations"], found["metadata"]["labels"]) == ({"a": "b"}, {"l": "m"})
        assert found["status"]["conditions"] == [
            {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ]

    async def test_old_collection_of_bindings(self, api: Api) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        assert (await api.post(f"{NS}/bindings", binding()))[0] == 201
        assert (await api.get(f"{NS}/pods/p"))[1]["spec"]["nodeName"] == "n1"

    async def test_unschedulable_condition_turns_true(self, api: Api) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        await api.patch(f"{NS}/pods/p/status", {"status": {"conditions": [waiting]}})
        await api.post(f"{NS}/pods/p/binding", binding())
        (condition,) = (await api.get(f"{NS}/pods/p"))[1]["status"]["conditions"]
        assert (condition["status"], "reason" in condition) == ("True", False)

    CONFLICTS: list[Any] = [
        pytest.param(pod("p", nodeName="n9"), binding(), 'pod p is already assigned to node "n9"', id="assigned"),
        pytest.param(
            pod("p", schedulingGates=[{"name": "g"}]),
            binding(),
            "pod p has non-empty .spec.schedulingGates",
            id="gated",
        ),
    ]

    @pytest.mark.parametrize(("made", "bind", "why"), CONFLICTS)
    async def test_conflicts(self, api: Api, made: dict[str, Any], bind: dict[str, Any], why: str) -> None:
        await api.post(f"{NS}/pods", made)
        status, body = await api.post(f"{NS}/pods/p/binding", bind)
        assert (status, body["message"]) == (409, f'Operation cannot be fulfilled on pods/binding "p": {why}')

    async def test_dying_pod_is_not_bound(self, api: Api) -> None:
        body = pod("p")
        body["metadata"]["finalizers"] = ["a.b/c"]
        await api.post(f"{NS}/pods", body)
        await api.delete(f"{NS}/pods/p")
        status, answer = await api.post(f"{NS}/pods/p/binding", binding())
        assert (status, answer["message"].rsplit(": ", 1)[1]) == (
            409,
            "pod p is being deleted, cannot be assigned to a host",
        )

    REFUSED: list[Any] = [
        pytest.param(binding(node=""), 500, "target.name: Required value", id="no-node"),
        pytest.param(binding("q"), 400, "name in URL does not match name in Binding object", id="name"),
        pytest.param(
            {"metadata": {"name": "p"}, "target": {"kind": "Foo", "name": "x"}},
            500,
            'target.kind: Unsupported value: "Foo": supported values: "Node", "<empty>"',
            id="kind",
        ),
    ]

    @pytest.mark.parametrize(("bind", "status", "message"), REFUSED)
    async def test_refusals(self, api: Api, bind: dict[str, Any], status: int, message: str) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        got, body = await api.post(f"{NS}/pods/p/binding", bind)
        assert (got, body["message"]) == (status, message)

    async def test_precondition_dry_run_and_absence(self, api: Api) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        assert (await api.post(f"{NS}/pods/p/binding", binding(uid="x")))[0] == 409
        assert (await api.post(f"{NS}/pods/p/binding?dryRun=All", binding()))[0] == 201
        assert "nodeName" not in (await api.get(f"{NS}/pods/p"))[1]["spec"]
        assert (await api.post(f"{NS}/pods/zz/binding", binding("zz")))[0] == 404
        assert (await api.get(f"{NS}/pods/p/binding"))[0] == 405


def eviction(name: str = "p", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **more}


async def running(api: Api, *, ready: bool = True, phase: str = "Running") -> None:
    await api.post(f"{NS}/pods", pod("p", labels={"app": "e"}, nodeName="n", terminationGracePeriodSeconds=30))
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    await api.patch(f"{NS}/pods/p/status", {"status": {"phase": phase, "conditions": conditions}})


async def budget(api: Api, name: str = "b", spec: dict[str, Any] | None = None, **status: Any) -> None:
    selector = {"selector": {"matchLabels": {"app": "e"}}, **(spec or {})}
    await api.post(PDBS, {"metadata": {"name": name}, "spec": selector})
    await api.patch(f"{PDBS}/{name}/status", {"status": {"observedGeneration": 1, **status}})


class Test_eviction:
    async def test_without_a_budget_the_pod_is_deleted_and_told_why(self, api: Api) -> None:
        await running(api)
        status, _ = await api.post(f"{NS}/pods/p/eviction", eviction())
        assert status == 201
        _, found = await api.get(f"{NS}/pods/p")
        assert found["metadata"]["deletionGracePeriodSeconds"] == 30
        condition = found["status"]["conditions"][-1]
        assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "EvictionByEvictionAPI")

    async def test_budget_is_spent_and_remembers_the_pod(self, api: Api) -> None:
        await running(api)
        await budget(api, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
        assert (await api.post(f"{NS}/pods/p/eviction", eviction()))[0] == 201
        _, left = await api.get(f"{PDBS}/b")
        assert left["status"]["disruptionsAllowed"] == 0
        assert left["status"]["disruptedPods"] == {"p": "2026-01-01T00:00:00Z"}
        assert left["status"]["conditions"][0]["reason"] == "InsufficientPods"

    async def test_spent_budget_answers_too_many_requests(self, api: Api) -> None:
        await running(api)
        await budget(api, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1)
        status, body = await api.post(f"{NS}/pods/p/eviction", eviction())
        assert (status, body["reason"], body["message"]) == (
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
        )
        assert body["details"]["causes"] == [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
            }
        ]
        assert "deletionTimestamp" not in (await api.get(f"{NS}/pods/p"))[1]["metadata"]

    async def test_dry_run_spends_nothing(self, api: Api) -> None:
        await running(api)
        await budget(api, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
        body = eviction(deleteOptions={"dryRun": ["All"]})
        assert (await api.post(f"{NS}/pods/p/eviction", body))[0] == 201
        assert (await api.get(f"{PDBS}/b"))[1]["status"]["disruptionsAllowed"] == 1

    async def test_two_budgets_are_one_too_many(self, api: Api) -> None:
        await running(api)
        await budget(api, "b", disruptionsAllowed=1)
        await budget(api, "c", disruptionsAllowed=1)
        status, body = await api.post(f"{NS}/pods/p/eviction", eviction())
        assert (status, body["message"]) == (
            500,
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )

    UNHEALTHY: list[Any] = [
        pytest.param({"unhealthyPodEvictionPolicy": "AlwaysAllow"}, 0, 1, 201, id="always"),
        pytest.param({}, 2, 2, 201, id="budget-healthy"),
        pytest.param({}, 1, 2, 429, id="budget-not-healthy"),
    ]

    @pytest.mark.parametrize(("spec", "healthy", "desired", "status"), UNHEALTHY)
    async def test_unhealthy_pods(
        self, api: Api, spec: dict[str, Any], healthy: int, desired: int, status: int
    ) -> None:
        await running(api, ready=False)
        await budget(api, spec=spec, disruptionsAllowed=0, currentHealthy=healthy, desiredHealthy=desired)
        assert (await api.post(f"{NS}/pods/p/eviction", eviction()))[0] == status

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Pending"])
    async def test_pods_that_do_not_run_are_not_guarded(self, api: Api, phase: str) -> None:
        await running(api, phase=phase)
        await budget(api, disruptionsAllowed=0)
        assert (await api.post(f"{NS}/pods/p/eviction", eviction()))[0] == 201

    async def test_refusals(self, api: Api) -> None:
        await running(api)
        assert (await api.post(f"{NS}/pods/p/eviction", eviction("q")))[0] == 400
        assert (await api.post(f"{NS}/pods/zz/eviction", eviction("zz")))[0] == 404
        body = eviction(deleteOptions={"preconditions": {"uid": "x"}})
        assert (await api.post(f"{NS}/pods/p/eviction", body))[0] == 409


class Test_scale:
    @pytest.fixture
    async def web(self, api: Api) -> Api:
        spec = {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        }
        await api.post(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
        return api

    async def test_scale_is_a_view(self, web: Api) -> None:
        _, body = await web.get(f"{DEPLOYMENTS}/web/scale")
        assert (body["kind"], body["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert (body["spec"], body["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "app=x"})

    async def test_put_and_patch_write_the_workload(self, web: Api) -> None:
        scale = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 3}}
        status, body = await web.put(f"{DEPLOYMENTS}/web/scale", scale)
        assert (status, body["spec"]) == (200, {"replicas": 3})
        for media, replicas in ((MERGE, 4), (STRATEGIC, 5)):
            _, body = await web.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": replicas}}, media)
            assert body["spec"] == {"replicas": replicas}
        _, workload = await web.get(f"{DEPLOYMENTS}/web")
        assert (workload["spec"]["replicas"], workload["spec"]["selector"]) == (5, {"matchLabels": {"app": "x"}})

    async def test_refusals(self, web: Api) -> None:
        scale: dict[str, Any] = {"metadata": {"name": "web"}, "spec": {"replicas": -4}}
        status, body = await web.put(f"{DEPLOYMENTS}/web/scale", scale)
        assert (status, body["message"]) == (
            422,
            'Scale.autoscaling "web" is invalid: spec.replicas: Invalid value: -4: must be greater than or equal to 0',
        )
        scale = {"metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"replicas": 1}}
        assert (await web.put(f"{DEPLOYMENTS}/web/scale", scale))[0] == 409
        assert (await web.get(f"{DEPLOYMENTS}/no/scale"))[0] == 404


async def test_ephemeral_containers_and_resize_change_nothing_else(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("p"))
    more = {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}], "nodeName": "n"}}
    _, body = await api.patch(f"{NS}/pods/p/ephemeralcontainers", more, STRATEGIC)
    assert ([c["name"] for c in body["spec"]["ephemeralContainers"]], "nodeName" in body["spec"]) == (["e"], False)
    size = {"containers": [{"name": "main", "image": "other", "resources": {"requests": {"cpu": "1"}}}]}
    _, body = await api.patch(f"{NS}/pods/p/resize", {"spec": size}, STRATEGIC)
    (container,) = body["spec"]["containers"]
    assert (container["image"], container["resources"]) == ("example/app:1", {"requests": {"cpu": "1"}})


async def test_what_needs_a_kubelet_says_so(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("p"))
    status, body = await api.get(f"{NS}/pods/p/exec")
    assert (status, body["message"]) == (400, "pod p does not have a host assigned")
    assert (await api.get(f"{NS}/pods/p/log"))[0] == 204
    await api.post(f"{NS}/pods/p/binding", binding())
    status, body = await api.get(f"{NS}/pods/p/attach")
    assert (status, body["reason"]) == (501, "NotImplemented")
    assert (await api.get(f"{NS}/pods/zz/log"))[0] == 404
