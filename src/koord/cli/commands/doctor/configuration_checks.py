"""This module checks the ConfigMaps of an installation by the rules of `koord config check`, with the line inside of
the entry that holds the configuration.
"""

from __future__ import annotations

import yaml

from koord.api.model import Obj
from koord.cli.commands.config import check_text, child_node, compose_documents, finding_text
from koord.cli.commands.doctor.facts import ClusterFacts, Unread, mapping, name_of, unread_findings
from koord.cli.commands.doctor.finding import Diagnosis, Finding
from koord.cli.commands.doctor.installation import DESCHEDULER, MANAGER, SCHEDULER, installed_programs
from koord.values.json_text import MalformedText

CONFIGURATION = "configuration"
CONFIG_MAPS = {
    "slo-controller-config": MANAGER,
    "koord-scheduler-config": SCHEDULER,
    "koord-descheduler-config": DESCHEDULER,
}
_EDIT = "kubectl -n {namespace} edit configmap {name}"

CONFIG_ERROR = Diagnosis(
    kind=("configuration-error", CONFIGURATION, "error"),
    title="A configuration has an error, named with its entry and line.",
    why="The program refuses it: it keeps the last good one, or does not start.",
    fix=_EDIT,
)
CONFIG_WARNING = Diagnosis(
    kind=("configuration-warning", CONFIGURATION, "warning"),
    title="A configuration has something that does not do what it says.",
    why="It is accepted and has no effect.",
    fix=_EDIT,
)
CONFIG_MISSING = Diagnosis(
    kind=("configuration-missing", CONFIGURATION, "info"),
    title="The ConfigMap of an installed program is missing.",
    why="The program works by its defaults, or by a file from elsewhere.",
    fix="koord manifests --namespace {namespace}",
)
DIAGNOSES = (CONFIG_ERROR, CONFIG_WARNING, CONFIG_MISSING)


def check_configuration(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.config_maps, Unread):
        return unread_findings(CONFIGURATION, facts.config_maps)
    present = {name_of(one): one for one in facts.config_maps}
    found = []
    for name, program in CONFIG_MAPS.items():
        if name in present:
            found += config_map_findings(facts.namespace, name, present[name])
        elif program in installed_programs(facts) and program not in facts.in_process:
            what = f"ConfigMap {facts.namespace}/{name} of {program} does not exist"
            found.append(CONFIG_MISSING.found(what, (name,), namespace=facts.namespace))
    return found


def config_map_findings(namespace: str, name: str, config_map: Obj) -> list[Finding]:
    data = {key: value for key, value in mapping(config_map, "data").items() if isinstance(value, str)}
    shown = yaml.dump(
        {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}, Dumper=_BlockDumper, sort_keys=False, width=1e6
    )
    before = _lines_before_entries(shown)
    found = []
    for line, one in sorted(check_text(name, shown).lines, key=lambda entry: entry[0]):
        inside = line - before.get(one.key, line)
        place = f", {one.key}" * bool(one.key) + f", line {inside}" * (inside > 0)
        diagnosis = CONFIG_ERROR if one.severity == "error" else CONFIG_WARNING
        what = f"ConfigMap {name}{place}: {finding_text(one).removeprefix(f'{one.key}: ')}"
        found.append(diagnosis.found(what, (name,), namespace=namespace, name=name))
    return found


def _lines_before_entries(shown: str) -> dict[str, int]:
    """Return for each entry in block style the line that its text follows."""
    documents = compose_documents(shown)
    if isinstance(documents, MalformedText) or not documents:
        return {}
    data = child_node(documents[0][0], "data")
    pairs = data.value if isinstance(data, yaml.MappingNode) else []
    return {str(key.value): value.start_mark.line + 1 for key, value in pairs if value.style == "|"}


class _BlockDumper(yaml.SafeDumper):
    """_BlockDumper writes every text in block style, so that lines can be counted inside of it."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text or "{" in text else None)


_BlockDumper.add_representer(str, _represent_block)
