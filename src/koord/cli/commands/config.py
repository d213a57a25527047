"""This module is `koord config check`: it reports what is wrong with configuration files, and on which lines,
by the programs' own rules, and summarizes what is right. No cluster is needed.

The line of a setting is found in a YAML file, also inside the JSON text that a ConfigMap carries.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import click
import msgspec
import yaml

from koord.api.config.decode import json_error_line
from koord.api.config.descheduler import configuration as descheduler
from koord.api.config.descheduler.plugin_args import API_VERSION as DESCHEDULER_VERSION
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import configuration as scheduler
from koord.api.config.slo import slo_documents
from koord.api.config.slo.slo_documents import REPORT, InterferenceStrategy
from koord.manager.configuration import documents
from koord.manager.configuration.documents import RejectedDocument
from koord.manager.configuration.inspection import ConfigFinding, error_findings, inspect_slo_config, warning_finding
from koord.values.json_text import MalformedText
from koord.values.yaml_text import YAML_ERRORS, JsonYamlLoader, load_yaml, malformed_yaml, yaml_limit_exceeded

_SEGMENT = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


def compose_documents(text: str) -> list[tuple[yaml.Node, Any]] | MalformedText:
    """Return the documents of a file: the node tree with line numbers, and the content; or why there are none."""
    if (malformed := yaml_limit_exceeded(text)) is not None:
        return malformed
    found = []
    try:
        loader = JsonYamlLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                found.append((node, loader.construct_document(node)))
    except YAML_ERRORS as error:
        return malformed_yaml(error)
    return found


def child_node(node: yaml.Node | None, name: str) -> yaml.Node | None:
    """Return the value under a key, ignoring case where no key matches exactly; or the item of a list."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(key.value, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        exact = next((value for key, value in pairs if key == name), None)
        return exact or next((value for key, value in pairs if str(key).lower() == name.lower()), None)
    if isinstance(node, yaml.SequenceNode) and name.isdigit() and int(name) < len(node.value):
        found: yaml.Node = node.value[int(name)]
        return found
    return None


def line_of_path(node: yaml.Node, path: str) -> int:
    """Return the line, counted from 1, of the deepest part of `path` that exists."""
    line: int = node.start_mark.line + 1
    for name in _path_segments(path):
        inner = child_node(node, name)
        if inner is None:
            break
        node = inner
        line = int(node.start_mark.line) + 1
    return line


def line_in_text(node: yaml.Node, path: str, broken: int | None = None) -> int:
    """Return the line of a path in the JSON or YAML text that the scalar `node` holds, or of its line `broken`."""
    line: int = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode) or node.style not in ("|", ">"):
        return line  # quoted text is on one line, or folded beyond recognition
    if broken is not None:
        return line + broken
    if (malformed := yaml_limit_exceeded(node.value)) is not None:
        return line if malformed.line is None else line + malformed.line
    inside = yaml.compose(node.value, Loader=JsonYamlLoader)
    return line if inside is None else line + line_of_path(inside, path)


def duplicate_keys(node: yaml.Node) -> list[tuple[str, int]]:
    """Return the path and line of each key that a map has again, as readers silently take the last."""
    found: list[tuple[str, int]] = []
    _collect_duplicate_keys(node, "", set(), found)
    return found


def duplicate_keys_in_text(node: yaml.Node) -> list[tuple[str, int]]:
    """Return the duplicate keys inside the text that the scalar `node` holds."""
    if not isinstance(node, yaml.ScalarNode) or yaml_limit_exceeded(node.value) is not None:
        return []
    inside = yaml.compose(node.value, Loader=JsonYamlLoader)
    line = int(node.start_mark.line) + 1
    block = node.style in ("|", ">")
    return [] if inside is None else [(path, line + at if block else line) for path, at in duplicate_keys(inside)]


def _collect_duplicate_keys(node: yaml.Node, path: str, met: set[int], found: list[tuple[str, int]]) -> None:
    if id(node) in met:  # an alias may lead back to where we are
        return
    met.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            here = f"{path}.{name}" if path else name
            if name in seen:
                found.append((here, int(key.start_mark.line) + 1))
            seen.add(name)
            _collect_duplicate_keys(value, here, met, found)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_duplicate_keys(item, f"{path}[{index}]", met, found)


def _path_segments(path: str) -> Iterator[str]:
    for match in _SEGMENT.finditer(path):
        yield match.group(1) if match.group(1) is not None else match.group(2)


