"""Offline inspection of the documents of slo-controller-config. Pure.

It is stricter than the programs: they run with whatever they can read, here a setting without effect is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from koord.api.config.decode import decode_lenient, unknown_names
from koord.api.config.field_error import FieldError, FieldOrder
from koord.api.config.slo import slo_documents, slo_validation
from koord.api.koordinator.slo import ResourceQOSStrategy
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.manager.webhooks.configmap import NodeStrategyGroup, check_network_shares, find_overlap, has_quantity_shares
from koord.values.selector import Selector, SelectorError

Severity = Literal["error", "warning"]


class ConfigFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One error or warning about a configuration.

    An error is refused or has another effect than it says; a warning is a surprise that may be intended.
    """

    severity: Severity
    key: str  # the document: a data key, or "" where the file is the document
    error: FieldError


def error_findings(key: str, flaws: list[FieldError]) -> list[ConfigFinding]:
    return [ConfigFinding(severity="error", key=key, error=flaw) for flaw in flaws]


def warning_finding(key: str, path: str, text: str) -> ConfigFinding:
    return ConfigFinding(severity="warning", key=key, error=FieldError(path, None, text))


REFUSED_BY_WEBHOOK = "refused where the ConfigMap webhook is on"

_RANGES: Mapping[str, Callable[[Any], list[FieldError]]] = {
    slo_documents.COLOCATION: slo_documents.validate_admission,
    slo_documents.RESOURCE_THRESHOLD: slo_validation.validate_threshold,
    slo_documents.RESOURCE_QOS: slo_validation.validate_qos,
    slo_documents.CPU_BURST: slo_validation.validate_cpu_burst,
    slo_documents.SYSTEM: slo_validation.validate_system,
}


def inspect_slo_config(data: Mapping[str, str]) -> list[ConfigFinding]:
    """Inspect all documents, in the order of the keys' table, unknown keys last."""
    found: list[ConfigFinding] = []
    read_documents: dict[str, Any] = {}
    for key in (key for key in slo_documents.KEYS if data.get(key)):
        config = decode_lenient(data[key], slo_documents.DOCUMENT_MODELS[key])
        if isinstance(config, FieldError):
            found += error_findings(key, [config])
            continue
        read_documents[key] = config
        found += _inspect_document(key, config, data[key])
    found += _inspect_together(read_documents)
    for key in data:
        if key not in slo_documents.KEYS:
            near = get_close_matches(key, slo_documents.KEYS, n=1, cutoff=0.6)
            hint = f": did you mean {near[0]}?" if near else f"; the keys are {', '.join(slo_documents.KEYS)}"
            found.append(
                ConfigFinding(severity="error", key=key, error=FieldError("", None, f"is not a known key{hint}"))
            )
    return found


def _inspect_document(key: str, config: Any, text: str) -> list[ConfigFinding]:
    found = error_findings(
        key,
        [
            unknown.to_field_error()
            for unknown in unknown_names(msgspec.json.decode(text), slo_documents.DOCUMENT_MODELS[key])
        ],
    )
    flaws = slo_validation.unusable_values(config) + (_RANGES[key](config) if key in _RANGES else [])
    found += error_findings(key, list({flaw.field: flaw for flaw in reversed(flaws)}.values())[::-1])
    found += _inspect_selectors(key, *slo_documents.node_entries(config))
    for path, strategy, pair in _bound_pairs(key, config):
        found += _unpaired_bound(key, path, strategy, pair)
    return found


def _inspect_selectors(key: str, where: str, given: Iterable[Any]) -> list[ConfigFinding]:
    found: list[ConfigFinding] = []
    made: list[tuple[str, Selector]] = []
    usable: list[LabelSelector] = []
    for index, entry in enumerate(given):
        path = f"{where}[{index}].nodeSelector"
        selector: LabelSelector | None = entry.node_selector
        if selector is None:
            found += error_findings(key, [FieldError(path, None, "is missing: the entry is for no node at all")])
            continue
        if not (selector.match_labels or selector.match_expressions):
            found.append(warning_finding(key, path, f"is empty: the entry is for every node; {REFUSED_BY_WEBHOOK}"))
            continue
        try:
            made.append((entry.name or f"{where}[{index}]", label_selector_as_selector(selector)))
            usable.append(selector)
        except SelectorError as error:
            found += error_findings(key, [FieldError(path, None, f"cannot be used: {error}")])
    overlap = find_overlap(NodeStrategyGroup(key=key, strategies=tuple(made)), usable)
    if overlap is not None:
        names = ", ".join(overlap.message["strategies"])
        found += error_findings(
            key, [FieldError(where, None, f"has entries for the same nodes: {names}; the first one wins")]
        )
    return found


