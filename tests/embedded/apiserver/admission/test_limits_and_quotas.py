"""LimitRanges give defaults and bounds, ResourceQuotas refuse what is too much, both in kube-apiserver's words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.embedded.apiserver.admission.admitted_objects import CLAIMS, CONFIG_MAPS, PODS, claim, config_map, pod
from tests.embedded.apiserver.rest_harness import Api, started

LIMITS = "/api/v1/namespaces/default/limitranges"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
Obj = dict[str, Any]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = await started(seed=5)
    yield made
    await made.server.close()


def sized(name: str = "p", requests: Obj | None = None, limits: Obj | None = None, **spec: Any) -> Obj:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return pod(name, containers=[{"name": "c", "image": "i:1", "resources": resources}], **spec)


async def limit(api: Api, *items: Obj) -> None:
    status, body = await api.post(LIMITS, {"metadata": {"name": "limits"}, "spec": {"limits": list(items)}})
    assert status == 201, body


async def quota(api: Api, hard: Obj, used: Obj | None = None, name: str = "q", **spec: Any) -> None:
    """A quota whose status a controller has filled in."""
    status, body = await api.post(QUOTAS, {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})
    assert status == 201, body
    filled = {"hard": hard, "used": {**dict.fromkeys(hard, "0"), **(used or {})}}
    status, body = await api.patch(f"{QUOTAS}/{name}/status", {"status": filled})
    assert status == 200, body


async def used(api: Api, name: str = "q") -> Obj:
    _, body = await api.get(f"{QUOTAS}/{name}")
    found: Obj = body["status"]["used"]
    return found


class Test_limit_ranges:
    CONTAINER: Obj = {
        "type": "Container",
        "min": {"cpu": "50m"},
        "max": {"cpu": "500m", "memory": "500Mi"},
        "default": {"cpu": "500m", "memory": "500Mi"},
        "defaultRequest": {"cpu": "100m", "memory": "200Mi"},
    }

    async def test_containers_get_what_they_leave_out(self, api: Api) -> None:
        await limit(api, self.CONTAINER)
        status, body = await api.post(PODS, sized(requests={"memory": "150Mi"}, limits={"cpu": "300m"}))
        assert status == 201, body
        assert body["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "300m", "memory": "500Mi"},
            "requests": {"cpu": "300m", "memory": "150Mi"},
        }
        assert body["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: memory limit for container c"
        )

    async def test_a_pod_without_amounts_gets_all_defaults(self, api: Api) -> None:
        await limit(api, self.CONTAINER)
        _, body = await api.post(PODS, pod())
        assert body["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "500m", "memory": "500Mi"},
            "requests": {"cpu": "100m", "memory": "200Mi"},
        }
        assert body["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"
        )

    @pytest.mark.parametrize(
        ("requests", "limits", "why"),
        [
            ({"cpu": "10m"}, {}, "minimum cpu usage per Container is 50m, but request is 10m"),
            (
                {"cpu": "600m"},
                {"cpu": "600m"},
                "[maximum cpu usage per Container is 500m, but limit is 600m, "
                "maximum cpu usage per Container is 500m, but request is 600m]",
            ),
        ],
    )
    async def test_containers_out_of_bounds(self, api: Api, requests: Obj, limits: Obj, why: str) -> None:
        await limit(api, self.CONTAINER)
        status, body = await api.post(PODS, sized(requests=requests, limits=limits))
        assert (status, body["message"]) == (403, f'pods "p" is forbidden: {why}')

    async def test_the_ratio_of_limit_to_request(self, api: Api) -> None:
        await limit(api, {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}})
        status, body = await api.post(PODS, sized(requests={"cpu": "100m"}, limits={"cpu": "300m"}))
        assert status == 403
        assert body["message"].endswith(
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"
        )
        assert (await api.post(PODS, sized(requests={"cpu": "100m"}, limits={"cpu": "200m"})))[0] == 201

    async def test_the_sum_of_a_pod(self, api: Api) -> None:
        await limit(api, {"type": "Pod", "max": {"cpu": "1"}})
        two = [
            {"name": name, "image": "i", "resources": {"limits": {"cpu": "600m"}, "requests": {"cpu": "100m"}}}
            for name in ("a", "b")
        ]
        status, body = await api.post(PODS, pod(containers=two))
        assert status == 403
        assert "maximum cpu usage per Pod is 1, but limit is 1200m" in body["message"]

    async def test_claims(self, api: Api) -> None:
        await limit(api, {"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}, "max": {"storage": "3Gi"}})
        status, body = await api.post(CLAIMS, claim())
        assert status == 403
        assert body["message"].endswith("minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi")
        assert (await api.post(CLAIMS, claim(resources={"requests": {"storage": "3Gi"}})))[0] == 201


class Test_quotas:
    async def test_what_is_admitted_is_charged_at_once(self, api: Api) -> None:
        await quota(api, {"pods": "2", "requests.cpu": "1"})
        assert (await api.post(PODS, sized("a", {"cpu": "400m"})))[0] == 201
        assert await used(api) == {"pods": "1", "requests.cpu": "400m"}
        status, body = await api.post(PODS, sized("b", {"cpu": "700m"}))
        assert status == 403
        assert body["message"] == (
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=700m, used: requests.cpu=400m, '
            "limited: requests.cpu=1"
        )
        assert await used(api) == {"pods": "1", "requests.cpu": "400m"}

    async def test_a_dry_run_is_judged_and_not_charged(self, api: Api) -> None:
        await quota(api, {"pods": "1"})
        assert (await api.post(f"{PODS}?dryRun=All", pod("a")))[0] == 201
        assert await used(api) == {"pods": "0"}
        assert (await api.post(PODS, pod("a")))[0] == 201
        assert (await api.post(f"{PODS}?dryRun=All", pod("b")))[0] == 403

    async def test_one_quota_that_refuses_keeps_the_others_free_of_charge(self, api: Api) -> None:
        await quota(api, {"pods": "5"}, name="a")
        await quota(api, {"pods": "0"}, name="b")
        assert (await api.post(PODS, pod()))[0] == 403
        assert await used(api, "a") == {"pods": "0"}

    async def test_limited_amounts_must_be_stated(self, api: Api) -> None:
        await quota(api, {"limits.cpu": "1", "requests.memory": "1Gi"})
        status, body = await api.post(PODS, sized(limits={"cpu": "1"}))
        assert status == 403
        assert body["message"] == 'pods "p" is forbidden: failed quota: q: must specify requests.memory for: c'

    async def test_a_quota_that_nobody_has_counted_refuses(self, api: Api) -> None:
        await api.post(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}})
        status, body = await api.post(CONFIG_MAPS, config_map())
        assert status == 403
        assert body["message"] == ('configmaps "x" is forbidden: status unknown for quota: q, resources: configmaps')
        assert (await api.post(PODS, pod()))[0] == 201  # which it does not limit

    async def test_scopes(self, api: Api) -> None:
        await quota(api, {"pods": "0"}, scopes=["BestEffort"])
        assert (await api.post(PODS, pod("a")))[0] == 403
        assert (await api.post(PODS, sized("b", {"cpu": "1"})))[0] == 201

    async def test_a_pod_that_comes_into_a_scope_is_charged(self, api: Api) -> None:
        await quota(api, {"pods": "1"}, scopes=["Terminating"])
        assert (await api.post(PODS, pod("a")))[0] == 201
        assert await used(api) == {"pods": "0"}
        assert (await api.patch(f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 60}}))[0] == 200
        assert await used(api) == {"pods": "1"}
        assert (await api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}}))[0] == 200
        assert await used(api) == {"pods": "1"}
        assert (await api.post(PODS, pod("b", activeDeadlineSeconds=60)))[0] == 403

    async def test_a_claim_that_grows_is_charged_the_difference(self, api: Api) -> None:
        classes = "/apis/storage.k8s.io/v1/storageclasses"
        await api.post(classes, {"metadata": {"name": "s"}, "provisioner": "p", "allowVolumeExpansion": True})
        await quota(api, {"requests.storage": "3Gi"})
        assert (await api.post(CLAIMS, claim(storageClassName="s", volumeName="v")))[0] == 201
        assert (await api.patch(f"{CLAIMS}/c/status", {"status": {"phase": "Bound"}}))[0] == 200
        grown = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        status, body = await api.patch(f"{CLAIMS}/c", grown)
        assert status == 200, body
        assert await used(api) == {"requests.storage": "2Gi"}
        status, body = await api.patch(f"{CLAIMS}/c", {"spec": {"resources": {"requests": {"storage": "4Gi"}}}})
        assert status == 403
        assert "requested: requests.storage=2Gi, used: requests.storage=2Gi" in body["message"]
