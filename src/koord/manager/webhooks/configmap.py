"""The validating admission of slo-controller-config: changed documents must be readable, in range and
unambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import lcm
from typing import Any

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.config.field_error import FieldError
from koord.api.config.lenient import read
from koord.api.config.slo import colocation, keys, strategies
from koord.api.meta import LabelSelector
from koord.api.protocol import REASON_CONFIG_PARAMETER, REASON_PARSE_CONFIG, REASON_STRATEGIES_OVERLAP
from koord.manager.webhooks.config_rule import broken_values
from koord.manager.webhooks.network_share import refused_shares
from koord.manager.webhooks.strategy_group import Group, conflict_text
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.values.quotation import in_json
from koord.values.selector import Selector, SelectorError

MOST_COMBINATIONS = 10_000  # of label values that are tried for one selector

# What upstream calls each document in its messages.
_TITLES = {
    keys.COLOCATION: "colocation",
    keys.RESOURCE_THRESHOLD: "resourceThreshold",
    keys.RESOURCE_QOS: "ResourceQOS",
    keys.SYSTEM: "System",
    keys.CPU_BURST: "CpuBurst",
}
MODELS: Mapping[str, type[Any]] = {
    keys.COLOCATION: colocation.ColocationConfig,
    keys.RESOURCE_THRESHOLD: strategies.ThresholdConfig,
    keys.RESOURCE_QOS: strategies.QOSConfig,
    keys.SYSTEM: strategies.SystemConfig,
    keys.CPU_BURST: strategies.CPUBurstConfig,
}


class View(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str  # where slo-controller-config lives
    name: str
    nodes: Callable[[], Iterable[tuple[str, Mapping[str, str]]]]  # every node's name and labels
    names_needed: bool = False  # --node-strategy-name-need-check


class Refusal(msgspec.Struct, frozen=True):
    reason: str
    message: Any  # text or a map

    def __str__(self) -> str:
        """Return the text in the frame that upstream's consoles look for."""
        return f'___{{"reason":{in_json(self.reason)},"message":{in_json(self.message)}}}___'


def admit_configmap(request: AdmissionRequest, view: View) -> Verdict:
    ours = request.resource.resource == "configmaps" and request.operation in ("CREATE", "UPDATE")
    if not ours or request.object is None or (request.namespace, request.name) != (view.namespace, view.name):
        return Allowed()
    data = request.object.get("data") or {}
    before = ((request.old_object or {}).get("data") or {}) if request.operation == "UPDATE" else {}
    groups = []
    for key in keys.CHECKED:
        if not data.get(key) or data[key] == before.get(key):
            continue
        outcome = check(key, data, view)
        if isinstance(outcome, Refusal):
            return Denied(400, str(outcome))
        groups.append(outcome)
    groups = [group for group in groups if len(group.strategies) > 1]
    for name, labels in sorted(view.nodes()) if groups else ():
        for group in groups:
            names = group.picking(labels)
            if len(names) > 1:
                return Denied(400, conflict_text(group.key, names, name))
    return Allowed()


def check(key: str, data: Mapping[str, str], view: View) -> Group | Refusal:
    """Check one document: return the node strategies of it, or the first refusal."""
    config = _read(key, data, view)
    if isinstance(config, Refusal):
        return config
    system = _read(keys.SYSTEM, data, view) if key == keys.RESOURCE_QOS else None
    if isinstance(system, Refusal):
        return system
    entries = config.node_configs if key == keys.COLOCATION else config.node_strategies
    made: list[tuple[str, Selector]] = []
    for entry in entries:
        selector = _selector(key, entry.name, entry.node_selector)
        if isinstance(selector, Refusal):
            return selector
        made.append((entry.name, selector))
    group = Group(key=key, strategies=tuple(made))
    if values := broken_values(key, config):
        return Refusal(REASON_CONFIG_PARAMETER, values)
    if system is not None and (shares := refused_shares(config, system)):
        return Refusal(REASON_CONFIG_PARAMETER, shares)
    if view.names_needed and (names := _names(key, [name for name, _ in made])):
        return names
    return overlapping(group, [entry.node_selector for entry in entries]) or group


def overlapping(group: Group, selectors: Iterable[LabelSelector]) -> Refusal | None:
    """Return a refusal when labels that one selector asks for also satisfy another."""
    for selector in selectors:
        for labels in _imagined(selector):
            names = group.picking(labels)
            if len(names) > 1:
                return Refusal(REASON_STRATEGIES_OVERLAP, {"config": group.key, "strategies": names})
    return None


def _imagined(selector: LabelSelector) -> Iterable[dict[str, str]]:
    """Yield label sets that the selector asks for. As upstream does, values count whatever the operator."""
    expressions = selector.match_expressions
    rounds = lcm(*(len(e.values) or 1 for e in expressions))
    for turn in range(min(rounds, MOST_COMBINATIONS)):
        taken = {e.key: e.values[turn % len(e.values)] if e.values else "" for e in expressions}
        yield {**selector.match_labels, **taken}


def _read(key: str, data: Mapping[str, str], view: View) -> Any:
    text = data.get(key, "")
    config = read(text, MODELS[key])
    if isinstance(config, FieldError):
        why = "unexpected end of JSON input" if not text.strip() else _sentence(config)
        where = f"{view.namespace}/{view.name}"
        return Refusal(REASON_PARSE_CONFIG, f"Failed to parse {_TITLES[key]} config in configmap {where}, err: {why}")
    return config


def _sentence(flaw: FieldError) -> str:
    return f"{flaw.field} {flaw.rule}".strip()


def _selector(key: str, name: str, given: LabelSelector | None) -> Selector | Refusal:
    if given is None or not (given.match_labels or given.match_expressions):
        text = f"nodeConfigs NodeSelector must not empty error! configType: {key},nodeConfig name:{name}"
        return Refusal(REASON_CONFIG_PARAMETER, text)
    try:
        return Selector.of(given.match_labels, ((e.key, e.operator, e.values) for e in given.match_expressions))
    except SelectorError as error:
        text = f"failed to parse node selector {_in_go(given)},configType: {key},nodeConfig name:{name}, err: {error}"
        return Refusal(REASON_CONFIG_PARAMETER, text)


def _in_go(selector: LabelSelector) -> str:
    labels = "".join(f"{key}: {value}," for key, value in sorted(selector.match_labels.items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{e.key},Operator:{e.operator},Values:[{' '.join(e.values)}],}},"
        for e in selector.match_expressions
    )
    requirements = f"[]LabelSelectorRequirement{{{expressions}}}"
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{requirements},}}"


def _names(key: str, names: list[str]) -> Refusal | None:
    seen: set[str] = set()
    for name in names:
        if not name:
            return Refusal(REASON_CONFIG_PARAMETER, f"nodeConfig Name need! configType:{key}")
        if name in seen:
            return Refusal(
                REASON_CONFIG_PARAMETER, f"nodeConfig Name confilict, configType:{key},nodeConfig Name:{name}! "
            )
        seen.add(name)
    return None
