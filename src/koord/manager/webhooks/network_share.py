"""The network shares in a resource-qos-config: each must be readable, all of one kind, together no more than the whole.

A share is a percentage (a number) or an amount of bits per second (a quantity).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.config.field_error import FieldError, within
from koord.api.config.slo.strategies import QOSConfig, SystemConfig
from koord.api.slo_strategy import ResourceQOSStrategy
from koord.manager.webhooks.config_rule import go_name
from koord.values.quantity import Quantity, QuantityError

_CLASSES = ("lsr_class", "ls_class", "be_class")
_FIELDS = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
WHOLE = 100
_REFUSED_QUANTITY = "must be a quantity, such as 500M"

Refusal = str | dict[str, str]  # a sentence, or one for each field


def refused_shares(config: QOSConfig, system: SystemConfig) -> Refusal | None:
    """Return the refusal of the first strategy with a wrong share, the cluster's before the nodes'."""
    if config.cluster_strategy is not None:
        total = system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else 0
        path = "ResourceQOSCfg.ClusterStrategy."
        wrong = _unreadable(config.cluster_strategy, path) or _mixed(config.cluster_strategy, "clusterStrategy")
        if wrong:
            return wrong
        if _over(config.cluster_strategy, WHOLE):
            return "ClusterStrategy total net bandwidth percentage already over 100"
        if _over_amount(config.cluster_strategy, total):
            return "total net bandwidth over total network bandwidth in clusterStrategy"
    for index, strategy in enumerate(config.node_strategies):
        path = f"ResourceQOSCfg.NodeStrategies[{index}].ResourceQOSStrategy."
        wrong = _unreadable(strategy, path) or _mixed(strategy, f"nodeStrategy[{index}]")
        if wrong:
            return wrong
        if _over(strategy, WHOLE):
            return f"cfg.NodeStrategies[{index}] total net bandwidth percentage already over 100"
        if _over_amount(strategy, _total_of(config, index, system)):
            return f"total net bandwidth quantity already over total network bandwidth in cfg.NodeStrategies[{index}]"
    return None


def unusable_shares(strategy: ResourceQOSStrategy, path: str) -> list[FieldError]:
    """Return the shares that cannot be used by themselves, with their wire paths below `path`."""
    flaws = []
    for share in _shares(strategy):
        if isinstance(share.value, int):
            flaws += within(f"{path}{share.path}", share.value, low=0, high=WHOLE)
        elif not _is_quantity(share.value):
            flaws.append(FieldError(f"{path}{share.path}", share.value, "must be a percentage or a quantity"))
    return flaws


def _unreadable(strategy: ResourceQOSStrategy, path: str) -> dict[str, str] | None:
    for share in _shares(strategy):
        if isinstance(share.value, int) and not 0 <= share.value <= WHOLE:
            return {f"{path}{share.go_path}": "must be percentage value just in 0-100'"}
        if isinstance(share.value, str) and not _is_quantity(share.value):
            return {f"{path}{share.go_path}": _REFUSED_QUANTITY}
    return None


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


def _mixed(strategy: ResourceQOSStrategy, where: str) -> str | None:
    kinds = {type(share.value) for share in _shares(strategy) if share.field.endswith("_request")}
    if len(kinds) > 1:
        return f"only one type can be used for percentages or quantity in {where}"
    return None


def _over(strategy: ResourceQOSStrategy, most: int) -> bool:
    """Return whether the totals exceed the maximum. Upstream adds amounts up as percentages; so does this."""
    return any(total > most for total in _totals(strategy))


def _over_amount(strategy: ResourceQOSStrategy, bandwidth: str | int | float) -> bool:
    return in_amounts(strategy) and any(total > Quantity.parse(bandwidth).value() for total in _totals(strategy))


def in_amounts(strategy: ResourceQOSStrategy) -> bool:
    return any(isinstance(share.value, str) for share in _shares(strategy))


def _totals(strategy: ResourceQOSStrategy) -> tuple[int, int]:
    sums = {"ingress_request": 0, "egress_request": 0}
    for share in _shares(strategy):
        if share.field in sums:
            sums[share.field] += share.value if isinstance(share.value, int) else Quantity.parse(share.value).value()
    return sums["ingress_request"], sums["egress_request"]


def _total_of(config: QOSConfig, index: int, system: SystemConfig) -> str | int | float:
    """Return the bandwidth of a strategy's nodes: stated under the same selector, or for the cluster."""
    if not system.node_strategies:
        return system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else 0
    selector = config.node_strategies[index].node_selector
    return next((s.total_network_bandwidth for s in system.node_strategies if s.node_selector == selector), 0)


class _Share(msgspec.Struct, frozen=True):
    path: str
    go_path: str
    field: str
    value: int | str


def _shares(strategy: ResourceQOSStrategy) -> Iterator[_Share]:
    """Yield every share that is stated."""
    classes = {f.name: f.encode_name for f in msgspec.structs.fields(strategy)}
    for name in _CLASSES:
        block = getattr(strategy, name)
        network = None if block is None else block.network_qos
        if network is None:
            continue
        fields = {f.name: f.encode_name for f in msgspec.structs.fields(network)}
        for field in _FIELDS:
            value = getattr(network, field)
            if value is not None:
                path = f"{classes[name]}.networkQOS.{fields[field]}"
                yield _Share(path, f"{go_name(classes[name])}.{go_name(fields[field])}", field, value)
