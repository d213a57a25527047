"""The validating admission of slo-controller-config: changed documents must be readable, in range and unambiguous.

What upstream refuses is refused in its words. What it lets pass and no node can use is refused as well. `koord config
check` inspects all documents, offline. A node may match one strategy of a document only.

The value rules are in upstream's words: the Go field path and validator's English sentence. The numbers are
koord.api.config.slo's; only names and sentences are made here. Network shares must be readable, of one
kind, and together no more than the whole; a share is a percentage (a number) or bits per second (a quantity).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import lcm
from typing import Any

import msgspec

from koord.api.config.decode import decode_lenient
from koord.api.config.field_error import FieldError, FieldLimit, FieldOrder
from koord.api.config.slo import slo_documents, slo_validation
from koord.api.config.slo.slo_documents import QOSConfig, SystemConfig
from koord.api.koordinator import protocol
from koord.api.koordinator.slo import ResourceQOSStrategy
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.values.go_format import in_json
from koord.values.quantity import Quantity, QuantityError
from koord.values.selector import Selector, SelectorError

# Go spells these in capitals where a name begins with them.
_GO_INITIALISM = re.compile(r"(cpu|cfs|cat|mba|lsr|ls|be)(?=[A-Z])")
_QOS_CLASS_FIELDS = ("lsr_class", "ls_class", "be_class", "system_class", "cgroup_root")
_CPU_BURST_CONFIG_FIELDS = frozenset({"cpu_burst_percent", "cfs_quota_burst_percent", "cfs_quota_burst_period_seconds"})

# The Go names of the documents, and of the strategy inside a node's entry.
_GO_TYPES = {
    slo_documents.COLOCATION: "ColocationCfg",
    slo_documents.RESOURCE_THRESHOLD: "ResourceThresholdCfg",
    slo_documents.RESOURCE_QOS: "ResourceQOSCfg",
    slo_documents.SYSTEM: "SystemCfg",
    slo_documents.CPU_BURST: "CPUBurstCfg",
    slo_documents.HOST_APPLICATION: "HostApplicationCfg",
    slo_documents.CPU_NORMALIZATION: "CPUNormalizationCfg",
    slo_documents.RESOURCE_AMPLIFICATION: "ResourceAmplificationCfg",
    slo_documents.INTERFERENCE: "InterferenceCfg",
}
_STRATEGIES = {
    slo_documents.RESOURCE_THRESHOLD: "ResourceThresholdStrategy",
    slo_documents.RESOURCE_QOS: "ResourceQOSStrategy",
    slo_documents.SYSTEM: "SystemStrategy",
    slo_documents.CPU_BURST: "CPUBurstStrategy",
}

CheckedStruct = tuple[
    str, msgspec.Struct, Sequence[FieldLimit], Sequence[FieldOrder]
]  # the Go path of a struct and its rules


def find_value_errors(key: str, config: Any) -> dict[str, str]:
    """Return the Go path of each wrong field with its sentence, sorted as Go writes maps."""
    found = {path: text for part in _checked_structs(key, config) for path, text in _struct_errors(*part)}
    return dict(sorted(found.items()))


def find_unusable_values(key: str, config: Any) -> dict[str, str]:
    """Return the Go path of each value that upstream's webhook lets pass and no node can use, with a sentence."""
    found = {}
    for error in slo_validation.unusable_values(config):
        *parents, name = [go_field_name(part) for part in error.field.split(".")]
        strategy = _STRATEGIES.get(key, "")
        parents = [
            f"{part}.{strategy}" if strategy and part.startswith("NodeStrategies[") else part for part in parents
        ]
        found[".".join((_GO_TYPES[key], *parents, name))] = f"{name} {error.rule}"
    return found


def go_field_name(wire: str) -> str:
    known = _GO_INITIALISM.match(wire)
    return wire[0].upper() + wire[1:] if known is None else known.group().upper() + wire[known.end() :]


def _checked_structs(key: str, config: Any) -> Iterator[CheckedStruct]:
    if key == slo_documents.COLOCATION:
        yield "ColocationCfg.ColocationStrategy.", config, slo_documents.ADMISSION_LIMITS, ()
        for index, node in enumerate(config.node_configs):
            yield f"ColocationCfg.NodeConfigs[{index}].ColocationStrategy.", node, slo_documents.ADMISSION_LIMITS, ()
        return
    name, strategy = _GO_TYPES[key], _STRATEGIES[key]
    if config.cluster_strategy is not None:
        yield from _strategy_structs(key, f"{name}.ClusterStrategy.", config.cluster_strategy)
    for index, node in enumerate(config.node_strategies):
        yield from _strategy_structs(key, f"{name}.NodeStrategies[{index}].{strategy}.", node)


