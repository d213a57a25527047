"""`koord manifests`: what it prints, that it fits the programs it starts, and that it grants only what is declared."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.cli.daemons.descheduler_config import descheduler_flags
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_device_daemon import DEVICE_DAEMON_FLAGS, settle_settings
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, KoordletPlan, plan_koordlet
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, ManagerPlan, plan_manager
from koord.cli.daemons.scheduler_config import scheduler_flags
from koord.cli.main import cli
from koord.cli.manifests.cluster_objects import policy_rules, rbac_objects
from koord.cli.manifests.daemonsets import GATE_MOUNTS, PROXY_MOUNTS, RuntimeHooks
from koord.cli.manifests.manifests import COMPONENTS, manifests
from koord.descheduler.configuration import DeschedulerSetup, build_setup
from koord.descheduler.configuration import load_config as load_descheduling
from koord.devicedaemon.settings import DeviceDaemonSettings
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.plugins.device_share.request import parse_templates

Obj = dict[str, Any]


def printed(*args: str) -> list[Obj]:
    result = CliRunner().invoke(cli, ["manifests", *args])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def named(objects: list[Obj], kind: str, name: str) -> Obj:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_two_runs_print_the_same() -> None:
    runner = CliRunner()
    first, second = (runner.invoke(cli, ["manifests"]).output for _ in range(2))
    assert first == second
    assert "&id" not in first


def test_files_in_config_maps_are_written_line_by_line() -> None:
    text = CliRunner().invoke(cli, ["manifests"]).output
    assert "  koord-scheduler.config: |\n    apiVersion: kubescheduler.config.k8s.io/v1\n" in text
    assert "  koord-descheduler.config: |\n    apiVersion: descheduler/v1alpha2\n" in text
    assert "\\n" not in text.replace("\\\\n", "")


def test_an_image_that_nobody_published_is_told_of() -> None:
    runner = CliRunner()
    assert runner.invoke(cli, ["manifests"]).output.startswith("# No image is published.")
    assert not runner.invoke(cli, ["manifests", "--image", "mine:1"]).output.startswith("#")


def test_every_object_is_named_once() -> None:
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in printed()]
    assert len(names) == len(set(names))


def test_another_namespace_is_used_everywhere() -> None:
    result = CliRunner().invoke(cli, ["manifests", "--namespace", "elsewhere", "--image", "img:1"])
    objects = list(yaml.safe_load_all(result.output))
    assert {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]} == {"elsewhere"}
    for one in objects:
        if one["kind"].endswith("Binding"):
            assert one["subjects"][0]["namespace"] == "elsewhere"
        if one["kind"] == "Deployment":
            assert one["spec"]["template"]["spec"]["containers"][0]["image"] == "img:1"
        for webhook in one.get("webhooks", ()):
            assert webhook["clientConfig"]["service"]["namespace"] == "elsewhere"
    config = named(objects, "ConfigMap", "koord-scheduler-config")["data"]["koord-scheduler.config"]
    assert yaml.safe_load(config)["leaderElection"]["resourceNamespace"] == "elsewhere"
    assert "koordinator-system" not in config, "quotas and GPU templates are there, too"


@pytest.mark.parametrize("component", COMPONENTS)
def test_one_component_is_a_part_of_all(component: str) -> None:
    everything = printed()
    part = printed("--component", component)
    assert part
    assert all(one in everything for one in part)


def test_the_manager_understands_its_arguments() -> None:
    deployment = named(printed(), "Deployment", "koord-manager")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    values = MANAGER_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues)
    environ = {one["name"]: one.get("value", "x") for one in container["env"]}
    plan = plan_manager(values, environ, "host")
    assert isinstance(plan, ManagerPlan)
    assert plan.elects
    assert plan.serving is not None
    service = named(printed(), "Service", "koordinator-webhook-service")
    assert service["spec"]["ports"][0]["targetPort"] == plan.serving.port
    assert plan.health is not None
    assert container["readinessProbe"]["httpGet"]["port"] == plan.health[1]


def test_the_scheduler_understands_its_arguments_and_configuration() -> None:
    objects = printed()
    (container,) = named(objects, "Deployment", "koord-scheduler")["spec"]["template"]["spec"]["containers"]
    assert isinstance(scheduler_flags().parse(container["args"]), FlagValues)
    config = load_configuration(named(objects, "ConfigMap", "koord-scheduler-config")["data"]["koord-scheduler.config"])
    assert isinstance(config, KubeSchedulerConfiguration)
    assert [profile.scheduler_name for profile in config.profiles] == ["koord-scheduler"]


def test_the_descheduler_understands_its_arguments_and_configuration() -> None:
    objects = printed("--component", "koord-descheduler", "--namespace", "elsewhere")
    (container,) = named(objects, "Deployment", "koord-descheduler")["spec"]["template"]["spec"]["containers"]
    assert isinstance(descheduler_flags().parse(container["args"]), FlagValues)
    text = named(objects, "ConfigMap", "koord-descheduler-config")["data"]["koord-descheduler.config"]
    config = load_descheduling(yaml.safe_load(text))
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    assert made.config.leader_election.resource_namespace == "elsewhere"
    assert (made.config.healthz_bind_address or "").endswith(f":{container['readinessProbe']['httpGet']['port']}")
    (profile,) = made.profiles
    assert profile.evict.name == "MigrationController"
    assert (profile.deschedule, profile.balance) == ((), ()), "nothing moves until somebody says what"


@pytest.mark.parametrize("hooks", ["nri", "proxy", "none"])
def test_koordlet_understands_its_arguments_and_finds_its_files(hooks: RuntimeHooks) -> None:
    objects = printed("--component", "koordlet", "--koordlet-runtime-hooks", hooks)
    (container,) = named(objects, "DaemonSet", "koordlet")["spec"]["template"]["spec"]["containers"]
    values = KOORDLET_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues)
    plan = plan_koordlet(values, {"NODE_NAME": "n1"})
    assert isinstance(plan, KoordletPlan)
    assert {"BECPUEvict", "BEMemoryEvict", "CgroupReconcile", "Accelerators"} <= plan.settings.gates
    assert plan.settings.devices.folder.startswith(f"{plan.paths.var_run}/"), "vendors write it on the machine"
    assert (plan.settings.hooks.nri is not None) is (hooks == "nri")
    assert plan.settings.hooks.server == ("on" if hooks == "proxy" else "off")
    proxy_mounts = {inside for _, _, inside, _ in PROXY_MOUNTS}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]} & proxy_mounts
    assert mounted == (proxy_mounts if hooks == "proxy" else set())
    assert values.text("runtime-hooks-addr").rpartition("/")[0] in proxy_mounts


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("gate", GATE_MOUNTS)
def test_what_a_gate_needs_of_the_machine_is_mounted(gate: str, on: bool) -> None:
    objects = printed("--component", "koordlet", "--koordlet-feature-gates", f"{gate}={str(on).lower()}")
    (container,) = named(objects, "DaemonSet", "koordlet")["spec"]["template"]["spec"]["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert (GATE_MOUNTS[gate][2] in mounted) is on


@pytest.mark.parametrize("on", [True, False])
def test_pod_resources_are_served_where_the_machine_sees_them(on: bool) -> None:
    gates = f"PodResourcesProxy={str(on).lower()}"
    objects = printed("--component", "koordlet", "--koordlet-feature-gates", gates)
    spec = named(objects, "DaemonSet", "koordlet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    values = KOORDLET_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues)
    plan = plan_koordlet(values, {"NODE_NAME": "n1"})
    assert isinstance(plan, KoordletPlan)
    folder = values.text("pod-resources-proxy-path")
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert (plan.settings.pod_resources is not None) is on
    assert (folder in mounted) is on
    if plan.settings.pod_resources is not None:
        assert plan.settings.pod_resources.socket == f"{folder}/kubelet.sock"
        assert plan.settings.pod_resources.kubelet_socket == "/var/lib/kubelet/pod-resources/kubelet.sock"
        (volume,) = [one for one in spec["volumes"] if one["name"] == mounted[folder]]
        assert volume["hostPath"] == {"path": "/var/run/koordlet/pod-resources", "type": "DirectoryOrCreate"}


def test_the_device_daemon_is_there_when_it_is_asked_for_and_writes_what_koordlet_reads() -> None:
    assert not [one for one in printed() if one["metadata"]["name"] == "koord-device-daemon"]
    (daemon,) = printed("--component", "koord-device-daemon")
    spec = daemon["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    values = DEVICE_DAEMON_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues)
    settings = settle_settings(values, {})
    assert isinstance(settings, DeviceDaemonSettings)
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert paths[mounted[settings.host_root]] == "/"
    assert paths[mounted[settings.output_file.rpartition("/")[0]]] == "/var/run/koordlet/xpu-device-infos"
    assert spec["automountServiceAccountToken"] is False


def test_stated_gates_of_koordlet_take_the_place_of_the_shipped_ones() -> None:
    objects = printed("--component", "koordlet", "--koordlet-feature-gates", "PSICollector=true")
    (container,) = named(objects, "DaemonSet", "koordlet")["spec"]["template"]["spec"]["containers"]
    assert "--feature-gates=PSICollector=true" in container["args"]


def test_the_scheduler_understands_the_templates_of_npus() -> None:
    document = yaml.safe_load(named(printed(), "ConfigMap", "gpu-shared-resource-templates")["data"]["data.yaml"])
    assert not isinstance(parse_templates(document, ["huawei.com/npu-core"]), str)
    assert document["huawei-Ascend-310P"]["vir04_3c_ndvpp"] == {
        "huawei.com/npu-core": 4,
        "huawei.com/npu-cpu": 3,
        "koordinator.sh/gpu-memory": "12Gi",
    }


def test_a_release_of_koordinators_chart_can_become_one_of_koord() -> None:
    """What a binding refers to cannot change: the names that the chart has must mean the same."""
    theirs = {
        "koord-manager-rolebinding": "koord-manager-role",
        "koord-scheduler-rolebinding": "system:kube-scheduler",
        "koord-scheduler-rolebinding-volume": "system:volume-scheduler",
        "koord-scheduler-rolebinding-custom": "koord-scheduler-role",
        "koord-descheduler-rolebinding": "koord-descheduler-role",
        "koordlet-rolebinding": "koordlet-role",
    }
    ours = {one["metadata"]["name"]: one["roleRef"]["name"] for one in printed() if one["kind"] == "ClusterRoleBinding"}
    assert {name: ours[name] for name in ours.keys() & theirs.keys()} == {
        name: theirs[name] for name in ours.keys() & theirs.keys()
    }
    assert len(ours.keys() & theirs.keys()) == 4


def test_default_webhooks_are_those_of_the_chart_and_one_of_ours() -> None:
    objects = printed()
    names = [
        webhook["name"].removesuffix(".koordinator.sh")
        for kind in ("Mutating", "Validating")
        for webhook in named(
            objects, f"{kind}WebhookConfiguration", f"koordinator-{kind.lower()}-webhook-configuration"
        )["webhooks"]
    ]
    assert names == ["mpod-create", "mpod-update", "melasticquota", "vpod", "velasticquota", "vnodeslo"]


def test_gates_register_more_and_only_configuration_fails_closed() -> None:
    gates = "ConfigMapValidatingWebhook=true,BindingAdmissionWebhook=true,NodeMutatingWebhook=true"
    webhooks = [one for obj in printed("--feature-gates", gates) for one in obj.get("webhooks", ())]
    policies = {one["name"].removesuffix(".koordinator.sh"): one["failurePolicy"] for one in webhooks}
    assert {"vconfigmap", "vpodbinding", "mnode-status"} <= set(policies)
    assert [name for name, policy in policies.items() if policy == "Fail"] == ["vconfigmap"]


def test_an_unknown_gate_is_refused() -> None:
    result = CliRunner().invoke(cli, ["manifests", "--feature-gates", "Nonsense=true"])
    assert result.exit_code == 1
    assert "Nonsense" in result.output


def test_pods_of_the_system_are_never_sent_to_webhooks() -> None:
    for obj in printed("--namespace", "here"):
        for webhook in obj.get("webhooks", ()):
            if webhook["rules"][0]["resources"][0].startswith("pods"):
                (kept_out,) = [
                    expression["values"]
                    for expression in webhook["namespaceSelector"]["matchExpressions"]
                    if expression["key"] == "kubernetes.io/metadata.name"
                ]
                assert {"kube-system", "here"} <= set(kept_out)


def test_pods_run_without_privileges() -> None:
    for deployment in (one for one in printed() if one["kind"] == "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


class TestRules:
    def test_equal_verbs_go_together_and_order_does_not_matter(self) -> None:
        rights = [
            RbacRule("", ("pods",), ("watch", "get")),
            RbacRule("", ("nodes",), ("get",)),
            RbacRule("", ("nodes",), ("watch",)),
        ]
        assert policy_rules(rights) == policy_rules(rights[::-1])
        assert policy_rules(rights) == [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "watch"]}]

    def test_names_limit_a_rule_of_their_own(self) -> None:
        made = policy_rules(
            [RbacRule("", ("secrets",), ("create",)), RbacRule("", ("secrets",), ("get",), names=("a",))]
        )
        assert made == [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["a"]},
        ]

    def test_what_is_granted_everywhere_is_not_granted_again(self) -> None:
        made = rbac_objects(
            "who",
            "ns",
            [
                RbacRule("", ("pods",), READ_VERBS),
                RbacRule("", ("pods",), (*READ_VERBS, "patch"), namespace="koordinator-system"),
            ],
        )
        (role,) = [one for one in made if one["kind"] == "Role"]
        assert role["metadata"]["namespace"] == "ns"
        assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]

    def test_the_manager_reads_no_secret_but_its_own(self) -> None:
        objects = manifests()
        assert isinstance(objects, list)
        for role in (one for one in objects if one["kind"] in ("ClusterRole", "Role")):
            for rule in role["rules"]:
                if "secrets" in rule["resources"]:
                    assert role["kind"] == "Role"
                    assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["koordinator-webhook-certs"]


def test_koordlet_may_patch_pods_only_when_it_is_to_mark_them() -> None:
    def told(*, marks: bool) -> tuple[list[Obj], list[str]]:
        made = manifests(components=("koordlet",), tell_interference=marks)
        assert not isinstance(made, str)
        (role,) = [one for one in made if one["kind"] == "ClusterRole"]
        (agent,) = [one for one in made if one["kind"] == "DaemonSet"]
        patching = [rule for rule in role["rules"] if "pods" in rule["resources"] and "patch" in rule["verbs"]]
        return patching, agent["spec"]["template"]["spec"]["containers"][0]["args"]

    rules, args = told(marks=False)
    assert rules == []
    assert "--tell-interference" not in args
    rules, args = told(marks=True)
    assert [rule["verbs"] for rule in rules] == [["get", "list", "watch", "patch"]]
    assert "--tell-interference" in args


def test_no_role_has_a_star() -> None:
    made = manifests()
    assert isinstance(made, list)
    roles = [one for one in made if one["kind"] in ("Role", "ClusterRole")]
    assert len({role["metadata"]["name"] for role in roles}) >= 4
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), role["metadata"]["name"]
