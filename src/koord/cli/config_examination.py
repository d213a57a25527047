"""This module finds what is wrong with the configurations in one file, and on which lines, by the programs'
own rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from koord.api.config.descheduler import configuration as descheduler
from koord.api.config.descheduler.args import API_VERSION as DESCHEDULER_VERSION
from koord.api.config.field_error import FieldError
from koord.api.config.lenient import broken_line
from koord.api.config.scheduler import configuration as scheduler
from koord.api.config.slo import keys
from koord.cli.config_place import child, compose, line_in_text, line_of, repeated, repeated_in_text
from koord.cli.config_summary import summary
from koord.manager.configuration.finding import Finding, errors, warning
from koord.manager.configuration.inspection import inspect

SLO_CONFIG = "slo-controller-config"
_COMPONENTS = (scheduler.KIND, descheduler.KIND)


class Report(msgspec.Struct, kw_only=True):
    """ConfigReport is what was found in one file."""

    file: str
    lines: list[tuple[int, Finding]] = []
    checked: list[str] = []  # one paragraph for each configuration in the file
    skipped: list[str] = []  # kinds that are no configuration of ours

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for _, finding in self.lines)


def examine(file: str, text: str) -> Report:
    report = Report(file=file)
    try:
        documents = compose(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that cannot be one
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        line = 1 if mark is None else mark.line + 1
        report.lines += [(line, finding) for finding in errors("", [FieldError("", None, f"is not YAML: {why}")])]
        return report
    for node, document in documents:
        for part, content in _unfolded(node, document):
            _one(report, part, content)
    if not report.checked and not report.lines:
        found = ", ".join(dict.fromkeys(report.skipped)) or "nothing"
        known = ", ".join(("ConfigMap with slo-controller-config", *_COMPONENTS))
        rule = f"holds no configuration that can be checked: found {found}, expected {known}"
        report.lines += [(1, finding) for finding in errors("", [FieldError("", None, rule)])]
    return report


def _unfolded(node: yaml.Node, document: Any) -> Iterator[tuple[yaml.Node, Any]]:
    """Yield a List's items, or the document itself."""
    items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
    if not isinstance(items, list):
        yield node, document
        return
    for index, item in enumerate(items):
        yield child(child(node, "items"), str(index)) or node, item


def _one(report: Report, node: yaml.Node, document: Any) -> None:
    kind = str(document.get("kind") or "") if isinstance(document, dict) else ""
    if kind in _COMPONENTS:
        lines = [(line_of(node, f.flaw.field), f) for f in _component(kind, document, "")]
        lines += [(line, _twice("", path)) for path, line in repeated(node)]
        _conclude(report, lines, kind, document, "")
    elif kind == "ConfigMap":
        _config_map(report, node, document)
    else:
        report.skipped.append(kind or "a document without a kind")


def _config_map(report: Report, node: yaml.Node, document: dict[str, Any]) -> None:
    data, name = _map(document.get("data")), str(_map(document.get("metadata")).get("name") or "")
    places = {str(key): child(child(node, "data"), str(key)) or node for key in data}
    components = {str(key): inner for key, text in data.items() if (inner := _carried(text)) is not None}
    for key, inner in components.items():
        lines = [(line_in_text(places[key], f.flaw.field), f) for f in _component(inner["kind"], inner, key)]
        lines += [(line, _twice(key, path)) for path, line in repeated_in_text(places[key])]
        _conclude(report, lines, inner["kind"], inner, key)
    if components:
        return
    if name != SLO_CONFIG and not set(data) & set(keys.KEYS):
        report.skipped.append(f"ConfigMap {name}".rstrip())
        return
    texts = {str(key): text for key, text in data.items() if isinstance(text, str)}
    unquoted = FieldError("", None, "must be text: put it in quotes or in a block (|)")
    findings = inspect(texts) + [f for key in places if key not in texts for f in errors(key, [unquoted])]
    lines = []
    for finding in findings:
        broken = broken_line(texts.get(finding.key, "{}")) if not finding.flaw.field else None
        lines.append((line_in_text(places[finding.key], finding.flaw.field, broken), finding))
    for key in texts:
        lines += [(line, _twice(key, path)) for path, line in repeated_in_text(places[key])]
    lines += [(line, _twice("", path)) for path, line in repeated(node)]
    _conclude(report, lines, "ConfigMap", {**document, "data": texts}, name)


def _conclude(report: Report, lines: list[tuple[int, Finding]], kind: str, document: dict[str, Any], name: str) -> None:
    """Add findings and a summary. A configuration with an error has none: what it does is not what it says."""
    report.lines += lines
    if not any(finding.severity == "error" for _, finding in lines):
        report.checked.append(summary(kind, document, name))


def _twice(key: str, path: str) -> Finding:
    return errors(key, [FieldError(path, None, "is given twice, and only the last one counts")])[0]


def _map(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _carried(text: Any) -> dict[str, Any] | None:
    """Return a component's configuration inside a ConfigMap's data, or None."""
    if not isinstance(text, str) or not any(kind in text for kind in _COMPONENTS):
        return None
    try:
        inner = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None
    return inner if isinstance(inner, dict) and inner.get("kind") in _COMPONENTS else None


def _component(kind: str, document: dict[str, Any], key: str) -> list[Finding]:
    return _scheduler(document, key) if kind == scheduler.KIND else _descheduler(document, key)


def _scheduler(document: dict[str, Any], key: str) -> list[Finding]:
    # Only this check needs the plugins and their numeric libraries; the others should not wait for them.
    from koord.scheduler.assembly import Assembly
    from koord.scheduler.assembly import load as load_scheduler
    from koord.scheduler.plugins.registry import REGISTRY

    given = load_scheduler(document)
    made = given if isinstance(given, list) else Assembly.of(given, REGISTRY)
    if isinstance(made, list):
        return errors(key, made)
    text = "are arguments of a plugin that is not enabled, and have no effect"
    return [warning(key, f"profiles: {name}", text) for name in made.unused]


def _descheduler(document: dict[str, Any], key: str) -> list[Finding]:
    from koord.descheduler.assembly import assemble, load
    from koord.descheduler.explain.surprise import surprises

    given = load(document)
    if isinstance(given, list):
        return errors(key, given)
    if document.get("apiVersion") != DESCHEDULER_VERSION:
        rule = f"must be {DESCHEDULER_VERSION}"
        return errors(key, [FieldError("apiVersion", document.get("apiVersion"), rule)])
    made = assemble(given)
    if isinstance(made, list):
        return errors(key, made)
    return [warning(key, path, text) for path, text in surprises(made)]
