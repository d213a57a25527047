"""This module is `koord manifests` and `koord crds`: everything that a cluster needs to run koord as YAML for
`kubectl apply`.
"""

from __future__ import annotations

import sys
from typing import Any, get_args

import click
import yaml

from koord import __version__
from koord.api.config import gates
from koord.api.config.descheduler import configuration as shipped_descheduling
from koord.api.config.scheduler import configuration
from koord.api.koordinator.protocol import GPU_TEMPLATES_CONFIG_MAP
from koord.api.koordinator.resource_name import GPU_MEMORY, NPU_CORE, NPU_CPU, NPU_DVPP
from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.model import Obj, to_dict
from koord.api.schema import crd_manifests
from koord.cli.manifests import cluster_objects, daemonsets, deployments
from koord.cli.manifests.cluster_objects import rbac_objects, service_account
from koord.cli.manifests.daemonsets import RuntimeHooks
from koord.descheduler import program as descheduler_program
from koord.koordlet import settings as koordlet_settings
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.manager import program
from koord.manager.feature_gates import MANAGER_GATES, shipped_manager_gates
from koord.manager.reconcile_loop import NAMESPACE
from koord.scheduler import rbac as scheduler_rbac
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration
from koord.scheduler.configuration.plugin_selection import without_unsupported_plugins
from koord.scheduler.plugins.registry import REGISTRY
from koord.yarn.hadoop_config import ADMIN_PORT, CLIENT_PORT
from koord.yarn.operator import YarnOperator

Slice = tuple[int, int, int, str]  # NPU cores, NPU CPUs, units of video decoding (0: none), memory

_310P: dict[str, Slice] = {
    "vir01": (1, 1, 12, "3Gi"),
    "vir02": (2, 2, 25, "6Gi"),
    "vir02_1c": (2, 1, 25, "6Gi"),
    "vir04": (4, 4, 50, "12Gi"),
    "vir04_3c": (4, 3, 50, "12Gi"),
    "vir04_3c_ndvpp": (4, 3, 0, "12Gi"),
    "vir04_4c_dvpp": (4, 4, 100, "12Gi"),
}
_910: dict[str, Slice] = {
    "vir02": (2, 1, 0, "2Gi"),
    "vir04": (4, 1, 0, "4Gi"),
    "vir08": (8, 3, 0, "8Gi"),
    "vir16": (16, 7, 0, "16Gi"),
}
_910B1: dict[str, Slice] = {
    "vir03_1c_8g": (3, 1, 0, "8Gi"),
    "vir06_1c_16g": (6, 1, 0, "16Gi"),
    "vir12_3c_32g": (12, 3, 0, "32Gi"),
}
_910B3: dict[str, Slice] = {"vir05_1c_16g": (5, 1, 0, "16Gi"), "vir10_3c_32g": (10, 3, 0, "32Gi")}
_910B4: dict[str, Slice] = {
    "vir05_1c_8g": (5, 1, 25, "8Gi"),
    "vir10_3c_16g": (10, 3, 50, "16Gi"),
    "vir10_3c_16g_nm": (10, 3, 0, "16Gi"),
    "vir10_4c_16g_m": (10, 4, 100, "16Gi"),
}
SLICES_BY_MODEL: dict[str, dict[str, Slice]] = {
    "310P": _310P,
    "310P3": _310P,
    "910": _910,
    "910B1": _910B1,
    "910B2": _910B1,
    "910B2C": _910B1,
    "910B3": _910B3,
    "910B4": _910B4,
}


def gpu_templates_config(namespace: str) -> Obj:
    table = {
        f"huawei-Ascend-{model}": {name: _resources(size) for name, size in slices.items()}
        for model, slices in SLICES_BY_MODEL.items()
    }
    return cluster_objects.config_map(
        namespace, GPU_TEMPLATES_CONFIG_MAP, {"data.yaml": yaml.safe_dump(table, sort_keys=False)}
    )


