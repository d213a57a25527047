"""Every program understands the flags, gates, environment and configuration that the chart gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.cli.daemons.descheduler_config import DeschedulerConfigured, descheduler_configuration, descheduler_flags
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_yarn_copilot import YARN_COPILOT_FLAGS, settings_from_flags
from koord.cli.daemons.koord_yarn_operator import YARN_OPERATOR_FLAGS, YarnOperatorPlan, plan_operator
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, KoordletPlan, plan_koordlet
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, ManagerPlan, plan_manager
from koord.cli.daemons.scheduler_config import SchedulerConfigured, scheduler_configuration, scheduler_flags
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.plugins.device_share.request import parse_templates
from koord.yarn.copilot.program import CopilotSettings
from tests.charts.golden_files import VARIANTS
from tests.charts.helm import Obj, named, pod_specs, render, values_file

pytestmark = pytest.mark.real

RENDERINGS = {"default": ((), "koord", "default"), **VARIANTS}


@pytest.fixture(scope="module", params=RENDERINGS)
def objects(request: pytest.FixtureRequest) -> list[Obj]:
    args, release, namespace = RENDERINGS[request.param]
    return render(*args, release=release, namespace=namespace)


def container_of(objects: list[Obj], workload: str) -> Obj:
    specs = pod_specs(objects)
    if workload not in specs:
        pytest.skip(f"this release has no {workload}")
    (container,) = specs[workload]["containers"]
    found: Obj = container
    return found


def environment(container: Obj) -> dict[str, str]:
    return {one["name"]: one.get("value", "from-the-pod") for one in container.get("env", ())}


def config_text(objects: list[Obj], program: str) -> str:
    text: str = named(objects, "ConfigMap", f"koord-{program}-config")["data"][f"koord-{program}.config"]
    return text


def with_config(container: Obj, path: Any, text: str) -> list[str]:
    """Return the arguments with the configuration file at a place of this machine."""
    path.write_text(text)
    return [f"--config={path}" if arg.startswith("--config=") else arg for arg in container["args"]]


def test_koordlet(objects: list[Obj]) -> None:
    container = container_of(objects, "koordlet")
    values = KOORDLET_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues), values
    plan = plan_koordlet(values, environment(container))
    assert isinstance(plan, KoordletPlan), plan
    assert plan.settings.address is not None
    assert plan.settings.address[1] == int(container["readinessProbe"]["httpGet"]["port"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {plan.paths.cgroup, plan.paths.sys, plan.paths.sys_fs, plan.paths.var_run, plan.paths.run} <= mounted
    assert {plan.paths.kubelet, plan.settings.prediction.folder, plan.settings.audit.folder} <= mounted
    assert plan.settings.devices.folder.startswith(f"{plan.paths.var_run}/")


def test_every_mount_has_its_volume(objects: list[Obj]) -> None:
    for name, spec in pod_specs(objects).items():
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(volumes) == len(set(volumes)), name
        mounts = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        mounts |= {mount["name"] for one in spec.get("initContainers", ()) for mount in one["volumeMounts"]}
        assert mounts == set(volumes), name


def test_the_yarn_copilot() -> None:
    assert "koord-yarn-copilot" not in pod_specs(render())
    wanted = (
        "enabled=true",
        "cgroupPath=/a/hadoop-yarn",
        "syncMemoryCgroup=true",
        "extraArgs={--sync-cgroup-period=5s}",
    )
    objects = render(*(word for one in wanted for word in ("--set", f"koordYarnCopilot.{one}")))
    container = container_of(objects, "koord-yarn-copilot")
    values = YARN_COPILOT_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues), values
    settings = settings_from_flags(values)
    assert isinstance(settings, CopilotSettings), settings
    assert (settings.group, settings.sync_memory, settings.sync_s) == ("a/hadoop-yarn", True, 5.0)
    assert settings.address == ("", container["livenessProbe"]["httpGet"]["port"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.cgroup_root in mounted
    # koordlet looks for the socket at the same place of the node.
    agent = container_of(objects, "koordlet")
    plan = plan_koordlet(KOORDLET_FLAGS.parse(agent["args"]), environment(agent))  # type: ignore[arg-type]
    assert isinstance(plan, KoordletPlan), plan
    assert settings.endpoint == plan.settings.yarn.endpoint


def test_the_proxy_finds_the_agent() -> None:
    container = container_of(render("--set", "koordlet.runtimeHooks=proxy"), "koordlet")
    values = KOORDLET_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues)
    plan = plan_koordlet(values, environment(container))
    assert isinstance(plan, KoordletPlan)
    assert (plan.settings.hooks.nri, plan.settings.hooks.server) == (None, "on")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    inside, _, file = plan.settings.hooks.address.rpartition("/")
    assert inside in mounts
    assert plan.settings.hooks.endpoint == f"/var/run/koordlet/{file}"
    assert plan.settings.hooks.registrations in mounts


def test_an_agent_that_restores_writes_nothing_more() -> None:
    (spec,) = [one for name, one in pod_specs(render("--set", "koordlet.restore=true")).items() if name == "koordlet"]
    (undo,), (agent,) = spec["initContainers"], spec["containers"]
    assert undo["command"] == ["koordlet", "restore"]
    assert (undo["args"], undo["volumeMounts"]) == (agent["args"], agent["volumeMounts"])
    values = KOORDLET_FLAGS.parse(agent["args"])
    assert isinstance(values, FlagValues)
    assert values.switch("safe-mode")


def test_manager(objects: list[Obj]) -> None:
    container = container_of(objects, "koord-manager")
    values = MANAGER_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues), values
    plan = plan_manager(values, environment(container), "host")
    assert isinstance(plan, ManagerPlan), plan
    assert plan.serving is not None
    (port,) = named(objects, "Service", "koordinator-webhook-service")["spec"]["ports"]
    assert port["targetPort"] == plan.serving.port
    assert plan.health is not None
    assert container["readinessProbe"]["httpGet"]["port"] == plan.health[1]
    config = named(objects, "ConfigMap", plan.settings.config_name)
    assert config["metadata"]["namespace"] == plan.settings.config_namespace
    for configuration in (plan.serving.names.mutating, plan.serving.names.validating):
        assert [one for one in objects if one.get("webhooks") and one["metadata"]["name"] == configuration]


def test_scheduler(objects: list[Obj], tmp_path: Any) -> None:
    container = container_of(objects, "koord-scheduler")
    text = config_text(objects, "scheduler")
    values = scheduler_flags().parse(with_config(container, tmp_path / "config", text))
    assert isinstance(values, FlagValues), values
    configured = scheduler_configuration(values)
    assert isinstance(configured, SchedulerConfigured), configured
    assert values.number("port") == container["readinessProbe"]["httpGet"]["port"]
    workload = named(objects, "Deployment", "koord-scheduler")
    assert yaml.safe_load(text)["leaderElection"]["resourceNamespace"] == workload["metadata"]["namespace"]


def test_descheduler(objects: list[Obj], tmp_path: Any) -> None:
    container = container_of(objects, "koord-descheduler")
    args = with_config(container, tmp_path / "config", config_text(objects, "descheduler"))
    values = descheduler_flags().parse(args)
    assert isinstance(values, FlagValues), values
    configured = descheduler_configuration(values)
    assert isinstance(configured, DeschedulerConfigured), configured
    port = container["readinessProbe"]["httpGet"]["port"]
    assert (configured.assembly.config.healthz_bind_address or "").endswith(f":{port}")


def test_yarn_operator(objects: list[Obj], tmp_path: Path) -> None:
    container = container_of(objects, "koord-yarn-operator")
    for name, text in named(objects, "ConfigMap", "yarn-config")["data"].items():
        (tmp_path / name).write_text(text)
    values = YARN_OPERATOR_FLAGS.parse(container["args"])
    assert isinstance(values, FlagValues), values
    given = environment(container)
    assert given["HADOOP_CONF_DIR"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    plan = plan_operator(values, {**given, "HADOOP_CONF_DIR": str(tmp_path)}, "host")
    assert isinstance(plan, YarnOperatorPlan), plan
    assert [(one.id, str(one.managers[0].admin)) for one in plan.clusters] == [
        ("__default_yarn_cluster__", "rm.yarn.example.org:18033"),
        ("blue", "rm.blue.example.org:8033"),
    ]
    assert (plan.user, plan.settings.over_commit_timeout_ms, plan.settings.interval_s) == ("rm-admin", 300_000, 2.0)
    assert plan.health is not None
    assert container["readinessProbe"]["httpGet"]["port"] == plan.health[1]


def test_templates_of_npus(objects: list[Obj]) -> None:
    document = yaml.safe_load(named(objects, "ConfigMap", "gpu-shared-resource-templates")["data"]["data.yaml"])
    assert not isinstance(parse_templates(document, ["huawei.com/npu-core"]), str)
    assert len(document) == 8


def postfilter(*args: str) -> tuple[list[str], bool]:
    config = load_configuration(config_text(render(*args), "scheduler"))
    assert isinstance(config, KubeSchedulerConfiguration)
    document = yaml.safe_load(config_text(render(*args), "scheduler"))["profiles"][0]
    (gangs,) = [one["args"] for one in document["pluginConfig"] if one["name"] == "Coscheduling"]
    return [one["name"] for one in document["plugins"]["postFilter"]["enabled"]], gangs["enablePreemption"]


def test_gangs_preempt_together_or_each_pod_for_itself() -> None:
    assert postfilter() == (["Reservation", "Coscheduling", "ElasticQuota"], True)
    alone = postfilter("--set", "scheduler.enableJobPreemption=false")
    assert alone == (["Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"], False)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_configuration_of_ones_own(as_text: bool, tmp_path: Any) -> None:
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "parallelism": 3}
    given = {"scheduler": {"config": yaml.safe_dump(config) if as_text else config}}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(given))
    assert yaml.safe_load(config_text(render("--values", str(values)), "scheduler")) == config


def test_documents_of_slo_controller_config() -> None:
    data = named(render(*values_file("edited")), "ConfigMap", "slo-controller-config")["data"]
    assert yaml.safe_load(data["colocation-config"]) == {"enable": True, "cpuReclaimThresholdPercent": 70}
    assert data["resource-qos-config"] == '{"clusterStrategy":{}}'
    assert yaml.safe_load(data["resource-threshold-config"]) == {"clusterStrategy": {"enable": True}}
