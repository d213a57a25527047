"""What is told of a move, on facts of an installation of Koordinator's chart 1.8 and on changed ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest
import yaml

from koord.cli.commands.doctor.facts import Unread
from koord.cli.commands.doctor.installation import HelmRelease
from koord.cli.commands.migrate_from_koordinator.command import refusal, report_text, values_text
from koord.cli.commands.migrate_from_koordinator.facts import KoordinatorFacts
from koord.cli.commands.migrate_from_koordinator.report import MoveReport, documentation_rows, make_report
from tests.koordinator_installation import NAMESPACE, PREDICTIONS, RELEASE, koordinator_objects

Obj = dict[str, Any]

SCHEMA = json.loads((Path(__file__).parents[4] / "charts" / "koord" / "values.schema.json").read_text())
FIELDS = {
    "Deployment": "deployments",
    "DaemonSet": "daemon_sets",
    "ConfigMap": "config_maps",
    "Service": "services",
    "ServiceAccount": "service_accounts",
    "Lease": "leases",
    "Role": "roles",
    "RoleBinding": "role_bindings",
    "ClusterRole": "cluster_roles",
    "ClusterRoleBinding": "cluster_role_bindings",
    "PriorityClass": "priority_classes",
    "MutatingWebhookConfiguration": "mutating_webhooks",
    "ValidatingWebhookConfiguration": "validating_webhooks",
    "CustomResourceDefinition": "crds",
}
Change = Callable[[Obj], None]


def facts_of(objects: list[Obj], version: str = "v1.35.1") -> KoordinatorFacts:
    lists: Obj = dict.fromkeys(FIELDS.values(), ())
    for one in objects:
        if name := FIELDS.get(one["kind"]):
            lists[name] = (*lists[name], one)
    return KoordinatorFacts(
        namespace=NAMESPACE,
        version={"gitVersion": version},
        all_deployments=lists["deployments"],
        all_daemon_sets=lists["daemon_sets"],
        **lists,
    )


def report_of(*changes: tuple[str, str, Change], by_helm: bool = True, version: str = "v1.35.1") -> MoveReport:
    """Return the report on an installation of which named objects were changed."""
    objects = copy.deepcopy(koordinator_objects(by_helm=by_helm))
    for kind, name, change in changes:
        (one,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        change(one)
    return make_report(facts_of(objects, version), "1.2.3")


def container(workload: Obj) -> Obj:
    found: Obj = workload["spec"]["template"]["spec"]["containers"][0]
    return found


def with_words(*words: str) -> Change:
    return lambda workload: container(workload)["args"].extend(words)


def ids(report: MoveReport, severity: str = "") -> set[str]:
    return {one.id for one in report.findings if severity in ("", one.severity)}


def found(report: MoveReport, id: str) -> list[str]:
    return [one.what for one in report.findings if one.id == id]


CARRIED_FOLDERS = {"predictionCheckpointDir": PREDICTIONS}


class TestAnUnchangedInstallation:
    def test_nothing_stands_in_the_way_and_only_the_usage_models_are_carried_over(self) -> None:
        report = report_of()
        assert ids(report, "error") == set()
        assert ids(report, "warning") == {"device-daemon-goes"}
        assert report.values == {"koordlet": {"hostDirs": CARRIED_FOLDERS}}
        assert report.release == HelmRelease(name="koordinator", namespace="default")
        assert [one.program for one in report.programs] == [
            "koord-manager",
            "koord-scheduler",
            "koord-descheduler",
            "koordlet",
        ]

    def test_every_flag_and_gate_of_the_chart_is_taken(self) -> None:
        for program in report_of().programs:
            assert [one for one in (*program.flags, *program.gates) if one.verdict == "refused"] == []
            assert program.flags

    def test_all_definitions_are_known_and_stay(self) -> None:
        report = report_of()
        assert len(report.definitions) == 13
        assert all(one.known and not one.removed and not one.missing for one in report.definitions)

    def test_each_object_has_its_outcome(self) -> None:
        outcomes = {(one.kind, one.name): one.outcome for one in report_of().objects}
        assert outcomes["Deployment", "koord-manager"] == "replaced"
        assert outcomes["DaemonSet", "koord-device-daemon"] == "removed"
        assert outcomes["ConfigMap", "slo-controller-config"] == "replaced"
        assert outcomes["ClusterRoleBinding", "koordlet-rolebinding"] == "replaced"
        assert outcomes["Role", "koord-leader-election-role"] == "removed"
        assert set(outcomes.values()) == {"replaced", "removed"}

    def test_the_commands_name_the_release(self) -> None:
        report = report_of()
        assert [one.command.split()[0] for one in report.move] == ["kubectl", "koord", "kubectl", "helm", "koord"]
        assert "helm upgrade koordinator charts/koord --namespace default -f koord-values.yaml" in refusal(report)
        assert [one.command for one in report.back] == [
            "koord restore-nodes --koordlet-only --namespace koordinator-system",
            "helm rollback koordinator --namespace default --wait --timeout 15m",
        ]

    def test_the_text_fits_a_terminal(self) -> None:
        text = click.unstyle(report_text(report_of()))
        assert "Nothing stands in the way." in text
        assert "koord-manager: registry.example/koordinator-sh/koord-manager:v1.8.0" in " ".join(text.split())
        assert [line for line in text.splitlines() if len(line) > 80 and not line.lstrip().startswith("$")] == []


def test_without_helm_the_chart_takes_ownership() -> None:
    report = report_of(by_helm=False)
    assert report.release is None
    assert "--take-ownership" in refusal(report)
    outcomes = {(one.kind, one.name): one.outcome for one in report.objects}
    assert outcomes["DaemonSet", "koord-device-daemon"] == "left"
    assert [one.command for one in report.back] == ["helm uninstall koord", ""]


def test_an_empty_cluster_is_installed_as_any_other() -> None:
    report = make_report(facts_of([]), "1.2.3")
    assert ids(report) == {"nothing-installed"}
    assert refusal(report).startswith("this command changes nothing: the move is `helm install koord charts/koord ")
    assert report.values == {}


@pytest.mark.parametrize(
    ("kind", "name", "change", "wanted"),
    [
        ("Deployment", "koord-manager", lambda o: o["spec"].update(replicas=3), {"manager": {"replicas": 3}}),
        (
            "Deployment",
            "koord-manager",
            with_words("--feature-gates=MultiQuotaTree=true,NoSuchGate=true"),
            {"featureGates": "MultiQuotaTree=true"},
        ),
        (
            "Deployment",
            "koord-scheduler",
            with_words("--kube-api-qps=77"),
            {"scheduler": {"extraArgs": ["--kube-api-qps=77"]}},
        ),
        (
            "Deployment",
            "koord-scheduler",
            lambda o: o["spec"]["template"]["spec"].update(nodeSelector={"a": "b"}, hostNetwork=True),
            {"scheduler": {"hostNetwork": True, "nodeSelector": {"a": "b"}}},
        ),
        (
            "Deployment",
            "koord-descheduler",
            lambda o: container(o).update(resources={"limits": {"cpu": "3"}}),
            {"descheduler": {"resources": {"limits": {"cpu": "3"}}}},
        ),
        (
            "DaemonSet",
            "koordlet",
            lambda o: o["spec"]["template"]["spec"]["volumes"][0]["hostPath"].update(path="/data/kubelet"),
            {"koordlet": {"hostDirs": {"kubeletLibDir": "/data/kubelet"}}},
        ),
        (
            "DaemonSet",
            "koordlet",
            lambda o: container(o).update(args=["-addr=:9999", "-feature-gates=BECPUEvict=true", "--v=6"]),
            {"koordlet": {"log": {"level": "6"}, "metrics": {"port": 9999}, "features": "BECPUEvict=true"}},
        ),
        (
            "Deployment",
            "koord-manager",
            lambda o: o["spec"]["template"]["spec"].update(imagePullSecrets=[{"name": "mine"}]),
            {"imagePullSecrets": [{"name": "mine"}]},
        ),
        (
            "ValidatingWebhookConfiguration",
            "koordinator-validating-webhook-configuration",
            lambda o: o["webhooks"][0].update(failurePolicy="Fail", timeoutSeconds=5),
            {"webhookConfiguration": {"failurePolicy": {"pods": "Fail"}, "timeoutSeconds": 5}},
        ),
        (
            "CustomResourceDefinition",
            "podgroups.scheduling.sigs.k8s.io",
            lambda o: o["metadata"].update(annotations={}),
            {"crds": {"podgroups": False}},
        ),
    ],
)
def test_what_was_changed_is_carried_over(kind: str, name: str, change: Change, wanted: Obj) -> None:
    agent = wanted.get("koordlet", {})
    wanted = {**wanted, "koordlet": {**agent, "hostDirs": {**CARRIED_FOLDERS, **agent.get("hostDirs", {})}}}
    report = report_of((kind, name, change))
    assert report.values == wanted
    jsonschema_rs.validate(SCHEMA, report.values)
    assert yaml.safe_load(values_text(report.values)) == wanted


def test_a_scheduler_configuration_of_ones_own_is_carried_over_word_for_word() -> None:
    def thresholds(config_map: Obj) -> None:
        text = config_map["data"]["koord-scheduler.config"]
        config_map["data"]["koord-scheduler.config"] = text.replace("cpu: 65", "cpu: 80  # tuned")

    report = report_of(("ConfigMap", "koord-scheduler-config", thresholds))
    carried = report.values["scheduler"]["config"]
    assert "cpu: 80  # tuned" in carried
    jsonschema_rs.validate(SCHEMA, report.values)
    assert yaml.safe_load(values_text(report.values))["scheduler"]["config"] == carried


def test_a_configuration_that_koord_refuses_is_an_error_with_its_line() -> None:
    def misspelled(config_map: Obj) -> None:
        text = config_map["data"]["koord-descheduler.config"]
        config_map["data"]["koord-descheduler.config"] = text.replace(
            "deschedulingInterval: 10s", "deschedulingInterval: ten"
        )

    report = report_of(("ConfigMap", "koord-descheduler-config", misspelled))
    (what,) = found(report, "configuration-error")
    assert what.startswith("ConfigMap koord-descheduler-config, koord-descheduler.config, line 8: deschedulingInterval")
    assert "config" not in report.values.get("descheduler", {})
    assert "must be settled first" in refusal(report)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_words("--no-such-flag=1"), "flag --no-such-flag=1: unknown flag: --no-such-flag"),
        (with_words("--v", "many"), "flag --v=many: invalid argument"),
    ],
)
def test_a_refused_flag_is_named(change: Change, words: str) -> None:
    report = report_of(("Deployment", "koord-manager", change))
    assert words in "".join(found(report, "flag-refused"))
    assert report.values == {"koordlet": {"hostDirs": CARRIED_FOLDERS}}


def test_a_refused_gate_is_named() -> None:
    report = report_of(("DaemonSet", "koordlet", with_words("-feature-gates=NoSuchGate=true")))
    assert found(report, "gate-refused") == ["koordlet: feature gate NoSuchGate=true: koord has no such feature gate"]


def test_a_definition_that_helm_would_delete_is_an_error() -> None:
    foreign = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.slo.koordinator.sh", "annotations": dict(RELEASE)},
        "spec": {"group": "slo.koordinator.sh", "versions": [{"name": "v1", "served": True, "storage": True}]},
    }
    report = make_report(facts_of([*koordinator_objects(), foreign]), "1.2.3")
    (one,) = [each for each in report.findings if each.id == "definition-goes"]
    assert one.fix == "kubectl annotate crd things.slo.koordinator.sh helm.sh/resource-policy=keep"
    foreign["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep"  # type: ignore[index]
    assert ids(make_report(facts_of([*koordinator_objects(), foreign]), "1.2.3"), "error") == set()


def test_a_version_that_koord_lacks_is_an_error() -> None:
    def more(crd: Obj) -> None:
        crd["spec"]["versions"] = [*crd["spec"]["versions"], {"name": "v9", "served": True, "storage": False}]

    report = report_of(("CustomResourceDefinition", "reservations.scheduling.koordinator.sh", more))
    assert ids(report, "error") == {"definition-version"}


def test_an_old_cluster_is_an_error() -> None:
    assert "server-too-old" in ids(report_of(version="v1.28.3"), "error")
    assert "server-too-old" not in ids(report_of(version="v1.32.0"))


def test_a_copy_of_the_images_in_another_registry_counts_as_koordinator() -> None:
    def renamed(workload: Obj) -> None:
        container(workload)["image"] = "mirror.example/infra/koordlet:v1.7.1"

    assert "koordlet" in {one.program for one in report_of(("DaemonSet", "koordlet", renamed)).programs}

    def own(workload: Obj) -> None:
        container(workload)["image"] = "mirror.example/koord:0.1.0"

    assert "koordlet" not in {one.program for one in report_of(("DaemonSet", "koordlet", own)).programs}


def test_what_may_not_be_read_is_told_once_each() -> None:
    unread = Unread(verb="list", resource="leases.coordination.k8s.io", namespace=NAMESPACE, why="403 Forbidden")
    lists = facts_of(koordinator_objects())
    report = make_report(
        KoordinatorFacts(**{**{f: getattr(lists, f) for f in lists.__struct_fields__}, "leases": unread}), "1.2.3"
    )
    assert found(report, "not-readable") == [
        "cannot list leases.coordination.k8s.io in namespace koordinator-system: 403 Forbidden"
    ]


def test_nonsense_in_objects_is_no_crash() -> None:
    objects = koordinator_objects()
    for one in objects:
        if one["kind"] in ("Deployment", "DaemonSet"):
            one["spec"] = {"replicas": "two", "template": {"spec": {"containers": [{"args": [1, None, "--v"]}, "x"]}}}
        elif one["kind"] == "ConfigMap":
            one["data"] = {"koord-scheduler.config": "kind: KubeSchedulerConfiguration\nprofiles: [", "x": 1}
        elif "webhooks" in one:
            one["webhooks"] = ["x", {"rules": "y", "timeoutSeconds": "z"}]
    report = make_report(facts_of(objects), "1.2.3")
    assert report_text(report)


def test_the_page_has_every_finding() -> None:
    page = Path(__file__).parents[4] / "docs" / "install.md"
    assert documentation_rows() in page.read_text()
