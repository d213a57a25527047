"""Offline inspection of the documents of slo-controller-config. Pure.

It is stricter than the programs: they run with whatever they can read, here a setting without effect is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from koord.api.config.field_error import FieldError, within
from koord.api.config.lenient import read, unknown_names
from koord.api.config.slo import admission, colocation, keys, ratios, strategies
from koord.api.config.slo.choice import unknown_words
from koord.api.config.slo.limit import Ordered
from koord.api.meta import LabelSelector
from koord.api.slo_strategy import ResourceQOSStrategy
from koord.manager.configuration.finding import Finding, errors, warning
from koord.manager.webhooks.configmap import overlapping
from koord.manager.webhooks.network_share import in_amounts, refused_shares, unusable_shares
from koord.manager.webhooks.strategy_group import Group
from koord.values.selector import Selector, SelectorError

WEBHOOK = "refused where the ConfigMap webhook is on"

_MODELS: Mapping[str, type[Any]] = {
    keys.COLOCATION: colocation.ColocationConfig,
    keys.RESOURCE_THRESHOLD: strategies.ThresholdConfig,
    keys.RESOURCE_QOS: strategies.QOSConfig,
    keys.CPU_BURST: strategies.CPUBurstConfig,
    keys.SYSTEM: strategies.SystemConfig,
    keys.HOST_APPLICATION: strategies.HostApplicationConfig,
    keys.CPU_NORMALIZATION: ratios.CPUNormalizationConfig,
    keys.RESOURCE_AMPLIFICATION: ratios.ResourceAmplificationConfig,
}
_RANGES: Mapping[str, Callable[[Any], list[FieldError]]] = {
    keys.COLOCATION: colocation.validate_admission,
    keys.RESOURCE_THRESHOLD: admission.validate_threshold,
    keys.RESOURCE_QOS: admission.validate_qos,
    keys.CPU_BURST: admission.validate_cpu_burst,
    keys.SYSTEM: admission.validate_system,
}


def inspect(data: Mapping[str, str]) -> list[Finding]:
    """Inspect all documents, in the order of the keys' table, unknown keys last."""
    found: list[Finding] = []
    read_documents: dict[str, Any] = {}
    for key in (key for key in keys.KEYS if data.get(key)):
        config = read(data[key], _MODELS[key])
        if isinstance(config, FieldError):
            found += errors(key, [config])
            continue
        read_documents[key] = config
        found += _document(key, config, data[key])
    found += _together(read_documents)
    for key in data:
        if key not in keys.KEYS:
            near = get_close_matches(key, keys.KEYS, n=1, cutoff=0.6)
            hint = f": did you mean {near[0]}?" if near else f"; the keys are {', '.join(keys.KEYS)}"
            found.append(Finding(severity="error", key=key, flaw=FieldError("", None, f"is not a known key{hint}")))
    return found


def _document(key: str, config: Any, text: str) -> list[Finding]:
    found = errors(key, [unknown.flaw() for unknown in unknown_names(msgspec.json.decode(text), _MODELS[key])])
    found += errors(key, unknown_words(config))
    if key in _RANGES:
        found += errors(key, _RANGES[key](config))
    else:
        found += errors(key, _ratio_errors(config))
    found += _selectors(key, *entries(key, config))
    for path, strategy, pair in _pairs(key, config):
        found += _lonely(key, path, strategy, pair)
    return found


