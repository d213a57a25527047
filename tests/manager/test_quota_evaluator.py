"""Pods against what is left of their quota, with the sums on a live API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import A_QUOTA_CHILD_REQUEST, A_REPLACE_RESOURCES, L_QUOTA_NAME
from koord.api.kubernetes.admission import AdmissionRequest
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable
from koord.manager.quota_topology_cache import EvaluatorOptions, QuotaEvaluator, QuotaTopologyCache
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from tests.manager.manager_harness import FaultyTransport, run_with_faulty_transport
from tests.manager.webhooks.quota.quota_builders import quota


def pod(cpu: str, quota_name: str = "q") -> dict[str, Any]:
    labels = {L_QUOTA_NAME: quota_name} if quota_name else {}
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    return {"metadata": {"name": "p", "labels": labels}, "spec": spec}


def asked(obj: dict[str, Any], old: dict[str, Any] | None = None, **more: Any) -> AdmissionRequest:
    operation = "CREATE" if old is None else "UPDATE"
    return AdmissionRequest(operation=operation, object=obj, old_object=old, namespace="default", **more)


def evaluating(
    main: Callable[[ManagerContext, QuotaEvaluator], Awaitable[None]],
    *names: str,
    limit: int = 10,
    disturb: Callable[[ApiRequest], Awaitable[ApiResponse | None]] | None = None,
    **gates: bool,
) -> None:
    async def run(context: ManagerContext, transport: FaultyTransport) -> None:
        for name in names or ("q",):
            unwrap(
                await context.client.create(
                    ELASTIC_QUOTAS, quota(name, max={"cpu": limit}, min={}, namespace="default")
                )
            )
        live = QuotaTopologyCache(context)
        await live.start()
        evaluator = QuotaEvaluator(context, live)
        await context.clock.sleep(1)
        transport.disturb = disturb
        await main(context, evaluator)
        await evaluator.stop()
        await live.stop()

    run_with_faulty_transport(run, **{"EnableQuotaAdmission": True, **gates})


async def requested(context: ManagerContext) -> dict[str, str]:
    found = unwrap(await context.client.get(ELASTIC_QUOTAS, "q", "default"))
    text = found.metadata.annotations.get(A_QUOTA_CHILD_REQUEST, "{}")
    return dict(json.loads(text))


def test_pods_add_up_until_the_quota_is_full() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        assert await evaluator.admit(asked(pod("9"))) == AdmissionAllowed()
        assert await requested(context) == {"cpu": "9"}
        assert await evaluator.admit(asked(pod("2"))) == AdmissionDenied(
            400, "exceeded quota: default/q, requested: cpu=2, used: cpu=9, limited: cpu=10"
        )
        assert await evaluator.admit(asked(pod("1"))) == AdmissionAllowed()
        assert await requested(context) == {"cpu": "10"}

    evaluating(main)


@pytest.mark.parametrize(
    ("gates", "counted"),
    [
        pytest.param((), {"cpu": "1"}, id="off"),
        pytest.param(("ElasticQuotaEvaluationTransformPod",), {"cpu": "1"}, id="without-the-transformer"),
        pytest.param(("ReplaceResourcesTransformer",), {"cpu": "1"}, id="not-in-the-evaluation"),
        pytest.param(("ElasticQuotaEvaluationTransformPod", "ReplaceResourcesTransformer"), {"cpu": "3"}, id="both"),
    ],
)
def test_replaced_resources_count_behind_both_gates(gates: tuple[str, ...], counted: dict[str, str]) -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        obj = pod("1")
        obj["metadata"]["annotations"] = {A_REPLACE_RESOURCES: "cpu:,x:cpu"}
        obj["spec"]["containers"][0]["resources"]["requests"]["x"] = "3"
        assert await evaluator.admit(asked(obj)) == AdmissionAllowed()
        assert await requested(context) == counted

    evaluating(main, disturb=None, limit=10, **dict.fromkeys(gates, True))


def test_a_retry_waits_between_half_of_the_jitter_and_all_of_it() -> None:
    async def main(context: ManagerContext, _: QuotaEvaluator) -> None:
        live = QuotaTopologyCache(context)
        await live.start()
        options = EvaluatorOptions(jitter_s=0.4, max_total_jitter_s=100.0)
        patient = QuotaEvaluator(context, live, options, Random(7))
        waits = []
        for _number in range(20):
            clients.append(context.client)
            began = context.clock.monotonic()
            assert await patient.admit(asked(pod("100m"))) == AdmissionAllowed()
            waits.append(context.clock.monotonic() - began)
        assert all(0.2 <= wait < 0.4 for wait in waits), waits
        assert max(waits) - min(waits) > 0.05, "they differ, so that replicas do not meet again"
        await patient.stop()
        await live.stop()

    clients: list[Client] = []  # one that is to write first
    numbers: list[int] = []

    async def conflict_once(request: ApiRequest) -> ApiResponse | None:
        if request.method == "PATCH" and clients:
            numbers.append(len(numbers))
            touch = {"metadata": {"annotations": {"touched": str(len(numbers))}}}
            unwrap(await clients.pop().patch(ELASTIC_QUOTAS, "q", touch, "default", kind="merge"))
        return None

    evaluating(main, disturb=conflict_once)


def test_a_crowd_is_admitted_exactly_up_to_the_limit() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        before = unwrap(await context.client.get(ELASTIC_QUOTAS, "q", "default")).metadata
        verdicts: list[AdmissionDecision] = await asyncio.gather(*(evaluator.admit(asked(pod("1"))) for _ in range(40)))
        assert sum(verdict == AdmissionAllowed() for verdict in verdicts) == 25
        assert await requested(context) == {"cpu": "25"}
        after = unwrap(await context.client.get(ELASTIC_QUOTAS, "q", "default")).metadata
        assert int(after.resource_version) - int(before.resource_version) <= 3  # they went in groups

    evaluating(main, limit=25)


def test_two_replicas_never_admit_more_than_there_is() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        live = QuotaTopologyCache(context)
        await live.start()
        other = QuotaEvaluator(context, live)
        crowd = [one.admit(asked(pod("1"))) for _ in range(12) for one in (evaluator, other)]
        verdicts = await asyncio.gather(*crowd)
        assert sum(verdict == AdmissionAllowed() for verdict in verdicts) == 10
        assert await requested(context) == {"cpu": "10"}
        await other.stop()
        await live.stop()

    evaluating(main)


@pytest.mark.parametrize(
    ("obj", "verdict"),
    [
        pytest.param(pod("99", "unknown"), AdmissionDenied(400, "elastic quota unknown not found"), id="unknown"),
        pytest.param(pod("99", ""), AdmissionAllowed(), id="default-quota"),
        pytest.param(pod("99", "koordinator-system-quota"), AdmissionAllowed(), id="system-quota"),
        pytest.param(pod("0"), AdmissionAllowed(), id="asks-for-nothing"),
    ],
)
def test_who_is_evaluated(obj: dict[str, Any], verdict: AdmissionDecision) -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        assert await evaluator.admit(asked(obj)) == verdict
        assert await requested(context) == {}

    evaluating(main)


def test_two_quotas_of_one_name_are_refused() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        unwrap(await context.client.create(ELASTIC_QUOTAS, quota("q", namespace="kube-system")))
        await context.clock.sleep(1)
        assert await evaluator.admit(asked(pod("1"))) == AdmissionDenied(400, "more than one elastic quota q found")

    evaluating(main)


@pytest.mark.parametrize(
    ("old", "on_update", "counted"),
    [
        pytest.param("r", True, True, id="another-quota"),
        pytest.param("q", True, False, id="same-quota"),
        pytest.param("r", False, False, id="gate-off"),
    ],
)
def test_updates_count_when_the_quota_changes(old: str, on_update: bool, counted: bool) -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        assert await evaluator.admit(asked(pod("1"), pod("1", old))) == AdmissionAllowed()
        assert await requested(context) == ({"cpu": "1"} if counted else {})

    evaluating(main, "q", "r", EnableQuotaAdmissionOnUpdate=on_update)


def test_a_dry_run_is_judged_and_not_counted() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        assert await evaluator.admit(asked(pod("10"), dry_run=True)) == AdmissionAllowed()
        assert isinstance(await evaluator.admit(asked(pod("11"), dry_run=True)), AdmissionDenied)
        assert await requested(context) == {}

    evaluating(main)


def test_without_the_gate_nobody_is_refused() -> None:
    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        assert await evaluator.admit(asked(pod("99"))) == AdmissionAllowed()

    evaluating(main, EnableQuotaAdmission=False)


def test_a_pod_does_not_wait_for_ever() -> None:
    async def stuck(request: ApiRequest) -> ApiResponse | None:
        if request.method == "PATCH":
            await asyncio.Event().wait()
        return None

    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        began = context.clock.monotonic()
        verdicts = await asyncio.gather(*(evaluator.admit(asked(pod("1"))) for _ in range(3)))
        assert set(verdicts) == {AdmissionDenied(400, "Internal error occurred: elastic quota evaluation timed out")}
        assert context.clock.monotonic() - began == pytest.approx(10)

    evaluating(main, disturb=stuck)


def test_a_server_that_cannot_be_reached_is_an_answer_and_later_pods_are_served() -> None:
    trouble = [True]

    async def away(request: ApiRequest) -> ApiResponse | None:
        if request.method == "PATCH" and trouble[0]:
            raise Unreachable("nobody there", sent=True)
        return None

    async def main(context: ManagerContext, evaluator: QuotaEvaluator) -> None:
        verdict = await evaluator.admit(asked(pod("1")))
        assert isinstance(verdict, AdmissionDenied)
        trouble[0] = False
        assert await evaluator.admit(asked(pod("1"))) == AdmissionAllowed()
        assert await requested(context) == {"cpu": "1"}

    evaluating(main, disturb=away)
