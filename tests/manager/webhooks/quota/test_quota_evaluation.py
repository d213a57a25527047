"""How much of a quota a pod takes, and what is said when it is too much."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_QUOTA_ADMISSION, A_QUOTA_CHILD_REQUEST, A_REPLACE_RESOURCES
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.webhooks.quota.admission import (
    QuotaExceeded,
    QuotaFits,
    evaluate,
    is_limited_quota,
    pod_quota_request,
)
from koord.values import resources as vector
from tests.manager.webhooks.quota.quota_builders import quota

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def elastic(used: Any = None, limit: Any = None, **more: Any) -> ElasticQuota:
    notes = {
        key: json.dumps(value) for key, value in ((A_QUOTA_CHILD_REQUEST, used), (A_QUOTA_ADMISSION, limit)) if value
    }
    return convert(quota("q", annotations=notes, **more), ElasticQuota)


def pod(requests: dict[str, Any], **more: Any) -> Pod:
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}], "overhead": more.pop("overhead", None)}
    return convert({"metadata": {"name": "p", **more.pop("metadata", {})}, "spec": spec, **more}, Pod)


def asked(pod: Pod, quota: ElasticQuota, **more: Any) -> dict[str, str]:
    return vector.to_wire(pod_quota_request(pod, quota, NOW, **more))


@pytest.mark.parametrize(
    ("given", "request_"),
    [
        pytest.param(pod({"cpu": 1, "x": 3, "memory": 0}), {"cpu": "1"}, id="only-keys-of-max-and-no-zeros"),
        pytest.param(pod({"cpu": 1}, status={"phase": "Succeeded"}), {}, id="ended"),
        pytest.param(
            pod(
                {"cpu": 1},
                metadata={"deletionTimestamp": "2025-12-31T23:59:00Z", "deletionGracePeriodSeconds": 30},
            ),
            {},
            id="past-its-grace",
        ),
        pytest.param(
            pod(
                {"cpu": 1},
                metadata={"deletionTimestamp": "2025-12-31T23:59:50Z", "deletionGracePeriodSeconds": 30},
            ),
            {"cpu": "1"},
            id="within-its-grace",
        ),
    ],
)
def test_request(given: Pod, request_: dict[str, str]) -> None:
    assert asked(given, elastic()) == request_


def test_replaced_resources_count_only_when_asked_for() -> None:
    replaced = pod(
        {"cpu": 2, "memory": "1Gi", "x": 1}, metadata={"annotations": {A_REPLACE_RESOURCES: "cpu:batch,memory:,x:y"}}
    )
    quota = elastic(max={"cpu": 9, "memory": "9Gi", "batch": 9000, "y": 3})
    assert asked(replaced, quota) == {"cpu": "2", "memory": "1Gi"}
    assert asked(replaced, quota, transform=True) == {"batch": "2k", "y": "1"}


def test_overhead_counts_unless_the_gate_says_otherwise() -> None:
    wrapped = pod({"cpu": 1}, overhead={"cpu": "500m"})
    assert asked(wrapped, elastic()) == {"cpu": "1500m"}
    assert asked(wrapped, elastic(), ignore_overhead=True) == {"cpu": "1"}


@pytest.mark.parametrize(
    ("quota", "request_", "words"),
    [
        pytest.param(
            elastic({"cpu": 9}, max={"cpu": 9}, min={}),
            {"cpu": "1"},
            "exceeded quota: team/q, requested: cpu=1, used: cpu=9, limited: cpu=9",
            id="one",
        ),
        pytest.param(
            elastic({"cpu": 9, "memory": "10Gi"}),
            {"cpu": "1500m", "memory": "1Gi"},
            "exceeded quota: team/q, requested: cpu=1500m,memory=1Gi, used: cpu=9,memory=10Gi,"
            " limited: cpu=10,memory=10Gi",
            id="two",
        ),
        pytest.param(
            elastic({"cpu": 1}, {"cpu": 1}),
            {"cpu": "1"},
            "exceeded quota: team/q, requested: cpu=1, used: cpu=1, limited: cpu=1",
            id="its-own-limit",
        ),
        pytest.param(elastic({"memory": "99Gi"}), {"cpu": "1"}, None, id="over-in-what-is-not-asked"),
        pytest.param(elastic({"cpu": 9}), {"cpu": "1"}, None, id="just-fits"),
        pytest.param(elastic(max={"x": 1}, min={}), {"x": "5"}, None, id="a-quota-without-counted-resources"),
    ],
)
def test_verdict(quota: ElasticQuota, request_: dict[str, str], words: str | None) -> None:
    verdict = evaluate(quota, vector.parse(request_))
    assert (verdict.message if isinstance(verdict, QuotaExceeded) else None) == words


def test_a_spoilt_sum_is_said_and_not_taken_for_zero() -> None:
    spoilt = convert(quota("q", annotations={A_QUOTA_CHILD_REQUEST: "{"}), ElasticQuota)
    assert isinstance(evaluate(spoilt, vector.parse({"cpu": 1})), MalformedAnnotation)


@pytest.mark.parametrize(
    ("name", "limited"),
    [("", False), ("koordinator-default-quota", False), ("koordinator-root-quota", False), ("a", True)],
)
def test_who_is_limited(name: str, limited: bool) -> None:
    assert is_limited_quota(name) is limited


@given(used=st.integers(0, 12), wanted=st.integers(1, 12))
def test_what_fits_leaves_a_sum_within_the_limit(used: int, wanted: int) -> None:
    verdict = evaluate(elastic({"cpu": used}), vector.parse({"cpu": wanted}))
    if used + wanted <= 10:
        assert isinstance(verdict, QuotaFits)
        assert vector.to_wire(verdict.total or {}) == {"cpu": str(used + wanted)}
    else:
        assert isinstance(verdict, QuotaExceeded)