def entries(key: str, config: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name of the list of node entries, and the entries."""
    nested = key in (keys.RESOURCE_THRESHOLD, keys.RESOURCE_QOS, keys.CPU_BURST, keys.SYSTEM)
    return ("nodeStrategies", config.node_strategies) if nested else ("nodeConfigs", config.node_configs)


def _selectors(key: str, where: str, given: Iterable[Any]) -> list[Finding]:
    found: list[Finding] = []
    made: list[tuple[str, Selector]] = []
    usable: list[LabelSelector] = []
    for index, entry in enumerate(given):
        path = f"{where}[{index}].nodeSelector"
        selector: LabelSelector | None = entry.node_selector
        if selector is None:
            found += errors(key, [FieldError(path, None, "is missing: the entry is for no node at all")])
            continue
        if not (selector.match_labels or selector.match_expressions):
            found.append(warning(key, path, f"is empty: the entry is for every node; {WEBHOOK}"))
            continue
        try:
            expressions = [(e.key, e.operator, e.values) for e in selector.match_expressions]
            made.append((entry.name or f"{where}[{index}]", Selector.of(selector.match_labels, expressions)))
            usable.append(selector)
        except SelectorError as error:
            found += errors(key, [FieldError(path, None, f"cannot be used: {error}")])
    overlap = overlapping(Group(key=key, strategies=tuple(made)), usable)
    if overlap is not None:
        names = ", ".join(overlap.message["strategies"])
        found += errors(key, [FieldError(where, None, f"has entries for the same nodes: {names}; the first one wins")])
    return found


def _ratio_errors(config: Any) -> list[FieldError]:
    flaws: list[FieldError] = []
    if isinstance(config, ratios.CPUNormalizationConfig):
        for path, normalization in (("", config), *_placed(config.node_configs)):
            flaws += _one_ratio(f"{path}defaultRatio", normalization.default_ratio)
            for cpu, of_model in normalization.ratio_model.items():
                for field in msgspec.structs.fields(of_model):
                    here = f"{path}ratioModel[{cpu}].{field.encode_name}"
                    flaws += _one_ratio(here, getattr(of_model, field.name))
    elif isinstance(config, ratios.ResourceAmplificationConfig):
        for path, amplification in (("", config), *_placed(config.node_configs)):
            for resource, ratio in amplification.resource_amplification_ratio.items():
                flaws += within(f"{path}resourceAmplificationRatio[{resource}]", ratio, low=1)
    return flaws


def _placed(given: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"nodeConfigs[{index}].", entry) for index, entry in enumerate(given)]


def _one_ratio(path: str, ratio: float | None) -> list[FieldError]:
    return within(path, ratio, low=ratios.LOWEST_RATIO, high=ratios.HIGHEST_RATIO)


def _pairs(key: str, config: Any) -> Iterable[tuple[str, Any, Ordered]]:
    if key not in (keys.RESOURCE_THRESHOLD, keys.RESOURCE_QOS):
        return
    placed = [(f"nodeStrategies[{index}].", entry) for index, entry in enumerate(config.node_strategies)]
    for path, strategy in (("clusterStrategy.", config.cluster_strategy), *placed):
        if strategy is None:
            continue
        if key == keys.RESOURCE_THRESHOLD:
            yield from ((path, strategy, pair) for pair in admission.THRESHOLD_PAIRS)
            continue
        for field in msgspec.structs.fields(strategy):
            resctrl = getattr(getattr(strategy, field.name), "resctrl_qos", None)
            if resctrl is not None:
                here = f"{path}{field.encode_name}.resctrlQOS."
                yield from ((here, resctrl, pair) for pair in admission.RESCTRL_QOS_PAIRS)


def _lonely(key: str, path: str, strategy: Any, pair: Ordered) -> list[Finding]:
    """Warn about one of two bounds: it works, but upstream's webhook compares it with nothing and refuses it."""
    lower, upper = getattr(strategy, pair.lower), getattr(strategy, pair.upper)
    if (lower is None) == (upper is None):
        return []
    names = {f.name: f.encode_name for f in msgspec.structs.fields(strategy)}
    given, other = (pair.upper, pair.lower) if lower is None else (pair.lower, pair.upper)
    text = f"stands without {names[other]}; {WEBHOOK}"
    return [warning(key, f"{path}{names[given]}", text)]


def _together(documents: Mapping[str, Any]) -> list[Finding]:
    """Find what shows only when documents are read together."""
    found: list[Finding] = []
    given = documents.get(keys.COLOCATION)
    if given is not None and not given.enable:
        for index, node in enumerate(given.node_configs):
            if node.enable:
                text = "has no effect on batch and mid resources while enable is false for the cluster"
                found.append(warning(keys.COLOCATION, f"nodeConfigs[{index}].enable", text))
    system = documents.get(keys.SYSTEM)
    total = None if system is None or system.cluster_strategy is None else system.cluster_strategy
    for index, node in enumerate(system.node_strategies if system is not None else ()):
        silent = node.total_network_bandwidth == "0" and _says_something(node)
        if silent and total is not None and total.total_network_bandwidth != "0":
            text = (
                f"is not stated, so it becomes 0 and not the cluster's {total.total_network_bandwidth}: state it here"
            )
            found.append(warning(keys.SYSTEM, f"nodeStrategies[{index}].totalNetworkBandwidth", text))
    qos = documents.get(keys.RESOURCE_QOS)
    if qos is not None:
        if system is None:
            found.append(warning(keys.RESOURCE_QOS, "", f"stands without a system-config; {WEBHOOK}"))
        found += _network(qos, system or strategies.SystemConfig())
    return found


def _network(qos: strategies.QOSConfig, system: strategies.SystemConfig) -> list[Finding]:
    every: list[tuple[str, ResourceQOSStrategy]] = [
        (f"nodeStrategies[{index}].", node) for index, node in enumerate(qos.node_strategies)
    ]
    if qos.cluster_strategy is not None:
        every.insert(0, ("clusterStrategy.", qos.cluster_strategy))
    flaws = [flaw for path, strategy in every for flaw in unusable_shares(strategy, path)]
    if flaws:
        return errors(keys.RESOURCE_QOS, flaws)
    refusal = refused_shares(qos, system)
    if not isinstance(refusal, str):
        return []
    if any(in_amounts(strategy) for _, strategy in every):  # upstream's webhook adds amounts up as percentages
        text = f"states network requests as amounts; {WEBHOOK}, which adds them up as percentages"
        return [warning(keys.RESOURCE_QOS, "", text)]
    return errors(keys.RESOURCE_QOS, [FieldError("", None, refusal)])


def _says_something(node: strategies.NodeSystemStrategy) -> bool:
    silent = strategies.NodeSystemStrategy(name=node.name, node_selector=node.node_selector)
    return node != silent
