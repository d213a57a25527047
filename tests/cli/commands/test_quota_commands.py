"""`koord quota` as people run it, against one `koord up`; and how statements look."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from rich.console import Console

from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.cli.commands.quota import print_quota_tree
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodAssumed, QuotaPodRefused
from koord.scheduler.plugins.elastic_quota.explain import QuotaTreeReport
from koord.scheduler.plugins.elastic_quota.report import quota_reports
from tests.koord_up_process import KoordUpProcess, koord_up
from tests.scheduler.plugins.elastic_quota.quota_builders import pod, quota, quota_manager

LABEL = "quota.scheduling.koordinator.sh/"


def an_elastic_quota(name: str, least: str, most: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL + k: v for k, v in labels.items()}},
        "spec": {"min": {"cpu": least}, "max": {"cpu": most}},
    }


def a_pod(name: str, quota: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL + "name": quota} if quota else {}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}],
        },
    }


def koord(running: KoordUpProcess, *args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koord", *args, "--kubeconfig", str(running.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, input=given, timeout=60, check=False)


def kubectl(running: KoordUpProcess, given: list[dict[str, Any]]) -> None:
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), "create", "-f", "-"]
    done = subprocess.run(command, capture_output=True, text=True, input=yaml.safe_dump_all(given), check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def running() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "2") as cluster:
        kubectl(cluster, [an_elastic_quota("team", "2", "3")])
        kubectl(cluster, [a_pod("first", "team", "2"), a_pod("second", "team", "2")])
        waits = ("wait", "--for=condition=PodScheduled=False", "pod/second", "--timeout=60s")
        subprocess.run(["kubectl", "--kubeconfig", str(cluster.kubeconfig), *waits], check=True, capture_output=True)
        yield cluster


def test_the_statement_has_the_schedulers_own_numbers(running: KoordUpProcess) -> None:
    done = koord(running, "quota", "tree", "team", "-o", "json")
    assert done.returncode == 0, done.stderr
    (team,) = json.loads(done.stdout)["quotas"]
    assert team["used"] == {"cpu": 2000}
    assert team["asked"] == {"cpu": 4000}
    assert team["entitled"] == {"cpu": 3000}
    shown = koord(running, "quota", "tree").stdout
    assert "team" in shown
    assert "last refused default/second" in shown
    assert "unlimited" in shown  # the default group


def test_an_unknown_quota_is_one_line(running: KoordUpProcess) -> None:
    done = koord(running, "quota", "tree", "nobody")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "koord: there is no quota nobody\n")


def test_what_a_quota_would_say_of_pods(running: KoordUpProcess) -> None:
    given = [a_pod("a", "team", "2"), a_pod("b", "", "1"), a_pod("c", "no-such", "1")]
    done = koord(running, "quota", "what-if", "-f", "-", "-o", "json", given=yaml.safe_dump_all(given))
    assert done.returncode == 0, done.stderr
    a, b, c = sorted(json.loads(done.stdout), key=lambda one: str(one["pod"]))
    assert "Insufficient quotas, quotaName: team" in a["message"]
    assert (b["quota"], b["found_by"], b["message"]) == (DEFAULT_QUOTA, "having no other", "")
    assert "no-such" in c["message"]


# How it looks ------------------------------------------------------------------------------------------------------


def printed(found: QuotaTreeReport) -> list[str]:
    out = io.StringIO()
    print_quota_tree(Console(file=out, width=200, highlight=False, markup=False), found, 1060.0)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_statement_reads_like_a_banks() -> None:
    made = quota_manager(20, [quota("a", 10, 16), quota("b", 10, 20)], [pod("p0", "a", 12), pod("p1", "a", 4)])
    made.handle(QuotaPodAssumed("uid-p0"))
    asking = pod("p2", "a", 8)
    refusal = made.check_pod(asking)
    assert refusal is not None
    made.handle(QuotaPodRefused("default/p2", "a", refusal, 1000.0))
    lines = printed(QuotaTreeReport(tuple(quota_reports(made))))
    assert lines[0].split("  ")[0] == "QUOTA"
    assert lines[1].split() == ["a", "cpu", "10", "16", "16", "12", "16", "-", "b", "6"]
    assert lines[2].split() == ["b", "cpu", "10", "20", "0", "0", "0", "a", "6", "-"]
    assert lines[-1].startswith("a last refused default/p2 1m ago: Insufficient quotas, quotaName: a, runtime: cpu:16")


def test_overuse_and_shrunk_guarantees_are_told() -> None:
    made = quota_manager(6, [quota("a", 8, 16)], [pod("p0", "a", 12)])
    made.handle(QuotaPodAssumed("uid-p0"))
    lines = printed(QuotaTreeReport(tuple(quota_reports(made)), {"x/y": "no quantity"}))
    assert "8 (now 6)" in lines[1]
    assert "a uses more than it is entitled to: cpu 6" in lines
    assert "x/y counts for nothing: no quantity" in lines


def test_a_statement_survives_the_wire() -> None:
    made = quota_manager(20, [quota("a", 10, 16)], [pod("p0", "a", 12)])
    found = QuotaTreeReport(tuple(quota_reports(made)))
    assert msgspec.convert(json.loads(msgspec.json.encode(found)), QuotaTreeReport) == found
