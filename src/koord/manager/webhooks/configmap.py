"""The validating admission of slo-controller-config: changed documents must be readable, in range and unambiguous.

What upstream refuses is refused in its words. What it lets pass and no node can use is refused as well. `koord config
check` inspects all documents, offline. A node may match one strategy of a document only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import lcm
from typing import Any

import msgspec

from koord.api.config.decode import decode_lenient
from koord.api.config.field_error import FieldError
from koord.api.config.slo import slo_documents
from koord.api.koordinator import protocol
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.slo_config_rules import check_network_shares, find_unusable_values, find_value_errors
from koord.values.go_format import in_json
from koord.values.selector import Selector, SelectorError


class NodeStrategyGroup(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    strategies: tuple[tuple[str, Selector], ...]  # name and nodes

    def strategies_matching(self, labels: Mapping[str, str]) -> list[str]:
        return [name for name, selector in self.strategies if selector.matches(labels)]


def node_strategy_groups(data: Mapping[str, str]) -> list[NodeStrategyGroup]:
    """Return the groups in the order of checking; a document that cannot be read is left out."""
    found = []
    for key in slo_documents.VALIDATED_KEYS:
        document = decode_lenient(data.get(key, ""), slo_documents.DOCUMENT_MODELS[key])
        if isinstance(document, FieldError):
            continue
        if key == slo_documents.RESOURCE_QOS and isinstance(
            decode_lenient(data.get(slo_documents.SYSTEM, ""), slo_documents.DOCUMENT_MODELS[slo_documents.SYSTEM]),
            FieldError,
        ):
            continue  # upstream reads the two together
        made = _build_group(key, slo_documents.node_entries(document)[1])
        if made is not None:
            found.append(made)
    return found


def _build_group(key: str, entries: Iterable[Any]) -> NodeStrategyGroup | None:
    made = []
    for entry in entries:
        given = entry.node_selector
        if given is None or not (given.match_labels or given.match_expressions):
            return None
        try:
            made.append((entry.name, label_selector_as_selector(given)))
        except SelectorError:
            return None
    return NodeStrategyGroup(key=key, strategies=tuple(made))


def conflict_text(key: str, names: list[str], node: str) -> str:
    """Return the refusal for a node that several strategies match, in the frame that upstream's consoles look for."""
    message = f'{{"config":{in_json(key)},"strategies":{in_json(names)},"exampleNodes":{in_json([node])}}}'
    return f'___{{"reason":{in_json(protocol.REASON_NODE_CONFLICT)},"message":{message}}}___'


MAX_LABEL_COMBINATIONS = 10_000  # of label values that are tried for one selector

# What upstream calls each document in its messages.
_TITLES = {
    slo_documents.COLOCATION: "colocation",
    slo_documents.RESOURCE_THRESHOLD: "resourceThreshold",
    slo_documents.RESOURCE_QOS: "ResourceQOS",
    slo_documents.SYSTEM: "System",
    slo_documents.CPU_BURST: "CpuBurst",
}


class ConfigMapAdmissionContext(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str  # where slo-controller-config lives
    name: str
    nodes: Callable[[], Iterable[tuple[str, Mapping[str, str]]]]  # every node's name and labels
    require_names: bool = False  # --node-strategy-name-need-check


class ConfigRefusal(msgspec.Struct, frozen=True):
    reason: str
    message: Any  # text or a map

    def __str__(self) -> str:
        """Return the text in the frame that upstream's consoles look for."""
        return f'___{{"reason":{in_json(self.reason)},"message":{in_json(self.message)}}}___'


def admit_configmap(request: AdmissionRequest, context: ConfigMapAdmissionContext) -> AdmissionDecision:
    ours = request.resource.resource == "configmaps" and request.operation in ("CREATE", "UPDATE")
    if not ours or request.object is None or (request.namespace, request.name) != (context.namespace, context.name):
        return AdmissionAllowed()
    data = request.object.get("data") or {}
    before = ((request.old_object or {}).get("data") or {}) if request.operation == "UPDATE" else {}
    groups = []
    for key in slo_documents.VALIDATED_KEYS:
        if not data.get(key) or data[key] == before.get(key):
            continue
        outcome = check_document(key, data, context)
        if isinstance(outcome, ConfigRefusal):
            return AdmissionDenied(400, str(outcome))
        groups.append(outcome)
    for key in (key for key in slo_documents.KEYS if key not in slo_documents.VALIDATED_KEYS):
        # Upstream does not look at these. Text that cannot be read is left to the controllers, which tell of it.
        text = data.get(key, "")
        config = decode_lenient(text, slo_documents.DOCUMENT_MODELS[key]) if text != before.get(key, "") else None
        if config is None or isinstance(config, FieldError):
            continue
        if unusable := find_unusable_values(key, config):
            return AdmissionDenied(400, str(ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, unusable)))
    groups = [group for group in groups if len(group.strategies) > 1]
    for name, labels in sorted(context.nodes()) if groups else ():
        for group in groups:
            names = group.strategies_matching(labels)
            if len(names) > 1:
                return AdmissionDenied(400, conflict_text(group.key, names, name))
    return AdmissionAllowed()


