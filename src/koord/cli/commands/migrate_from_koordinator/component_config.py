"""This module decides which configurations of programs must go into the values, since the chart would replace them."""

from __future__ import annotations

from importlib.metadata import entry_points

from koord.api.config.descheduler import configuration as descheduler
from koord.cli.commands.doctor.facts import readable
from koord.cli.commands.doctor.unstructured import mapping, name_of
from koord.cli.commands.migrate_from_koordinator.facts import KoordinatorFacts
from koord.cli.manifests.manifests import scheduler_config
from koord.descheduler.configuration import build_setup, load_config
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration, load_configuration
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, load_plugins
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml

SCHEDULER_CONFIG_MAP, DESCHEDULER_CONFIG_MAP = "koord-scheduler-config", "koord-descheduler-config"
_SCHEDULER_KIND = "KubeSchedulerConfiguration"


def carried_scheduler_config(facts: KoordinatorFacts) -> str:
    """Return the scheduler's configuration where it is another than the chart's own and koord accepts it."""
    text = _config_text(facts, SCHEDULER_CONFIG_MAP, _SCHEDULER_KIND)
    given = load_configuration(text) if text else []
    if isinstance(given, list):
        return ""
    made = CompletedConfig.complete(given, load_plugins(entry_points(group=ENTRY_POINT_GROUP)).factories)
    if isinstance(made, list) or dump_configuration(made) == scheduler_config(facts.namespace):
        return ""
    return text


def carried_descheduler_config(facts: KoordinatorFacts) -> str:
    """Return the descheduler's configuration where it is another than the chart's own and koord accepts it."""
    text = _config_text(facts, DESCHEDULER_CONFIG_MAP, descheduler.KIND)
    given = load_config(load_yaml(text)) if text else []
    if isinstance(given, list):
        return ""
    made, shipped = build_setup(given), build_setup(descheduler.shipped_configuration(facts.namespace))
    if isinstance(made, list) or (not isinstance(shipped, list) and made.config == shipped.config):
        return ""
    return text


def _config_text(facts: KoordinatorFacts, name: str, kind: str) -> str:
    """Return the entry of a ConfigMap that holds a configuration of a kind."""
    for one in readable(facts.config_maps):
        if name_of(one) != name:
            continue
        for text in mapping(one, "data").values():
            read = load_yaml(text) if isinstance(text, str) and kind in text else None
            if isinstance(read, dict) and not isinstance(read, MalformedText) and read.get("kind") == kind:
                return str(text)
    return ""
