"""Quotas over HTTP and as metrics: Koordinator's keys, and series that go with their quota."""

from __future__ import annotations

from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.metrics import KoordinatorMetrics
from koord.scheduler.plugins.elastic_quota.explain import (
    quota_cache_of,
    quota_summaries,
    quota_summary,
    report_quota_tree,
    report_quota_verdicts,
)
from koord.scheduler.plugins.elastic_quota.metrics import register_quota_metrics
from koord.telemetry import metrics
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.builders import make_pod
from tests.scheduler.plugins.elastic_quota.quota_cluster import QuotaCluster, make_quota, of_quota

KEYS = {
    *("name", "parentName", "isParent", "runtimeVersion", "allowLentResource", "tree", "max", "min", "autoScaleMin"),
    *("used", "nonPreemptibleUsed", "request", "nonPreemptibleRequest", "sharedWeight", "runtime", "childRequest"),
    *("allocated", "guaranteed"),
}


def scene() -> QuotaCluster:
    made = QuotaCluster({"a": "8"})
    made.quotas(make_quota("top", {"cpu": "6"}, {"cpu": "8"}, is_parent="true"))
    made.quotas(make_quota("q", {"cpu": "2"}, {"cpu": "4"}, parent="top"))
    made.place(of_quota("p", "q", cpu="3", fixed=False))
    made.refusal(of_quota("w", "q", cpu="2"))
    return made


def test_a_summary_has_koordinators_keys() -> None:
    made = scene()
    found = quota_summary(made.ledger, "q", pods=True)
    assert found is not None
    assert found.keys() == KEYS | {"podCache"}
    assert (found["parentName"], found["used"], found["request"], found["runtime"]) == (
        "top",
        {"cpu": "3"},
        {"cpu": "5"},
        {"cpu": "4"},
    )
    assert found["podCache"] == {
        "default/p": {"isAssigned": True, "resource": {"cpu": "3"}},
        "default/w": {"isAssigned": False, "resource": {"cpu": "2"}},
    }
    assert quota_summary(made.ledger, "nobody", pods=False) is None
    assert {"top", "q"} <= quota_summaries(made.ledger, "", pods=False).keys()
    assert not quota_summaries(made.ledger, "no-such-tree", pods=False)


def test_the_ledger_is_found_in_the_profiles() -> None:
    made = scene()
    assert (
        quota_cache_of([SchedulerProfile("empty", {}), SchedulerProfile("with", {Plugin.admit: [made.quota]})])
        is made.ledger
    )
    assert quota_cache_of([SchedulerProfile("empty", {})]) is None


def test_the_tree_tells_of_refusals_and_of_what_cannot_be_read() -> None:
    made = scene()
    made.quotas(make_quota("broken", {}, {"cpu": "many"}))
    told = report_quota_tree(made.ledger)
    (q,) = (one for one in told.quotas if one.quota == "q")
    assert q.last_refusal is not None
    assert (q.last_refusal.pod, q.last_refusal.at) == ("default/w", 1000.0)
    assert list(told.unreadable) == ["quotas/broken"]


def test_a_question_counts_for_the_next() -> None:
    made = QuotaCluster({"a": "8"})
    made.quotas(
        make_quota("q", {}, {"cpu": "3"}),
        make_quota("team", {}, {"cpu": "9"}, namespace="team"),
        make_quota("wide", {}, {"cpu": "9"}, annotations={"namespaces": '["far"]'}),
    )
    pods = [of_quota("a", "q", cpu="2"), of_quota("b", "q", cpu="2"), of_quota("c", "no-such", cpu="1")]
    pods += [make_pod("d", namespace=space, cpu="1") for space in ("team", "far", "else")]
    told = report_quota_verdicts(made.ledger, [made.state.pod_info(pod) for pod in pods])
    assert [bool(one.message) for one in told] == [False, True, True, False, False, False]
    assert [one.found_by for one in told[3:]] == [
        "the name of its namespace",
        "the quota's list of namespaces",
        "having no other",
    ]
    assert (told[2].quota, told[2].found_by) == ("no-such", "its label")


def test_a_quota_that_is_gone_has_no_series() -> None:
    """R29."""
    made, registry, leads = scene(), MetricRegistry(), [True]
    register_quota_metrics(registry, KoordinatorMetrics(registry), made.ledger, WallClock(), lambda: leads[0])

    def served() -> str:
        return metrics.render([registry]).decode()

    used = 'scheduler_elastic_quota_status{name="q",resource="cpu",tree="",is_parent="false",parent="top",field="used"}'
    assert "3000" in next(line for line in served().splitlines() if _alike(line, used))
    made.drop_quota("q")
    assert 'name="q"' not in served()
    leads[0] = False
    assert "name=" not in served()


def test_the_spec_of_a_quota_is_served() -> None:
    made, registry = scene(), MetricRegistry()
    register_quota_metrics(registry, KoordinatorMetrics(registry), made.ledger, WallClock(), lambda: True)
    found = {one.name: dict(one.values) for one in registry.readings()}
    spec, status = found["scheduler_elastic_quota_spec"], found["scheduler_elastic_quota_status"]
    assert {labels[-1] for labels in spec} == {"min", "max", "sharedWeight"}
    assert "q" in {labels[0] for labels in spec}
    assert spec.items() <= status.items()


def test_operations_are_timed_for_those_who_look() -> None:
    made, registry = scene(), MetricRegistry()
    register_quota_metrics(registry, KoordinatorMetrics(registry), made.ledger, WallClock(), lambda: True)
    pod = of_quota("timed", "q", cpu="1")
    made.place(pod)
    made.gone(pod)
    made.drop_quota("q")
    text = metrics.render([registry]).decode()
    for operation in ("OnPodAdd", "ReservePod", "UnreservePod", "OnPodDelete", "DeleteQuota"):
        assert f'scheduler_elastic_quota_process_latency_count{{operation="{operation}"}} 1' in text


def _alike(line: str, wanted: str) -> bool:
    """Whatever the order of the labels."""
    return set(line.partition(" ")[0].strip("}").replace("{", ",").split(",")) == set(
        wanted.strip("}").replace("{", ",").split(",")
    )