def _strategy_structs(key: str, path: str, strategy: Any) -> Iterator[CheckedStruct]:
    if key == slo_documents.RESOURCE_THRESHOLD:
        yield path, strategy, slo_validation.THRESHOLD_LIMITS, slo_validation.THRESHOLD_PAIRS
    elif key == slo_documents.SYSTEM:
        yield path, strategy, slo_validation.SYSTEM_LIMITS, ()
    elif key == slo_documents.CPU_BURST:
        body = [limit for limit in slo_validation.CPU_BURST_LIMITS if set(limit.fields) <= _CPU_BURST_CONFIG_FIELDS]
        yield f"{path}CPUBurstConfig.", strategy, body, ()
        yield path, strategy, [limit for limit in slo_validation.CPU_BURST_LIMITS if limit not in body], ()
    else:
        yield from _qos_structs(path, strategy)


def _qos_structs(path: str, strategy: ResourceQOSStrategy) -> Iterator[CheckedStruct]:
    """Yield the checked structs of a QoS strategy. Go structs carry an inlined body of the same name in the path."""
    names = {f.name: go_field_name(f.encode_name) for f in msgspec.structs.fields(strategy)}
    for name in _QOS_CLASS_FIELDS:
        block = getattr(strategy, name)
        if block is None:
            continue
        here = f"{path}{names[name]}."
        if block.cpu_qos is not None:
            yield f"{here}CPUQOS.CPUQOS.", block.cpu_qos, slo_validation.CPU_QOS_LIMITS, ()
        if block.memory_qos is not None:
            yield f"{here}MemoryQOS.MemoryQOS.", block.memory_qos, slo_validation.MEMORY_QOS_LIMITS, ()
        if block.resctrl_qos is not None:
            where = f"{here}ResctrlQOS.ResctrlQOS."
            yield where, block.resctrl_qos, slo_validation.RESCTRL_QOS_LIMITS, slo_validation.RESCTRL_QOS_PAIRS


def _struct_errors(
    path: str, strategy: msgspec.Struct, limits: Sequence[FieldLimit], pairs: Sequence[FieldOrder]
) -> Iterator[tuple[str, str]]:
    """Yield one sentence for each wrong field: its range comes before its pair."""
    names = {f.name: go_field_name(f.encode_name) for f in msgspec.structs.fields(strategy)}
    wrong: dict[str, str] = {}
    for limit in limits:
        for field in limit.fields:
            if text := _range_error(getattr(strategy, field), limit):
                wrong[field] = text
    for pair in pairs:
        lower, upper = getattr(strategy, pair.lower), getattr(strategy, pair.upper)
        if lower is not None and upper is not None and lower < upper:
            continue
        # One of two is refused as well: upstream compares the given one with nothing.
        if upper is not None:
            wrong.setdefault(pair.upper, f"must be greater than {names[pair.lower]}")
        if lower is not None:
            wrong.setdefault(pair.lower, f"must be less than {names[pair.upper]}")
    for field, text in wrong.items():
        yield f"{path}{names[field]}", f"{names[field]} {text}"


def _range_error(value: float | None, limit: FieldLimit) -> str:
    if value is None:
        return ""
    if limit.above is not None and not value > limit.above:
        return f"must be greater than {_format_number(limit.above)}"
    if limit.low is not None and value < limit.low:
        return f"must be {_format_number(limit.low)} or greater"
    if limit.high is not None and value > limit.high:
        return f"must be {_format_number(limit.high)} or less"
    return ""


