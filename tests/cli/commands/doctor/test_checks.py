"""Every declared finding appears when its fault is there, with a command to repair it, and not on a healthy cluster."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

from koord.cli.commands.doctor.api_server_checks import OLDEST_MINOR_OF_CHART
from koord.cli.commands.doctor.command import report_text
from koord.cli.commands.doctor.facts import ClusterFacts, KoordletAnswers, ProgramAccess, Unread
from koord.cli.commands.doctor.finding import Finding
from koord.cli.commands.doctor.program_checks import image_version
from koord.cli.commands.doctor.registry import CHECK_IDS, CHECKS, DIAGNOSES, run_checks
from koord.manager.webhook_server import cert_store
from tests.cli.commands.doctor import healthy_cluster as cluster

ROOT = Path(__file__).parents[4]
Obj = dict[str, Any]
REFUSED = Unread(verb="list", resource="leases.coordination.k8s.io", namespace=cluster.NAMESPACE, why="403 Forbidden")


def changed(obj: Any, *path: Any, to: Any) -> Any:
    """Return a copy with another value at a path of keys and indexes."""
    key, *rest = path
    made: Any = list(obj) if isinstance(obj, list | tuple) else dict(obj)
    made[key] = changed(made[key], *rest, to=to) if rest else to
    return made


def first(objects: tuple[Obj, ...], *path: Any, to: Any) -> tuple[Obj, ...]:
    return (changed(objects[0], *path, to=to), *objects[1:])


def waiting_pod(**status: Any) -> tuple[Obj, ...]:
    return first(cluster.pods(), "status", to=status)


CRASHES = {
    "name": "main",
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
    "lastState": {"terminated": {"exitCode": 2, "message": "cannot detect cgroup driver"}},
}
CALLED = cluster.webhooks("MutatingWebhookConfiguration")
FAILING_CLOSED = first(CALLED, "webhooks", 0, "failurePolicy", to="Fail")
UNREADY_MANAGERS = tuple(
    one
    if one["metadata"]["labels"]["koord-app"] != "koord-manager"
    else changed(one, "status", "conditions", 0, "status", to="False")
    for one in cluster.pods()
)
UNSUPPORTED = {"type": "koordinator.sh/CPUBurst", "status": "False", "reason": "Unsupported", "message": "no file"}
DEGRADED = {"type": "koordinator.sh/CPUBurst", "status": "True", "reason": "Degraded", "message": "one file"}
REJECTED = {"capabilities": [{"knob": "memory.high", "state": "rejected", "errno": "EINVAL"}]}
ELSEWHERE = tuple(changed(one, "metadata", "namespace", to="elsewhere") for one in cluster.deployments())
NOTHING: dict[str, Any] = {
    "crds": (),
    "deployments": (),
    "daemon_sets": (),
    "all_deployments": (),
    "all_daemon_sets": (),
    "mutating_webhooks": (),
    "validating_webhooks": (),
    "config_maps": (),
}


def yarn_answer(failure: str, error: str, *problems: str) -> Obj:
    """Return what koord-yarn-operator says of its one cluster."""
    return {"clusters": [{"id": "blue", "failure": failure, "error": error, "problems": list(problems)}]}


# finding -> what of the healthy cluster is replaced so that it appears
FAULTS: dict[str, dict[str, Any]] = {
    "server-too-old": {"version": {"major": "1", "minor": "18", "gitVersion": "v1.18.1"}},
    "server-older-than-chart": {"version": {"major": "1", "minor": "31+", "gitVersion": "v1.31.9"}},
    "server-version-unclear": {"version": {"gitVersion": "main"}},
    "api-group-missing": {"group_versions": ("apps/v1",)},
    "crds-not-installed": NOTHING,
    "crd-missing": {"crds": cluster.crds()[1:]},
    "crd-version-not-served": {"crds": first(cluster.crds(), "spec", "versions", 0, "served", to=False)},
    "crd-not-established": {"crds": first(cluster.crds(), "status", "conditions", to=[])},
    "crd-storage-version-differs": {"crds": first(cluster.crds(), "spec", "versions", 0, "storage", to=False)},
    "crd-old-stored-versions": {"crds": first(cluster.crds(), "status", "storedVersions", to=["v1alpha1", "v1beta9"])},
    "not-installed": NOTHING,
    "installed-elsewhere": {"deployments": (), "daemon_sets": (), "all_deployments": ELSEWHERE},
    "program-missing": {"deployments": cluster.deployments()[1:]},
    "program-not-ready": {"deployments": first(cluster.deployments(), "status", to={})},
    "pod-waiting": {"pods": waiting_pod(containerStatuses=[CRASHES])},
    "pod-not-scheduled": {
        "pods": waiting_pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "no nodes"}])
    },
    "lease-missing": {"leases": cluster.leases()[1:]},
    "lease-without-holder": {"leases": first(cluster.leases(), "spec", "holderIdentity", to="")},
    "lease-stale": {"leases": first(cluster.leases(), "spec", "renewTime", to="2026-03-01T11:55:00Z")},
    "lease-foreign-holder": {"leases": first(cluster.leases(), "spec", "holderIdentity", to="laptop_1")},
    "images-of-a-program-differ": {"pods": first(cluster.pods(), "spec", "containers", 0, "image", to="x:0.9.0")},
    "versions-differ": {
        "deployments": first(
            cluster.deployments(), "spec", "template", "spec", "containers", 0, "image", to="example.org/koord:v1.1.0"
        )
    },
    "command-version-differs": {"koord_version": "2.0.0"},
    "rights-missing": {
        "access": (ProgramAccess(program="koordlet", account="koordlet", asked=9, denied=("patch nodes/status",)),)
    },
    "webhook-configuration-missing": {"mutating_webhooks": ()},
    "webhook-left-over": {"deployments": ()},
    "webhook-service-missing": {"services": ()},
    "webhook-unreachable-fail": {"pods": UNREADY_MANAGERS, "mutating_webhooks": FAILING_CLOSED},
    "webhook-unreachable-ignore": {"pods": UNREADY_MANAGERS},
    "webhook-certificate-missing": {
        "serving_certificate": Unread(verb="get", resource="secrets", why="404", absent=True)
    },
    "webhook-certificate-unreadable": {"serving_certificate": b"-----BEGIN CERTIFICATE-----"},
    "webhook-certificate-expired": {"at": cluster.AT + timedelta(days=200 * 365)},
    "webhook-certificate-expires-soon": {},  # below: its moment depends on the certificate
    "webhook-certificate-other-name": {
        "serving_certificate": cert_store.generate("elsewhere.svc", cluster.AT, cluster.material()).cert
    },
    "webhook-ca-missing": {"mutating_webhooks": cluster.webhooks("MutatingWebhookConfiguration", b"")},
    "webhook-ca-mismatch": {
        "validating_webhooks": cluster.webhooks("ValidatingWebhookConfiguration", cluster.other_material().ca_cert)
    },
    "node-metric-missing": {"node_metrics": (cluster.node_metric("a"),)},
    "node-metric-never-reported": {"node_metrics": (cluster.node_metric("a", None), cluster.node_metric("b"))},
    "node-metric-stale": {"node_metrics": (cluster.node_metric("a", "2026-03-01T11:50:00Z"), cluster.node_metric("b"))},
    "node-metric-from-the-future": {
        "node_metrics": (cluster.node_metric("a", "2026-03-01T12:05:00Z"), cluster.node_metric("b"))
    },
    "koordlet-missing": {"pods": cluster.pods()[:-1], "koordlets": {"a": cluster.answers()}},
    "koordlet-not-ready": {"pods": (*cluster.pods()[:-1], changed(cluster.pods()[-1], "status", to={}))},
    "koordlet-silent": {"koordlets": {"a": KoordletAnswers(capabilities="403 Forbidden", hooks="403 Forbidden")}},
    "koordlets-not-asked": {"koordlets_not_asked": 7},
    "strategy-unsupported": {"nodes": (cluster.node("a", UNSUPPORTED), cluster.node("b"))},
    "strategy-degraded": {"nodes": (cluster.node("a", DEGRADED), cluster.node("b"))},
    "kernel-file-rejected": {"koordlets": {"a": KoordletAnswers(capabilities=REJECTED, hooks={})}},
    "capabilities-not-told": {"nodes": ({"metadata": {"name": "a"}},), "koordlets": {}},
    "hooks-not-connected": {
        "koordlets": {"a": cluster.answers(connections=[{"name": "nri", "connected": False, "state": "no socket"}])}
    },
    "hooks-fail": {
        "koordlets": {"a": cluster.answers(hooks=[{"name": "CPUSet", "failures": 3, "lastFailure": "EINVAL"}])}
    },
    "safe-mode": {"koordlets": {"a": cluster.answers(safeMode=True)}},
    "hooks-not-told": {"koordlets": {"a": KoordletAnswers(capabilities={}, hooks="404 page not found")}},
    "program-twice": {
        "all_deployments": (
            *cluster.deployments(),
            cluster.workload("koord-manager", "other", "ghcr.io/koordinator-sh/koord-manager:v1.8.0"),
        )
    },
    "koordinator-program": {
        "all_daemon_sets": (cluster.workload("koordlet", "other", "ghcr.io/koordinator-sh/koordlet:v1.8.0"),)
    },
    "sigs-descheduler": {
        "all_cron_jobs": (
            {
                "metadata": {"name": "evictor", "namespace": "kube-system"},
                "spec": {
                    "jobTemplate": {
                        "spec": {
                            "template": {
                                "spec": {"containers": [{"image": "registry.k8s.io/descheduler/descheduler:v0.34.0"}]}
                            }
                        }
                    }
                },
            },
        )
    },
    "hami": {"all_daemon_sets": (cluster.workload("hami-device-plugin", "hami", "projecthami/hami:v2"),)},
    "mps": {
        "all_daemon_sets": (cluster.workload("nvidia-device-plugin-mps-control-daemon", "gpu", "nvcr.io/nvidia/x:1"),)
    },
    "other-node-agent": {"all_daemon_sets": (cluster.workload("volcano-agent", "volcano-system", "volcanosh/x:1"),)},
    "configuration-error": {
        "config_maps": (
            cluster.config_map(
                "slo-controller-config",
                {
                    "resource-threshold-config": (
                        '{\n  "clusterStrategy": {\n    "enable": true,\n    "cpuSuppressThresholdPercent": 150\n  }\n}'
                    )
                },
            ),
        )
    },
    "configuration-warning": {
        "config_maps": (
            cluster.config_map(
                "slo-controller-config", {"resource-qos-config": '{"clusterStrategy": {"lsClass": {}}}'}
            ),
        )
    },
    "configuration-missing": {"config_maps": ()},
    "yarn-operator-silent": {"yarn": "no pod of koord-yarn-operator runs"},
    "yarn-cluster-not-reached": {"yarn": yarn_answer("unreachable", "rm:8033: Connection refused")},
    "yarn-access-denied": {"yarn": yarn_answer("denied", "User yarn doesn't have permission")},
    "yarn-cluster-failing": {"yarn": yarn_answer("refused", "unrecognized node: nm-0:8041")},
    "yarn-node-managers-left-out": {"yarn": yarn_answer("", "", "node a: the annotation is missing")},
}


def broken(fault: dict[str, Any]) -> ClusterFacts:
    return msgspec.structs.replace(cluster.healthy(), **fault)


def of_id(facts: ClusterFacts, finding: str) -> list[Finding]:
    (check,) = [one.check for one in DIAGNOSES if one.id == finding]
    return [one for one in run_checks(facts, [check]).findings if one.id == finding]


def test_a_healthy_cluster_has_nothing_but_ok() -> None:
    report = run_checks(cluster.healthy())
    assert [(one.id, one.what) for one in report.findings if one.severity != "ok"] == []
    assert [one.check for one in report.findings] == list(CHECK_IDS)
    assert report.skipped == ()


def test_every_declared_finding_has_a_fault_here() -> None:
    assert set(FAULTS) == {one.id for one in DIAGNOSES}
    assert len({one.id for one in DIAGNOSES}) == len(DIAGNOSES)
    assert {one.check for one in DIAGNOSES} == set(CHECK_IDS)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"webhook-certificate-expires-soon"}))
def test_a_fault_is_found(name: str) -> None:
    (diagnosis,) = [one for one in DIAGNOSES if one.id == name]
    found = of_id(broken(FAULTS[name]), name)
    assert found
    for one in found:
        assert (one.check, one.severity, one.why) == (diagnosis.check, diagnosis.severity, diagnosis.why)
        assert one.what
        assert "{" not in one.fix
        assert one.fix or diagnosis.severity == "info"


def test_a_certificate_is_told_of_before_its_end() -> None:
    end = cert_store.not_after(cluster.material().cert)
    for left, ids in ((29, ["webhook-certificate-expires-soon"]), (31, [])):
        facts = broken({"at": end - timedelta(days=left)})
        found = [one.id for one in run_checks(facts, ["webhook-certificate"]).findings if one.severity != "ok"]
        assert found == ids


def test_the_line_is_that_inside_of_the_entry() -> None:
    (one,) = of_id(broken(FAULTS["configuration-error"]), "configuration-error")
    place = "ConfigMap slo-controller-config, resource-threshold-config, line 4"
    assert one.what.startswith(f"{place}: clusterStrategy.cpuSuppressThresholdPercent is 150")
    assert one.fix == "kubectl -n koordinator-system edit configmap slo-controller-config"


def test_a_crash_tells_the_last_words() -> None:
    (one,) = of_id(broken(FAULTS["pod-waiting"]), "pod-waiting")
    for words in ("CrashLoopBackOff", "cannot detect cgroup driver", "exit code 2"):
        assert words in one.what


def test_endpoint_slices_count_before_pods() -> None:
    labels = {"kubernetes.io/service-name": "koordinator-webhook-service"}
    slices = ({"metadata": {"labels": labels}, "endpoints": [{"conditions": {"ready": False}}]},)
    assert of_id(broken({"endpoint_slices": slices}), "webhook-unreachable-ignore")
    ready = first(slices, "endpoints", 0, "conditions", "ready", to=True)
    assert not of_id(broken({"endpoint_slices": ready, "pods": UNREADY_MANAGERS}), "webhook-unreachable-ignore")


@pytest.mark.parametrize(
    "field", [name for name in ClusterFacts.__struct_fields__ if name in NOTHING or name == "leases"]
)
def test_what_cannot_be_read_is_unknown_and_never_ok(field: str) -> None:
    report = run_checks(broken({field: REFUSED}))
    unknown = [one for one in report.findings if one.severity == "unknown"]
    assert unknown
    for one in unknown:
        assert one.what.startswith("cannot list leases.coordination.k8s.io in namespace koordinator-system: 403")
        assert one.fix == "kubectl auth can-i list leases.coordination.k8s.io -n koordinator-system"
        assert not [other for other in report.findings if other.check == one.check and other.severity == "ok"]


def test_without_an_installation_nothing_is_an_error() -> None:
    report = run_checks(broken(NOTHING))
    assert report.count("error") == 0
    assert {one.check for one in report.skipped} == {one.id for one in CHECKS if one.programs}


def test_programs_of_the_servers_own_process_need_no_pods() -> None:
    report = run_checks(broken({**NOTHING, "crds": cluster.crds(), "in_process": frozenset({"koord-manager"})}))
    assert report.count("error") == 0
    assert "the programs run in the API server's own process" in {one.why for one in report.skipped}


def test_a_sigs_descheduler_alone_is_no_conflict() -> None:
    fault = {**FAULTS["sigs-descheduler"], "deployments": cluster.deployments()[:1]}
    assert [one["metadata"]["name"] for one in fault["deployments"]] == ["koord-manager"]
    assert not of_id(broken(fault), "sigs-descheduler")


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("koord:1.2.3", "1.2.3"),
        ("localhost:5000/koord:v1.2.3-rc.1", "1.2.3-rc.1"),
        ("koord:1.2@sha256:00", "1.2"),
        ("koord@sha256:00", ""),
        ("koord:latest", ""),
        ("localhost:5000/koord", ""),
    ],
)
def test_the_version_of_an_image(image: str, version: str) -> None:
    assert image_version(image) == version


def test_names_cannot_smuggle_commands_or_escapes() -> None:
    evil = cluster.workload("volcano-agent; rm -rf /\x1b[2J", "x$(id)", "y:1")
    (one,) = of_id(broken({"all_daemon_sets": (evil,)}), "other-node-agent")
    assert one.fix == "kubectl -n 'x$(id)' delete daemonset 'volcano-agent; rm -rf / [2J'"
    assert "\x1b" not in one.what


def test_what_cannot_be_read_is_printed_once_with_every_check_that_wants_it() -> None:
    unread = Unread(verb="list", resource="mutatingwebhookconfigurations", why="403 Forbidden")
    report = run_checks(msgspec.structs.replace(cluster.healthy(), mutating_webhooks=unread))
    assert len([one for one in report.findings if one.id == "not-readable"]) == 3
    text = " ".join(click.unstyle(report_text(report)).split())
    assert text.count("cannot list mutatingwebhookconfigurations") == 1
    assert "The checks webhooks, webhook-service, webhook-certificate cannot conclude anything without it." in text


def test_a_release_is_repaired_by_helm() -> None:
    """What kubectl applies over a release is undone by its next upgrade."""
    annotations = {"meta.helm.sh/release-name": "its name", "meta.helm.sh/release-namespace": "default"}
    named = tuple(changed(one, "metadata", "annotations", to=annotations) for one in cluster.deployments()[1:])
    upgrade = "helm upgrade 'its name' charts/koord --namespace default --reset-then-reuse-values --wait"
    (missing,) = of_id(broken({"deployments": named}), "program-missing")
    assert missing.fix == f"{upgrade} --set {missing.objects[0].removeprefix('koord-')}.enabled=true"
    denied = {**FAULTS["rights-missing"], "deployments": named}
    assert {one.fix for one in of_id(broken(denied), "rights-missing")} == {upgrade}
    (by_hand,) = of_id(broken(FAULTS["program-missing"]), "program-missing")
    assert by_hand.fix.startswith("koord manifests ")


def test_the_oldest_server_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "charts/koord/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">=1.{OLDEST_MINOR_OF_CHART}.0-0"