_DOCUMENT_READERS: dict[str, Any] = {
    slo_documents.COLOCATION: documents.parse_colocation,
    slo_documents.RESOURCE_THRESHOLD: documents.parse_threshold,
    slo_documents.RESOURCE_QOS: documents.parse_qos,
    slo_documents.CPU_BURST: documents.parse_cpu_burst,
    slo_documents.SYSTEM: documents.parse_system,
    slo_documents.HOST_APPLICATION: documents.parse_host_applications,
    slo_documents.CPU_NORMALIZATION: documents.parse_cpu_normalization,
    slo_documents.RESOURCE_AMPLIFICATION: documents.parse_resource_amplification,
    slo_documents.INTERFERENCE: documents.parse_interference,
}
_KEY_WIDTH = max(map(len, slo_documents.KEYS))


def summarize_configuration(kind: str, content: dict[str, Any], name: str) -> str:
    """Summarize a configuration. `name` is the ConfigMap's, or the data key that carries a component's
    configuration.
    """
    if kind == "ConfigMap":
        meta = content.get("metadata") or {}
        data = content.get("data") or {}
        title = "/".join(part for part in (meta.get("namespace"), meta.get("name")) if part)
        lines = [f"  {key:<{_KEY_WIDTH}}  {_summarize_document(key, data.get(key, ''))}" for key in slo_documents.KEYS]
        return "\n".join((f"  ConfigMap {title}".rstrip(), *(f"  {line}" for line in lines)))
    title = f"{kind} under {name}" if name else kind
    profiles = content.get("profiles") or [{}]
    return "\n".join((f"  {title}", *(f"    profile {_summarize_profile(profile)}" for profile in profiles)))


def _summarize_document(key: str, text: Any) -> str:
    if not text:
        return "not set: the defaults"
    read = _DOCUMENT_READERS[key](text)
    if isinstance(read, RejectedDocument):
        return "not usable"
    layers = read.value
    nodes = ", ".join(layer.name or "(unnamed)" for layer in layers.nodes)
    return _summarize_cluster_layer(layers.cluster) + (f"; other settings for the nodes of {nodes}" if nodes else "")


def _summarize_cluster_layer(cluster: Any) -> str:
    if isinstance(cluster, tuple):
        names = ", ".join(application.name for application in cluster)
        return f"host applications {names}" if names else "no host applications"
    if isinstance(cluster, InterferenceStrategy):
        return "off" if cluster.enable is False else f"action {cluster.action or REPORT}"
    if hasattr(cluster, "enable"):
        return "on" if cluster.enable else "off"
    if hasattr(cluster, "policy"):
        return f"policy {cluster.policy}"
    return "set"


def _summarize_profile(profile: dict[str, Any]) -> str:
    name = profile.get("schedulerName") or profile.get("name") or "(default name)"
    configured = [entry.get("name", "") for entry in profile.get("pluginConfig") or ()]
    return (
        f"{name}: {_enabled_plugins_text(profile)}arguments for {', '.join(configured)}"
        if configured
        else f"{name}: {_enabled_plugins_text(profile)}default arguments"
    )


def _enabled_plugins_text(profile: dict[str, Any]) -> str:
    """List what a profile of the descheduler enables; schedulers have too many points for a line."""
    points = profile.get("plugins") or {}
    enabled = {
        point: ", ".join(one.get("name", "") for one in (points.get(point) or {}).get("enabled") or ())
        for point in ("deschedule", "balance")
    }
    return "".join(f"{point} by {names}; " for point, names in enabled.items() if names)


SLO_CONFIG = "slo-controller-config"
_COMPONENTS = (scheduler.KIND, descheduler.KIND)


class ConfigReport(msgspec.Struct, kw_only=True):
    """ConfigReport is what was found in one file."""

    file: str
    lines: list[tuple[int, ConfigFinding]] = []
    checked: list[str] = []  # one paragraph for each configuration in the file
    skipped: list[str] = []  # kinds that are no configuration of ours

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for _, finding in self.lines)


