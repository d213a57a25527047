"""Disruption budgets tell which evictions are not allowed."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.preemption.victims import DisruptionBudgets
from tests.scheduler.builders import make_pod
from tests.scheduler.preemption.cluster_fixture import budget

WEB, DB, BOTH = {"app": "web"}, {"app": "db"}, {"app": "web", "tier": "x"}


@pytest.mark.parametrize(
    ("budgets", "violating"),
    [
        pytest.param((), [], id="no-budgets"),
        pytest.param((budget("b", WEB, 1),), ["w1", "w2"], id="the-first-uses-it-up"),
        pytest.param((budget("b", WEB, 3),), [], id="enough-for-all"),
        pytest.param((budget("b", WEB, 0),), ["w0", "w1", "w2"], id="nothing-allowed"),
        pytest.param((budget("b", WEB, 1, granted=["w1"]),), ["w2"], id="a-granted-one-is-counted-already"),
        pytest.param((budget("b", WEB, 0, namespace="other"),), [], id="another-namespace"),
        pytest.param((budget("b", None, 0),), [], id="no-selector-covers-nobody"),
        pytest.param((budget("b", {}, 0),), [], id="an-empty-selector-covers-nobody"),
        pytest.param((budget("b", WEB, 2), budget("c", {"tier": "x"}, 0)), ["w2"], id="any-of-two-is-enough"),
        pytest.param(
            (budget("b", {}, 0, expressions=[{"key": "app", "operator": "Sideways"}]),), [], id="unreadable-selector"
        ),
    ],
)
def test_split(budgets: tuple[PodDisruptionBudget, ...], violating: list[str]) -> None:
    state = ClusterState()
    pods = [("w0", WEB), ("w1", WEB), ("d0", DB), ("w2", BOTH), ("bare", {})]
    infos = [state.pod_info(make_pod(name, labels=labels)) for name, labels in pods]
    over, fine = DisruptionBudgets(budgets).split(infos)
    assert [pod.name for pod in over] == violating
    assert [pod.name for pod in fine] == [name for name, _ in pods if name not in violating]


def test_every_split_starts_with_the_whole_budget() -> None:
    state = ClusterState()
    web = state.pod_info(make_pod("w", labels=WEB))
    budgets = DisruptionBudgets([budget("b", WEB, 1)])
    assert budgets.split([web]) == ([], [web])
    assert budgets.split([web]) == ([], [web])
