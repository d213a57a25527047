"""The network shares in a resource-qos-config: each must be readable, all of one kind, together no more than the whole.

A share is a percentage (a number) or an amount of bits per second (a quantity).
"""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.config.slo.strategies import QOSConfig, SystemConfig
from koord.api.slo_strategy import ResourceQOSStrategy
from koord.values.quantity import Quantity, QuantityError

_CLASSES = (("LSRClass", "lsr_class"), ("LSClass", "ls_class"), ("BEClass", "be_class"))
_FIELDS = (
    ("IngressRequest", "ingress_request"),
    ("IngressLimit", "ingress_limit"),
    ("EgressRequest", "egress_request"),
    ("EgressLimit", "egress_limit"),
)
WHOLE = 100

Refusal = str | dict[str, str]  # a sentence, or one for each field


def refused_shares(config: QOSConfig, system: SystemConfig) -> Refusal | None:
    """The first strategy with a wrong share, the cluster's before the nodes'."""
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


def _unreadable(strategy: ResourceQOSStrategy, path: str) -> dict[str, str] | None:
    for where, _, share in _shares(strategy):
        if isinstance(share, int) and not 0 <= share <= WHOLE:
            return {f"{path}{where}": "must be percentage value just in 0-100'"}
        if isinstance(share, str):
            try:
                Quantity.parse(share)
            except QuantityError as error:
                return {f"{path}{where}": str(error)}
    return None


def _mixed(strategy: ResourceQOSStrategy, where: str) -> str | None:
    kinds = {type(share) for _, field, share in _shares(strategy) if field.endswith("_request")}
    if len(kinds) > 1:
        return f"only one type can be used for percentages or quantity in {where}"
    return None


def _over(strategy: ResourceQOSStrategy, most: int) -> bool:
    """Upstream adds amounts up as if they were percentages, so every useful amount is over; so is it here."""
    return any(total > most for total in _totals(strategy))


def _over_amount(strategy: ResourceQOSStrategy, bandwidth: str | int | float) -> bool:
    amounts = any(isinstance(share, str) for _, _, share in _shares(strategy))
    return amounts and any(total > Quantity.parse(bandwidth).value() for total in _totals(strategy))


def _totals(strategy: ResourceQOSStrategy) -> tuple[int, int]:
    sums = {"ingress_request": 0, "egress_request": 0}
    for _, field, share in _shares(strategy):
        if field in sums:
            sums[field] += share if isinstance(share, int) else Quantity.parse(share).value()
    return sums["ingress_request"], sums["egress_request"]


def _total_of(config: QOSConfig, index: int, system: SystemConfig) -> str | int | float:
    """The bandwidth of the nodes of one strategy: stated under the very same selector, or for the cluster alone."""
    if not system.node_strategies:
        return system.cluster_strategy.total_network_bandwidth if system.cluster_strategy else 0
    selector = config.node_strategies[index].node_selector
    return next((s.total_network_bandwidth for s in system.node_strategies if s.node_selector == selector), 0)


def _shares(strategy: ResourceQOSStrategy) -> Iterator[tuple[str, str, int | str]]:
    """(path, field, share) of every share that is stated."""
    for class_name, attribute in _CLASSES:
        block = getattr(strategy, attribute)
        network = None if block is None else block.network_qos
        for field_name, field in _FIELDS if network is not None else ():
            share = getattr(network, field)
            if share is not None:
                yield f"{class_name}.{field_name}", field, share