def check_document(
    key: str, data: Mapping[str, str], context: ConfigMapAdmissionContext
) -> NodeStrategyGroup | ConfigRefusal:
    """Check one document: return the node strategies of it, or the first refusal."""
    config = _read_document(key, data, context)
    if isinstance(config, ConfigRefusal):
        return config
    system = _read_document(slo_documents.SYSTEM, data, context) if key == slo_documents.RESOURCE_QOS else None
    if isinstance(system, ConfigRefusal):
        return system
    _, entries = slo_documents.node_entries(config)
    made: list[tuple[str, Selector]] = []
    for entry in entries:
        selector = _build_selector(key, entry.name, entry.node_selector)
        if isinstance(selector, ConfigRefusal):
            return selector
        made.append((entry.name, selector))
    group = NodeStrategyGroup(key=key, strategies=tuple(made))
    if values := find_value_errors(key, config):
        return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, values)
    if system is not None and (shares := check_network_shares(config, system)):
        return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, shares)
    if unusable := find_unusable_values(key, config):
        return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, unusable)
    if context.require_names and (names := _check_names(key, [name for name, _ in made])):
        return names
    return find_overlap(group, [entry.node_selector for entry in entries]) or group


def find_overlap(group: NodeStrategyGroup, selectors: Iterable[LabelSelector]) -> ConfigRefusal | None:
    """Return a refusal when labels that one selector asks for also satisfy another."""
    for selector in selectors:
        for labels in _sample_label_sets(selector):
            names = group.strategies_matching(labels)
            if len(names) > 1:
                return ConfigRefusal(protocol.REASON_STRATEGIES_OVERLAP, {"config": group.key, "strategies": names})
    return None


def _sample_label_sets(selector: LabelSelector) -> Iterable[dict[str, str]]:
    """Yield label sets that the selector asks for. As upstream does, values count whatever the operator."""
    expressions = selector.match_expressions
    rounds = lcm(*(len(e.values) or 1 for e in expressions))
    for turn in range(min(rounds, MAX_LABEL_COMBINATIONS)):
        taken = {e.key: e.values[turn % len(e.values)] if e.values else "" for e in expressions}
        yield {**selector.match_labels, **taken}


def _read_document(key: str, data: Mapping[str, str], context: ConfigMapAdmissionContext) -> Any:
    text = data.get(key, "")
    config = decode_lenient(text, slo_documents.DOCUMENT_MODELS[key])
    if isinstance(config, FieldError):
        why = "unexpected end of JSON input" if not text.strip() else f"{config.field} {config.rule}".strip()
        where = f"{context.namespace}/{context.name}"
        return ConfigRefusal(
            protocol.REASON_PARSE_CONFIG, f"Failed to parse {_TITLES[key]} config in configmap {where}, err: {why}"
        )
    return config


def _build_selector(key: str, name: str, given: LabelSelector | None) -> Selector | ConfigRefusal:
    if given is None or not (given.match_labels or given.match_expressions):
        text = f"nodeConfigs NodeSelector must not empty error! configType: {key},nodeConfig name:{name}"
        return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, text)
    try:
        return label_selector_as_selector(given)
    except SelectorError as error:
        selector = _format_selector_in_go(given)
        text = f"failed to parse node selector {selector},configType: {key},nodeConfig name:{name}, err: {error}"
        return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, text)


def _format_selector_in_go(selector: LabelSelector) -> str:
    labels = "".join(f"{key}: {value}," for key, value in sorted(selector.match_labels.items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{e.key},Operator:{e.operator},Values:[{' '.join(e.values)}],}},"
        for e in selector.match_expressions
    )
    requirements = f"[]LabelSelectorRequirement{{{expressions}}}"
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{requirements},}}"


def _check_names(key: str, names: list[str]) -> ConfigRefusal | None:
    seen: set[str] = set()
    for name in names:
        if not name:
            return ConfigRefusal(protocol.REASON_CONFIG_PARAMETER, f"nodeConfig Name need! configType:{key}")
        if name in seen:
            return ConfigRefusal(
                protocol.REASON_CONFIG_PARAMETER,
                f"nodeConfig Name confilict, configType:{key},nodeConfig Name:{name}! ",
            )
        seen.add(name)
    return None