def _resources(size: Slice) -> Obj:
    cores, cpus, decoding, memory = size
    resources: Obj = {NPU_CORE: cores, NPU_CPU: cpus}
    if decoding:
        resources[NPU_DVPP] = decoding
    return {**resources, GPU_MEMORY: memory}


COMPONENTS = ("namespace", "crds", "settings", "manager", "scheduler", "descheduler", "koordlet")
DEVICE_DAEMON = "device-daemon"  # few nodes have accelerators that it knows
OPTIONAL_COMPONENTS = (DEVICE_DAEMON, "yarn-operator")  # only where they are asked for
# As the programs are called, for those who ask by that name.
PROGRAMS = {f"koord-{name}": name for name in ("manager", "scheduler", "descheduler", *OPTIONAL_COMPONENTS)}
IMAGE = f"koord:{__version__}"
CONFIG_NAME = "slo-controller-config"


def manifests(
    namespace: str = NAMESPACE,
    image: str = IMAGE,
    components: tuple[str, ...] = COMPONENTS,
    feature_gates: str = "",
    koordlet_gates: str = "",
    tell_interference: bool = False,
    runtime_hooks: RuntimeHooks = "nri",
    *,
    koordlet_restores: bool = False,
) -> list[Obj] | str:
    """Return the objects in an order in which they can be applied, or what is wrong with the gates."""
    feature_gates = shipped_manager_gates(feature_gates)
    switched = gates.parse_feature_gates(feature_gates, MANAGER_GATES)
    if isinstance(switched, list):
        return f"--feature-gates: {'; '.join(map(str, switched))}"
    agents = gates.parse_feature_gates(koordlet_gates, KOORDLET_GATES)
    if isinstance(agents, list):
        return f"--koordlet-feature-gates: {'; '.join(map(str, agents))}"
    made: list[Obj] = []
    if "namespace" in components:
        made.append(cluster_objects.namespace_object(namespace))
    if "crds" in components:
        made += crd_manifests()
    if "settings" in components:
        made += [*cluster_objects.priority_classes(), cluster_objects.default_config(namespace, CONFIG_NAME)]
    if "manager" in components:
        made.append(service_account("koord-manager", namespace))
        made += rbac_objects("koord-manager", namespace, program.rbac_rules())
        made += deployments.manager_objects(namespace, image, feature_gates)
        made += cluster_objects.webhook_configurations(namespace, switched)
    if "scheduler" in components:
        made.append(service_account("koord-scheduler", namespace))
        made += rbac_objects("koord-scheduler", namespace, scheduler_rbac.rbac_rules(), scheduler_rbac.BOUND_ROLES)
        made.append(gpu_templates_config(namespace))
        made += deployments.scheduler_objects(namespace, image, scheduler_config(namespace))
    if "descheduler" in components:
        made.append(service_account("koord-descheduler", namespace))
        made += rbac_objects("koord-descheduler", namespace, descheduler_program.rbac_rules())
        made += deployments.descheduler_objects(namespace, image, descheduler_config(namespace))
    if "koordlet" in components:
        made.append(service_account(daemonsets.KOORDLET, namespace))
        telling = koordlet_settings.INTERFERENCE_RBAC_RULES if tell_interference else ()
        made += rbac_objects(daemonsets.KOORDLET, namespace, (*koordlet_settings.RBAC_RULES, *telling))
        flags = ("--tell-interference",) if tell_interference else ()
        made += daemonsets.koordlet_objects(
            namespace, image, koordlet_gates, flags, runtime_hooks, restores=koordlet_restores
        )
    if "yarn-operator" in components:
        made.append(service_account(OPERATOR_PROGRAM, namespace))
        made += rbac_objects(OPERATOR_PROGRAM, namespace, YarnOperator.rights)
        host = deployments.YARN_HOST
        site = deployments.yarn_site(f"{host}:{CLIENT_PORT}", f"{host}:{ADMIN_PORT}")
        made += deployments.yarn_operator_objects(namespace, image, site)
    if DEVICE_DAEMON in components:
        made += daemonsets.device_daemon_objects(namespace, image)
    return made