def check_text(file: str, text: str) -> ConfigReport:
    report = ConfigReport(file=file)
    documents = compose_documents(text)
    if isinstance(documents, MalformedText):
        findings = error_findings("", [FieldError("", None, documents.reason)])
        report.lines += [(documents.line or 1, finding) for finding in findings]
        return report
    for node, config_document in documents:
        for part, content in _list_items(node, config_document):
            _check_document(report, part, content)
    if not report.checked and not report.lines:
        found = ", ".join(dict.fromkeys(report.skipped)) or "nothing"
        known = ", ".join(("ConfigMap with slo-controller-config", *_COMPONENTS))
        rule = f"holds no configuration that can be checked: found {found}, expected {known}"
        report.lines += [(1, finding) for finding in error_findings("", [FieldError("", None, rule)])]
    return report


def _list_items(node: yaml.Node, config_document: Any) -> Iterator[tuple[yaml.Node, Any]]:
    """Yield a List's items, or the document itself."""
    items = (
        config_document.get("items")
        if isinstance(config_document, dict) and config_document.get("kind") == "List"
        else None
    )
    if not isinstance(items, list):
        yield node, config_document
        return
    for index, item in enumerate(items):
        yield child_node(child_node(node, "items"), str(index)) or node, item


def _check_document(report: ConfigReport, node: yaml.Node, config_document: Any) -> None:
    kind = str(config_document.get("kind") or "") if isinstance(config_document, dict) else ""
    if kind in _COMPONENTS:
        lines = [(line_of_path(node, f.error.field), f) for f in _check_component(kind, config_document, "")]
        lines += [(line, _duplicate_key_finding("", path)) for path, line in duplicate_keys(node)]
        _add_findings(report, lines, kind, config_document, "")
    elif kind == "ConfigMap":
        _check_config_map(report, node, config_document)
    else:
        report.skipped.append(kind or "a document without a kind")


def _check_config_map(report: ConfigReport, node: yaml.Node, config_document: dict[str, Any]) -> None:
    data, name = (
        _dict_or_empty(config_document.get("data")),
        str(_dict_or_empty(config_document.get("metadata")).get("name") or ""),
    )
    places = {str(key): child_node(child_node(node, "data"), str(key)) or node for key in data}
    components = {str(key): inner for key, text in data.items() if (inner := _embedded_configuration(text)) is not None}
    for key, inner in components.items():
        lines = [(line_in_text(places[key], f.error.field), f) for f in _check_component(inner["kind"], inner, key)]
        lines += [(line, _duplicate_key_finding(key, path)) for path, line in duplicate_keys_in_text(places[key])]
        _add_findings(report, lines, inner["kind"], inner, key)
    if components:
        return
    if name != SLO_CONFIG and not set(data) & set(slo_documents.KEYS):
        report.skipped.append(f"ConfigMap {name}".rstrip())
        return
    texts = {str(key): text for key, text in data.items() if isinstance(text, str)}
    unquoted = FieldError("", None, "must be text: put it in quotes or in a block (|)")
    findings = inspect_slo_config(texts) + [
        f for key in places if key not in texts for f in error_findings(key, [unquoted])
    ]
    lines = []
    for finding in findings:
        broken = json_error_line(texts.get(finding.key, "{}")) if not finding.error.field else None
        lines.append((line_in_text(places[finding.key], finding.error.field, broken), finding))
    for key in texts:
        lines += [(line, _duplicate_key_finding(key, path)) for path, line in duplicate_keys_in_text(places[key])]
    lines += [(line, _duplicate_key_finding("", path)) for path, line in duplicate_keys(node)]
    _add_findings(report, lines, "ConfigMap", {**config_document, "data": texts}, name)


def _add_findings(
    report: ConfigReport, lines: list[tuple[int, ConfigFinding]], kind: str, config_document: dict[str, Any], name: str
) -> None:
    """Add findings and a summary. A configuration with an error has none: what it does is not what it says."""
    report.lines += lines
    if not any(finding.severity == "error" for _, finding in lines):
        report.checked.append(summarize_configuration(kind, config_document, name))


def _duplicate_key_finding(key: str, path: str) -> ConfigFinding:
    return error_findings(key, [FieldError(path, None, "is given twice, and only the last one counts")])[0]


