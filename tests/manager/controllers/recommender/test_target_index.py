"""Which pods a Recommendation speaks of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.profiles import Recommendation
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.controllers.recommender.workload_model import TargetIndex, UnsupportedTarget, parse_target


def pod(kind: str = "", name: str = "", api_version: str = "apps/v1", labels: dict[str, str] | None = None) -> Pod:
    owners = [{"kind": kind, "name": name, "apiVersion": api_version, "controller": True}] if kind else []
    meta = {"name": "p", "namespace": "team", "labels": labels or {}, "ownerReferences": owners}
    return convert({"metadata": meta}, Pod)


def wish(namespace: str = "team", **target: Any) -> Recommendation:
    return convert({"metadata": {"name": "r", "namespace": namespace}, "spec": {"target": target}}, Recommendation)


def workload(kind: str, name: str, api_version: str = "apps/v1", namespace: str = "team") -> Recommendation:
    return wish(namespace, type="workload", workload={"kind": kind, "name": name, "apiVersion": api_version})


def chosen(**labels: str) -> Recommendation:
    return wish(type="podSelector", podSelector={"matchLabels": labels})


HASHED = pod("ReplicaSet", "web-6d4", labels={"pod-template-hash": "6d4", "app": "web"})


@pytest.mark.parametrize(
    ("recommendation", "one", "matches"),
    [
        pytest.param(workload("Deployment", "web"), HASHED, True, id="deployment"),
        pytest.param(workload("Deployment", "web", ""), HASHED, True, id="no-api-version"),
        pytest.param(workload("Deployment", "web", "apps/v1beta1"), HASHED, True, id="older-version"),
        pytest.param(workload("Deployment", "web", "extra/v1"), HASHED, False, id="other-group"),
        pytest.param(workload("Deployment", "we"), HASHED, False, id="shorter-name"),
        pytest.param(workload("Deployment", "web", namespace="far"), HASHED, False, id="other-namespace"),
        pytest.param(workload("ReplicaSet", "web-6d4"), HASHED, True, id="replica-set"),
        pytest.param(workload("StatefulSet", "db"), pod("StatefulSet", "db"), True, id="stateful-set"),
        pytest.param(
            workload("CronJob", "nightly", "batch/v1"), pod("Job", "nightly-287", "batch/v1"), True, id="cron"
        ),
        pytest.param(chosen(app="web"), HASHED, True, id="selector"),
        pytest.param(chosen(app="db"), HASHED, False, id="other-selector"),
        pytest.param(chosen(app="web"), pod(labels={"app": "web"}), True, id="selector-without-owner"),
    ],
)
def test_matches(recommendation: Recommendation, one: Pod, matches: bool) -> None:
    directory = TargetIndex()
    directory.put(("team", "r"), parse_target(recommendation))
    assert directory.recommendations_of_pod(one) == ({("team", "r")} if matches else set())


@pytest.mark.parametrize(
    "recommendation",
    [
        wish(type="workload"),
        wish(type="workload", workload={"kind": "Deployment", "name": ""}),
        wish(type="podSelector"),
        wish(type="podSelector", podSelector={"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        wish(type="moon"),
    ],
    ids=["no-workload", "no-name", "no-selector", "bad-selector", "unknown-type"],
)
def test_targets_that_cannot_be_served(recommendation: Recommendation) -> None:
    assert isinstance(parse_target(recommendation), UnsupportedTarget)


wishes = st.sampled_from(
    [workload("Deployment", "web"), workload("ReplicaSet", "web-6d4"), chosen(app="web"), chosen(app="x")]
)


@given(story=st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), wishes)), max_size=12))
def test_any_sequence_equals_a_rebuild(story: list[tuple[str, Recommendation | None]]) -> None:
    directory, last = TargetIndex(), dict[str, Recommendation]()
    for name, recommendation in story:
        if recommendation is None:
            directory.drop(("team", name))
            last.pop(name, None)
        else:
            directory.put(("team", name), parse_target(recommendation))
            last[name] = recommendation
    rebuilt = TargetIndex()
    for name, recommendation in last.items():
        rebuilt.put(("team", name), parse_target(recommendation))
    assert directory.recommendations_of_pod(HASHED) == rebuilt.recommendations_of_pod(HASHED)
    assert len(directory) == len(rebuilt)