def _format_number(value: float) -> str:
    """Format a number as validator prints it in English: 10,000."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


_NETWORK_CLASS_FIELDS = ("lsr_class", "ls_class", "be_class")
_NETWORK_SHARE_FIELDS = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
WHOLE_PERCENT = 100
_BAD_QUANTITY_TEXT = "must be a quantity, such as 500M"

ShareRefusal = str | dict[str, str]  # a sentence, or one for each field


def check_network_shares(config: QOSConfig, system: SystemConfig) -> ShareRefusal | None:
    """Return the refusal of the first strategy with a wrong share, the cluster's before the nodes'."""
    if config.cluster_strategy is not None:
        total = system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else 0
        path = "ResourceQOSCfg.ClusterStrategy."
        wrong = _first_bad_share(config.cluster_strategy, path) or _mixed_units(
            config.cluster_strategy, "clusterStrategy"
        )
        if wrong:
            return wrong
        if _is_over_percent(config.cluster_strategy, WHOLE_PERCENT):
            return "ClusterStrategy total net bandwidth percentage already over 100"
        if _is_over_bandwidth(config.cluster_strategy, total):
            return "total net bandwidth over total network bandwidth in clusterStrategy"
    for index, strategy in enumerate(config.node_strategies):
        path = f"ResourceQOSCfg.NodeStrategies[{index}].ResourceQOSStrategy."
        wrong = _first_bad_share(strategy, path) or _mixed_units(strategy, f"nodeStrategy[{index}]")
        if wrong:
            return wrong
        if _is_over_percent(strategy, WHOLE_PERCENT):
            return f"cfg.NodeStrategies[{index}] total net bandwidth percentage already over 100"
        if _is_over_bandwidth(strategy, _node_bandwidth(config, index, system)):
            return f"total net bandwidth quantity already over total network bandwidth in cfg.NodeStrategies[{index}]"
    return None


def _first_bad_share(strategy: ResourceQOSStrategy, path: str) -> dict[str, str] | None:
    for share in _stated_shares(strategy):
        if isinstance(share.value, int) and not 0 <= share.value <= WHOLE_PERCENT:
            return {f"{path}{share.go_path}": "must be percentage value just in 0-100'"}
        if isinstance(share.value, str) and not _is_quantity(share.value):
            return {f"{path}{share.go_path}": _BAD_QUANTITY_TEXT}
    return None


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


def _mixed_units(strategy: ResourceQOSStrategy, where: str) -> str | None:
    kinds = {type(share.value) for share in _stated_shares(strategy) if share.field.endswith("_request")}
    if len(kinds) > 1:
        return f"only one type can be used for percentages or quantity in {where}"
    return None


def _is_over_percent(strategy: ResourceQOSStrategy, most: int) -> bool:
    """Return whether the totals exceed the maximum. Upstream adds amounts up as percentages; so does this."""
    return any(total > most for total in _request_totals(strategy))


def _is_over_bandwidth(strategy: ResourceQOSStrategy, bandwidth: str | int | float) -> bool:
    return has_quantity_shares(strategy) and any(
        total > Quantity.parse(bandwidth).value() for total in _request_totals(strategy)
    )


def has_quantity_shares(strategy: ResourceQOSStrategy) -> bool:
    return any(isinstance(share.value, str) for share in _stated_shares(strategy))


def _request_totals(strategy: ResourceQOSStrategy) -> tuple[int, int]:
    sums = {"ingress_request": 0, "egress_request": 0}
    for share in _stated_shares(strategy):
        if share.field in sums:
            sums[share.field] += share.value if isinstance(share.value, int) else Quantity.parse(share.value).value()
    return sums["ingress_request"], sums["egress_request"]


def _node_bandwidth(config: QOSConfig, index: int, system: SystemConfig) -> str | int | float:
    """Return the bandwidth of a strategy's nodes: stated under the same selector, or for the cluster."""
    if not system.node_strategies:
        return system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else 0
    selector = config.node_strategies[index].node_selector
    return next((s.total_network_bandwidth for s in system.node_strategies if s.node_selector == selector), 0)


class _NetworkShare(msgspec.Struct, frozen=True):
    go_path: str
    field: str
    value: int | str


def _stated_shares(strategy: ResourceQOSStrategy) -> Iterator[_NetworkShare]:
    classes = {f.name: f.encode_name for f in msgspec.structs.fields(strategy)}
    for name in _NETWORK_CLASS_FIELDS:
        block = getattr(strategy, name)
        network = None if block is None else block.network_qos
        if network is None:
            continue
        fields = {f.name: f.encode_name for f in msgspec.structs.fields(network)}
        for field in _NETWORK_SHARE_FIELDS:
            value = getattr(network, field)
            if value is not None:
                yield _NetworkShare(f"{go_field_name(classes[name])}.{go_field_name(fields[field])}", field, value)


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