def _dict_or_empty(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _embedded_configuration(text: Any) -> dict[str, Any] | None:
    """Return a component's configuration inside a ConfigMap's data, or None."""
    if not isinstance(text, str) or not any(kind in text for kind in _COMPONENTS):
        return None
    inner = load_yaml(text)
    return inner if isinstance(inner, dict) and inner.get("kind") in _COMPONENTS else None


def _check_component(kind: str, config_document: dict[str, Any], key: str) -> list[ConfigFinding]:
    return (
        _check_scheduler(config_document, key) if kind == scheduler.KIND else _check_descheduler(config_document, key)
    )


def _check_scheduler(config_document: dict[str, Any], key: str) -> list[ConfigFinding]:
    # Only this check needs the plugins and their numeric libraries; the others should not wait for them.
    from koord.scheduler.configuration.completed_config import CompletedConfig
    from koord.scheduler.configuration.config_file import load_configuration as load_scheduler
    from koord.scheduler.configuration.plugin_selection import profiles_without_koordinator
    from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, load_plugins

    given = load_scheduler(config_document)
    factories = load_plugins(entry_points(group=ENTRY_POINT_GROUP)).factories
    made = given if isinstance(given, list) else CompletedConfig.complete(given, factories)
    if isinstance(made, list):
        return error_findings(key, made)
    text = "are arguments of a plugin that is not enabled, and have no effect"
    warnings = [warning_finding(key, f"profiles: {name}", text) for name in made.unused_plugin_configs]
    return warnings + [warning_finding(key, "profiles", words) for words in profiles_without_koordinator(made.config)]


def _check_descheduler(config_document: dict[str, Any], key: str) -> list[ConfigFinding]:
    from koord.descheduler.configuration import build_setup, config_warnings, load_config

    given = load_config(config_document)
    if isinstance(given, list):
        return error_findings(key, given)
    if config_document.get("apiVersion") != DESCHEDULER_VERSION:
        rule = f"must be {DESCHEDULER_VERSION}"
        return error_findings(key, [FieldError("apiVersion", config_document.get("apiVersion"), rule)])
    made = build_setup(given)
    if isinstance(made, list):
        return error_findings(key, made)
    return [warning_finding(key, path, text) for path, text in config_warnings(made)]


_MAX_VALUE_CHARS = 60  # characters of a value


@click.group()
def config() -> None:
    """Look at configuration files."""


@config.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Warnings fail the check as well.")
@click.option("-q", "--quiet", is_flag=True, help="Print problems only.")
def check(files: tuple[str, ...], strict: bool, quiet: bool) -> None:
    """Check configuration files without a cluster.

    Knows the slo-controller-config ConfigMap, KubeSchedulerConfiguration and DeschedulerConfiguration, alone or inside
    a ConfigMap; - reads standard input. Prints one line for each problem, as FILE:LINE. Ends with 0 when all is well,
    1 when something is wrong, 2 when a file cannot be read.
    """
    reports = []
    for file in files:
        try:
            with click.open_file(file, encoding="utf-8") as stream:
                text = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            click.echo(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}", err=True)
            sys.exit(2)
        reports.append(check_text(file, text))
    for report in reports:
        _print_report(report, quiet)
    bad = sum(report.count("error") + (report.count("warning") if strict else 0) for report in reports)
    sys.exit(1 if bad else 0)


def _print_report(report: ConfigReport, quiet: bool) -> None:
    for line, finding in sorted(report.lines, key=lambda entry: entry[0]):
        click.echo(_finding_line(report.file, line, finding))
    wrong, warned = report.count("error"), report.count("warning")
    if quiet:
        return
    if wrong or warned:
        parts = [_counted(wrong, "error")] * bool(wrong) + [_counted(warned, "warning")] * bool(warned)
        click.echo(click.style(f"{report.file}: {', '.join(parts)}", bold=True))
    else:
        click.echo(click.style(f"{report.file}: OK", fg="green", bold=True))
    if not wrong:
        for paragraph in report.checked:
            click.echo(paragraph)


def _finding_line(file: str, line: int, finding: ConfigFinding) -> str:
    severity = click.style(finding.severity, fg="red" if finding.severity == "error" else "yellow", bold=True)
    return f"{click.style(f'{file}:{line}', bold=True)}: {severity}: {finding_text(finding)}"


def finding_text(finding: ConfigFinding) -> str:
    """Return what is wrong: the key and field, the value, and the rule that it breaks."""
    flaw = finding.error
    where = ": ".join(part for part in (finding.key, flaw.field) if part)
    shown = ""
    if flaw.value is not None:
        text = msgspec.json.encode(flaw.value).decode()
        shown = f" is {text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + '…'},"
    rule = flaw.rule
    if rule[:1].isupper():  # a sentence of its own, from the decoder
        where, rule = f"{where}:", rule[0].lower() + rule[1:]
    return f"{where}{shown} {rule}".strip()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