def scheduler_config(namespace: str) -> str:
    """Return Koordinator's profile, written out in full."""
    config, _ = without_unsupported_plugins(configuration.configuration(), REGISTRY)
    assembly = CompletedConfig.complete(config, REGISTRY)
    if isinstance(assembly, list):
        raise RuntimeError(f"the shipped configuration has errors: {assembly}")
    text = dump_configuration(assembly)
    # The lease, the quotas that the scheduler makes, and the ConfigMap of GPU templates are where it is installed.
    return text.replace(f"amespace: {NAMESPACE}\n", f"amespace: {namespace}\n")


def descheduler_config(namespace: str) -> str:
    """Return the shipped configuration as a person would write it."""
    return yaml.safe_dump(to_dict(shipped_descheduling.shipped_configuration(namespace)), sort_keys=False)


@click.command("manifests")
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Where everything is installed.")
@click.option(
    "--image", default=IMAGE, show_default=True, help="Image that holds the programs; docs/install.md builds one."
)
@click.option(
    "--component",
    "components",
    multiple=True,
    type=click.Choice((*COMPONENTS, *OPTIONAL_COMPONENTS, *PROGRAMS)),
    help=f"Only this part; may be given several times. Default: all but {' and '.join(OPTIONAL_COMPONENTS)}.",
)
@click.option("--feature-gates", default="", help="Of koord-manager; they also decide which webhooks are registered.")
@click.option(
    "--koordlet-feature-gates",
    default="",
    help=f"Of koordlet and its hooks; none stated: {daemonsets.SHIPPED_KOORDLET_GATES}.",
)
@click.option(
    "--koordlet-tell-interference",
    is_flag=True,
    help="koordlet marks pods that others disturb; it gets the right to patch pods, which it does not have otherwise.",
)
@click.option(
    "--koordlet-runtime-hooks",
    type=click.Choice(get_args(RuntimeHooks)),
    default="nri",
    show_default=True,
    help="How koordlet sees containers before they start: over NRI, through koord-runtime-proxy, or not at all.",
)
@click.option(
    "--koordlet-restore",
    is_flag=True,
    help="koordlet puts back every file that it wrote on its node, and writes no more: before it is removed.",
)
def manifests_command(
    namespace: str,
    image: str,
    components: tuple[str, ...],
    feature_gates: str,
    koordlet_feature_gates: str,
    koordlet_tell_interference: bool,
    koordlet_runtime_hooks: RuntimeHooks,
    koordlet_restore: bool,
) -> None:
    """Print all objects that install koord on a Kubernetes cluster as YAML.

    Install with: koord manifests --image IMAGE | kubectl apply --server-side --force-conflicts -f -
    """
    chosen = tuple(PROGRAMS.get(name, name) for name in components) or COMPONENTS
    made = manifests(
        namespace,
        image,
        chosen,
        feature_gates,
        koordlet_feature_gates,
        koordlet_tell_interference,
        koordlet_runtime_hooks,
        koordlet_restores=koordlet_restore,
    )
    if isinstance(made, str):
        click.echo(f"koord: {made}", err=True)
        sys.exit(1)
    if image == IMAGE:
        click.echo(f"# No image is published. {IMAGE} is one that you build: docs/install.md; --image names another.")
    click.echo(yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=160), nl=False)


class _Dumper(yaml.SafeDumper):
    """_Dumper writes as people and diffs expect: no anchors, and files inside of ConfigMaps line by line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


@click.command()
def crds() -> None:
    """Print the CustomResourceDefinitions of all Koordinator kinds as YAML.

    Install them on a real cluster with: koord crds | kubectl apply --server-side -f -
    """
    click.echo(yaml.safe_dump_all(crd_manifests(), sort_keys=False, width=160), nl=False)