def _bound_pairs(key: str, config: Any) -> Iterable[tuple[str, Any, FieldOrder]]:
    if key not in (slo_documents.RESOURCE_THRESHOLD, slo_documents.RESOURCE_QOS):
        return
    placed = [(f"nodeStrategies[{index}].", entry) for index, entry in enumerate(config.node_strategies)]
    for path, strategy in (("clusterStrategy.", config.cluster_strategy), *placed):
        if strategy is None:
            continue
        if key == slo_documents.RESOURCE_THRESHOLD:
            yield from ((path, strategy, pair) for pair in slo_validation.THRESHOLD_PAIRS)
            continue
        for field in msgspec.structs.fields(strategy):
            resctrl = getattr(getattr(strategy, field.name), "resctrl_qos", None)
            if resctrl is not None:
                here = f"{path}{field.encode_name}.resctrlQOS."
                yield from ((here, resctrl, pair) for pair in slo_validation.RESCTRL_QOS_PAIRS)


def _unpaired_bound(key: str, path: str, strategy: Any, pair: FieldOrder) -> list[ConfigFinding]:
    """Warn about one of two bounds: it works, but upstream's webhook compares it with nothing and refuses it."""
    lower, upper = getattr(strategy, pair.lower), getattr(strategy, pair.upper)
    if (lower is None) == (upper is None):
        return []
    names = {f.name: f.encode_name for f in msgspec.structs.fields(strategy)}
    given, other = (pair.upper, pair.lower) if lower is None else (pair.lower, pair.upper)
    text = f"stands without {names[other]}; {REFUSED_BY_WEBHOOK}"
    return [warning_finding(key, f"{path}{names[given]}", text)]


def _inspect_together(documents: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    given = documents.get(slo_documents.COLOCATION)
    if given is not None and not given.enable:
        for index, node in enumerate(given.node_configs):
            if node.enable:
                text = "has no effect on batch and mid resources while enable is false for the cluster"
                yield warning_finding(slo_documents.COLOCATION, f"nodeConfigs[{index}].enable", text)
    system = documents.get(slo_documents.SYSTEM)
    total = None if system is None or system.cluster_strategy is None else system.cluster_strategy
    for index, node in enumerate(system.node_strategies if system is not None else ()):
        silent = node.total_network_bandwidth == "0" and _has_any_setting(node)
        if silent and total is not None and total.total_network_bandwidth != "0":
            text = (
                f"is not stated, so it becomes 0 and not the cluster's {total.total_network_bandwidth}: state it here"
            )
            yield warning_finding(slo_documents.SYSTEM, f"nodeStrategies[{index}].totalNetworkBandwidth", text)
    qos = documents.get(slo_documents.RESOURCE_QOS)
    if qos is not None:
        if system is None:
            yield warning_finding(
                slo_documents.RESOURCE_QOS, "", f"stands without a system-config; {REFUSED_BY_WEBHOOK}"
            )
        yield from _inspect_network(qos, system or slo_documents.SystemConfig())


def _inspect_network(qos: slo_documents.QOSConfig, system: slo_documents.SystemConfig) -> list[ConfigFinding]:
    if slo_validation.strategy_errors(qos):
        return []  # a share that cannot be read has no sum
    refusal = check_network_shares(qos, system)
    if not isinstance(refusal, str):
        return []
    every: list[ResourceQOSStrategy] = [*([qos.cluster_strategy] if qos.cluster_strategy else []), *qos.node_strategies]
    if any(map(has_quantity_shares, every)):  # upstream's webhook adds amounts up as percentages
        text = f"states network requests as amounts; {REFUSED_BY_WEBHOOK}, which adds them up as percentages"
        return [warning_finding(slo_documents.RESOURCE_QOS, "", text)]
    return error_findings(slo_documents.RESOURCE_QOS, [FieldError("", None, refusal)])


def _has_any_setting(node: slo_documents.NodeSystemStrategy) -> bool:
    silent = slo_documents.NodeSystemStrategy(name=node.name, node_selector=node.node_selector)
    return node != silent
