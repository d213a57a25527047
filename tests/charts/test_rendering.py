"""The chart renders: as recorded, as `koord manifests` prints, and with a named error for what cannot work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord import __version__
from koord.api.schema import crd_manifests
from koord.cli.manifests.daemonsets import GATE_MOUNTS, RuntimeHooks
from koord.cli.manifests.manifests import COMPONENTS, OPTIONAL_COMPONENTS, manifests
from tests.charts import golden_files
from tests.charts.helm import CHART, HelmFailed, Obj, named, pod_specs, render, run_helm, values_file

pytestmark = pytest.mark.real

RELEASE_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}
HOOK = "helm.sh/hook"
RELEASE_ANNOTATIONS = {"helm.sh/resource-policy", "checksum/config"}


def test_helm_finds_no_fault() -> None:
    assert "0 chart(s) failed" in run_helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("name", [f"{golden_files.DEFAULT}.yaml", *(f"{one}.diff" for one in golden_files.VARIANTS)])
def test_it_renders_as_recorded(name: str) -> None:
    default = golden_files.default_text()
    made = default if name.endswith(".yaml") else golden_files.difference(name.removesuffix(".diff"), default)
    assert made == (golden_files.FOLDER / name).read_text(), "python -m tests.charts.golden_files records it again"


def plain(obj: Any) -> Any:
    """Return an object without what a release adds to it, and with the files inside of it parsed."""
    if isinstance(obj, list):
        return [plain(one) for one in obj]
    if not isinstance(obj, dict):
        return obj
    made: Obj = {}
    for key, value in obj.items():
        if key == "labels":
            value = {name: text for name, text in value.items() if name not in RELEASE_LABELS}
        elif key == "annotations":
            value = {name: text for name, text in value.items() if name not in RELEASE_ANNOTATIONS}
        elif key == "data":
            value = {name: yaml.safe_load(text) for name, text in value.items()}
        if key == "annotations" and not value:
            continue
        made[key] = plain(value)
    return made


def by_name(objects: list[Obj]) -> dict[tuple[str, str, str], Any]:
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): plain(one) for one in objects}


def without_hooks(objects: list[Obj]) -> list[Obj]:
    """Return the objects without those that Helm makes around a release: `koord manifests` has no uninstall."""
    return [one for one in objects if HOOK not in one["metadata"].get("annotations", {})]


GATES = "ConfigMapValidatingWebhook=true,BindingAdmissionWebhook=true,ElasticMutatingWebhook=false,AllBeta=true"


@pytest.mark.parametrize("hooks", ["nri", "proxy", "none"])
@pytest.mark.parametrize("namespace", ["koordinator-system", "elsewhere"])
@pytest.mark.parametrize("gates", ["", GATES])
def test_it_is_what_koord_manifests_prints(hooks: RuntimeHooks, namespace: str, gates: str) -> None:
    optional = OPTIONAL_COMPONENTS if gates else ()
    koordlet_gates = [f"{gate}=true" for gate in GATE_MOUNTS]
    printed = manifests(
        namespace,
        components=(*COMPONENTS, *optional),
        feature_gates=gates,
        runtime_hooks=hooks,
        tell_interference=bool(gates),
        koordlet_restores=bool(gates),
        koordlet_gates=",".join(koordlet_gates) if gates else "",
    )
    assert isinstance(printed, list)
    sets = {
        "installation.namespace": namespace,
        "koordlet.runtimeHooks": hooks,
        "featureGates": gates.replace(",", "\\,"),
        "koordlet.tellInterference": str(bool(gates)).lower(),
        "koordlet.restore": str(bool(gates)).lower(),
        "koordlet.features": "\\,".join(koordlet_gates) if gates else "",
        "deviceDaemon.enabled": str(bool(gates)).lower(),
        "koordYarnOperator.enabled": str(bool(gates)).lower(),
    }
    rendered = render(*(word for name, value in sets.items() for word in ("--set", f"{name}={value}")))
    theirs, ours = by_name(printed), by_name(without_hooks(rendered))
    assert theirs.keys() == ours.keys()
    for name, obj in theirs.items():
        assert ours[name] == obj, name


def test_definitions_are_those_of_koord_crds_and_stay_after_an_uninstall() -> None:
    rendered = [one for one in render() if one["kind"] == "CustomResourceDefinition"]
    assert {one["metadata"]["name"] for one in rendered} == {one["metadata"]["name"] for one in crd_manifests()}
    assert all(one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for one in rendered)


def test_each_definition_can_be_left_out() -> None:
    for crd in crd_manifests():
        plural = crd["spec"]["names"]["plural"]
        left = {
            one["metadata"]["name"]
            for one in render("--set", f"crds.{plural}=false", "--show-only", "templates/crds.yaml")
        }
        assert left == {one["metadata"]["name"] for one in crd_manifests()} - {crd["metadata"]["name"]}
    assert not [one for one in render("--set", "crds.managed=false") if one["kind"] == "CustomResourceDefinition"]


@pytest.mark.parametrize(
    ("key", "place", "name"),
    [
        ("manger.replicas=3", "/", "manger"),
        ("manager.replica=3", "/manager", "replica"),
        ("koordlet.hostDirs.tsdb=/x", "/koordlet/hostDirs", "tsdb"),
        ("webhookConfiguration.failurePolicy.pod=Fail", "/webhookConfiguration/failurePolicy", "pod"),
        ("crds.nodemetric=false", "/crds", "nodemetric"),
        ("scheduler.resources.limit.cpu=1", "/scheduler/resources", "limit"),
    ],
)
def test_an_unknown_key_is_named(key: str, place: str, name: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        render("--set", key)
    assert re.search(rf"at '{place.rstrip('/')}'.*'{name}' not allowed", str(refused.value))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("koordlet.runtimeHooks=nro", "koordlet/runtimeHooks"),
        ("webhookConfiguration.failurePolicy.pods=Closed", "failurePolicy/pods"),
        ("manager.replicas=two", "manager/replicas"),
        ("featureGates=PodMutatingWebhok=true", "manager: PodMutatingWebhok is not a known feature gate; known are"),
        ("koordlet.features=PSICollector", "koordlet: PSICollector must be written as PSICollector=true"),
        ("koordlet.features=Libpfm4=true", "koordlet: Libpfm4=true is not built"),
        ("scheduler.featureGates=ResizePods=yes", "scheduler: ResizePods must be true or false"),
        ("manager.extraArgs={--sync-perod=1m}", "manager has no flag --sync-perod"),
    ],
)
def test_what_a_program_would_refuse_is_refused_before_it_is_installed(key: str, words: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        render("--set", key)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        " PodMutatingWebhook = false , NodeMutatingWebhook=T",
        "AllAlpha=true",
        "AllBeta=false,WebhookFramework=true,PodValidatingWebhook=1",
        "WebhookFramework=false",
        "BindingAdmissionWebhook=true,PodValidatingWebhook=false",
        "PodMutatingWebhook=",
        "PodMutatingWebhook=truE",
        "=true",
        "kube:PodMutatingWebhook=true",
        "ValidatePodDeviceResource=true=false",
        ",,",
    ],
)
def test_gates_mean_to_the_chart_what_they_mean_to_the_manager(text: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"featureGates": text}))
    theirs = manifests(feature_gates=text)
    if isinstance(theirs, str):
        with pytest.raises(HelmFailed, match="feature gates of manager"):
            render("--values", str(values))
        return
    ours = by_name(render("--values", str(values)))
    for name, obj in by_name(theirs).items():
        if name[0].endswith("WebhookConfiguration"):
            assert (ours[name].get("webhooks") or []) == obj["webhooks"]


def test_gates_of_a_program_that_does_not_run_are_nobodys_business() -> None:
    assert render("--set", "koordlet.features=Nonsense=true", "--set", "koordlet.enabled=false")


class TestImages:
    def test_one_value_names_the_image_of_every_program(self) -> None:
        sets = ("imageRepositoryHost=registry.example.com", "image.repository=a/b", "image.tag=r7")
        specs = pod_specs(render(*(word for one in sets for word in ("--set", one))))
        images = {spec["containers"][0]["image"] for spec in specs.values()}
        assert len(specs) == 4
        assert images == {"registry.example.com/a/b:r7"}

    def test_the_version_is_that_of_the_package(self) -> None:
        images = {spec["containers"][0]["image"] for spec in pod_specs(render()).values()}
        assert images == {f"koord:{__version__}"}

    def test_a_program_may_have_its_own(self) -> None:
        specs = pod_specs(render("--set", "koordlet.image.repository=mine/koordlet", "--set", "koordlet.image.tag=v2"))
        images = {name: spec["containers"][0]["image"] for name, spec in specs.items()}
        assert images["koordlet"] == "mine/koordlet:v2"
        assert images["koord-manager"] == f"koord:{__version__}"

    @pytest.mark.parametrize(
        "sets",
        ["koordlet.image.repository=koordinator-sh/koordlet,koordlet.image.tag=v1.8.0", "koordlet.image.tag=v1.7.1"],
    )
    def test_those_of_koordinator_hold_other_programs(self, sets: str) -> None:
        spec = pod_specs(render("--set", sets))["koordlet"]
        assert spec["containers"][0]["image"] == f"koord:{__version__}"

    def test_every_image_has_the_registry_and_the_secrets(self) -> None:
        for name, spec in pod_specs(render(*values_file("edited"))).items():
            assert spec["imagePullSecrets"] == [{"name": "registry"}], name
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                assert container["image"].startswith("registry.example.com/mirror/"), name


class TestNamespaces:
    def test_it_is_made_unless_it_is_that_of_the_release(self) -> None:
        assert named(render(), "Namespace", "koordinator-system")
        inside = render(namespace="koordinator-system")
        assert not [one for one in inside if one["kind"] == "Namespace"]
        assert not [one for one in render("--set", "installation.namespace=") if one["kind"] == "Namespace"]
        left = render("--set", "installation.createNamespace=false")
        assert not [one for one in left if one["kind"] == "Namespace"]

    def test_no_name_depends_on_the_release(self) -> None:
        one, other = (by_name(render(release=name)) for name in ("koord", "another-name-altogether"))
        assert one == other

    def test_nothing_is_left_behind_in_another_namespace(self) -> None:
        objects = render("--set", "installation.namespace=", release="night-shift", namespace="platform")
        assert {one["metadata"].get("namespace", "platform") for one in objects} == {"platform"}
        text = yaml.safe_dump_all(one for one in objects if not one.get("webhooks"))
        assert "koordinator-system" not in text


class TestSafety:
    @pytest.mark.parametrize("values", [(), values_file("edited")])
    def test_no_role_has_a_star(self, values: tuple[str, ...]) -> None:
        roles = [one for one in render(*values) if one["kind"] in ("Role", "ClusterRole")]
        assert len(roles) >= 7
        for role in roles:
            for rule in role["rules"]:
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), role["metadata"]["name"]

    def test_webhooks_fail_open(self) -> None:
        policies = [webhook["failurePolicy"] for one in render() for webhook in one.get("webhooks", ())]
        assert len(policies) == 6
        assert set(policies) == {"Ignore"}

    def test_webhooks_never_see_the_pods_of_the_manager(self) -> None:
        objects = render(
            "--set", "installation.namespace=here", "--set", "webhookConfiguration.failurePolicy.pods=Fail"
        )
        pods = [
            hook for one in objects for hook in one.get("webhooks", ()) if hook["rules"][0]["resources"] == ["pods"]
        ]
        assert len(pods) == 3
        for webhook in pods:
            (names,) = [
                expression["values"]
                for expression in webhook["namespaceSelector"]["matchExpressions"]
                if expression["key"] == "kubernetes.io/metadata.name"
            ]
            assert set(names) == {"kube-system", "koordinator-system", "here"}

    @pytest.mark.parametrize("values", [(), values_file("edited")])
    def test_the_control_plane_has_no_privileges(self, values: tuple[str, ...]) -> None:
        specs = pod_specs(render(*values, "--set", "koordYarnOperator.enabled=true"))
        for name in ("koord-manager", "koord-scheduler", "koord-descheduler", "koord-yarn-operator"):
            assert specs[name]["securityContext"]["runAsNonRoot"] is True
            assert specs[name]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            (container,) = specs[name]["containers"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }

    def test_what_holds_peoples_work_outlives_the_release(self) -> None:
        kept = {
            (one["kind"], one["metadata"]["name"])
            for one in render()
            if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
        }
        assert {kind for kind, _ in kept} == {"CustomResourceDefinition", "Namespace", "PriorityClass"}
        assert ("Namespace", "koordinator-system") in kept

    def test_a_changed_configuration_replaces_the_pods(self) -> None:
        def checksum(*args: str) -> str:
            workload = named(render(*args), "Deployment", "koord-scheduler")
            text: str = workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            return text

        assert checksum() == checksum("--set", "scheduler.replicas=1")
        assert checksum() != checksum("--set", "scheduler.enableJobPreemption=false")


class TestUninstall:
    def hooks(self, *args: str) -> list[Obj]:
        return [one for one in render(*args) if HOOK in one["metadata"].get("annotations", {})]

    def test_a_job_restores_nodes_before_the_release_is_deleted(self) -> None:
        hooks = self.hooks()
        assert {one["metadata"]["annotations"][HOOK] for one in hooks} == {"pre-delete"}
        (job,) = [one for one in hooks if one["kind"] == "Job"]
        weights = {one["kind"]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in hooks}
        assert all(weight < weights["Job"] for kind, weight in weights.items() if kind != "Job")
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == f"koord:{__version__}"
        assert (container["command"], container["args"][0]) == (
            ["koord", "restore-nodes"],
            "--namespace=koordinator-system",
        )
        assert spec["automountServiceAccountToken"] is True, "its account has none mounted by itself"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True

    def test_its_rights_are_those_of_the_command(self) -> None:
        roles = [one for one in self.hooks() if one["kind"] in ("Role", "ClusterRole")]
        rules = [rule for role in roles for rule in role["rules"]]
        writes = [rule for rule in rules if set(rule["verbs"]) - {"get", "list"}]
        assert all(rule.get("resourceNames") for rule in writes if rule["resources"] != ["nodes/status"])

    @pytest.mark.parametrize(
        "args",
        [
            ("--set", "uninstall.restoreNodes=false"),
            ("--set", "manager.enabled=false", "--set", "koordlet.enabled=false"),
        ],
    )
    def test_there_is_none_where_nobody_wants_it_or_nothing_was_written(self, args: tuple[str, ...]) -> None:
        assert self.hooks(*args) == []
