"""The quota tree of a running program: fed by watches, asked by webhooks."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.protocol import A_QUOTA_SHARED_WEIGHT, L_QUOTA_NAME, L_QUOTA_TREE_ID
from koord.api.kubernetes.builtin_kinds import PODS
from koord.kube.transport.api_error import unwrap
from koord.manager.quota_topology_cache import QuotaTopologyCache
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.quota.topology import PENDING_WRITE_TTL_S
from tests.manager.manager_harness import run_with_context
from tests.manager.webhooks.quota.quota_builders import quota, request


async def started(context: ManagerContext) -> QuotaTopologyCache:
    live = QuotaTopologyCache(context)
    await live.start()
    await context.clock.sleep(1)
    return live


def stored(name: str, **more: Any) -> dict[str, Any]:
    return quota(name, namespace="default", **more)


def test_objects_come_and_go() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(ELASTIC_QUOTAS, stored("early")))
        live = await started(context)
        unwrap(await context.client.create(ELASTIC_QUOTAS, stored("late", is_parent=True, namespaces=["x"])))
        await context.clock.sleep(1)
        assert live.topology.quotas.keys() == {"early", "late"}
        assert live.topology.is_parent("late")
        assert live.topology.quota_of({}, "x") == "late"
        assert [one.metadata.namespace for one in live.quotas_named("late")] == ["default"]
        unwrap(await context.client.delete(ELASTIC_QUOTAS, "early", "default"))
        await context.clock.sleep(1)
        assert live.topology.quotas.keys() == {"late"}
        assert live.to_json()["quotaHierarchyInfo"] == {"koordinator-root-quota": ["late"], "late": []}
        await live.stop()

    run_with_context(main)


def test_an_admitted_quota_is_known_before_the_watch_shows_it() -> None:
    async def main(context: ManagerContext) -> None:
        live = await started(context)
        asked = request("CREATE", stored("a", is_parent=True))
        assert live.validate(asked) == AdmissionAllowed()
        assert live.validate(asked) == AdmissionDenied(400, "AddQuota quota already exist:a")
        assert live.validate(request("CREATE", stored("b", parent="a", min={}))) == AdmissionAllowed()
        await context.clock.sleep(PENDING_WRITE_TTL_S)  # neither was ever written
        assert live.validate(asked) == AdmissionAllowed()
        await live.stop()

    run_with_context(main)


def test_a_dry_run_leaves_no_trace() -> None:
    async def main(context: ManagerContext) -> None:
        live = await started(context)
        assert live.validate(request("CREATE", stored("a"), dry_run=True)) == AdmissionAllowed()
        assert live.topology.get("a") is None
        await live.stop()

    run_with_context(main)


def test_pods_that_hold_a_quota() -> None:
    async def main(context: ManagerContext) -> None:
        live = await started(context)
        unwrap(await context.client.create(ELASTIC_QUOTAS, stored("a")))
        pod = {
            "metadata": {"name": "p", "labels": {L_QUOTA_NAME: "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        unwrap(await context.client.create(PODS, pod, "default"))
        await context.clock.sleep(1)
        refused = AdmissionDenied(400, "delete quota failed, quota a has 1 child pods: p")
        assert live.validate(request("DELETE", None, stored("a"))) == refused
        assert live.has_pods_in("default")
        unwrap(await context.client.delete(PODS, "p", "default", grace_seconds=0))
        await context.clock.sleep(1)
        assert live.validate(request("DELETE", None, stored("a"))) == AdmissionAllowed()
        await live.stop()

    run_with_context(main)


def test_the_pool_of_a_tree() -> None:
    async def main(context: ManagerContext) -> None:
        live = await started(context)
        for name, zone in (("z", "last"), ("a", "first")):
            profile = {
                "metadata": {"name": name, "labels": {L_QUOTA_TREE_ID: "t"}},
                "spec": {"quotaName": name, "nodeSelector": {"matchLabels": {"zone": zone}}},
            }
            unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, profile, "default"))
        await context.clock.sleep(1)
        pool = live.node_selector_of_tree("t")
        assert pool is not None
        assert pool.match_labels == {"zone": "first"}
        assert live.node_selector_of_tree("unknown") is None
        await live.stop()

    run_with_context(main)


def test_weights_are_read_from_the_quotas_of_now() -> None:
    async def main(context: ManagerContext) -> None:
        live = await started(context)
        weighed = stored("a", annotations={A_QUOTA_SHARED_WEIGHT: '{"cpu":"1500m","memory":"1Ki"}'})
        unwrap(await context.client.create(ELASTIC_QUOTAS, weighed))
        unwrap(await context.client.create(ELASTIC_QUOTAS, stored("plain")))
        await context.clock.sleep(1)
        (weights,) = live.readings()
        assert dict(weights.values) == {("a", "cpu"): 1500.0, ("a", "memory"): 1024.0}
        unwrap(await context.client.delete(ELASTIC_QUOTAS, "a", "default"))
        await context.clock.sleep(1)
        (weights,) = live.readings()
        assert not weights.values
        await live.stop()

    run_with_context(main)
