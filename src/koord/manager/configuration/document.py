"""Parsing of each document of slo-controller-config into strategies that are complete for a node. Pure.

What a broken document does to settings in use is decided in koord.manager.configuration.kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.lenient import read, unknown_names
from koord.api.config.slo import admission, colocation, defaults, ratios, strategies
from koord.api.config.slo.overlay import overlay
from koord.api.meta import LabelSelector
from koord.api.slo_strategy import (
    CPUBurstStrategy,
    HostApplicationSpec,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)
from koord.policy.layers import Layer, Layers
from koord.values.selector import NOTHING, Selector, SelectorError

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

Applications = tuple[HostApplicationSpec, ...]


class Read(msgspec.Struct, Generic[T], frozen=True):
    value: T
    remarks: tuple[FieldError, ...] = ()  # what has no effect, and what a node may refuse


class Unread(msgspec.Struct, frozen=True):
    """A document that has no effect as a whole."""

    flaw: FieldError
    json: bool = True  # not readable; False: readable, with a value that cannot be used


def colocation_layers(text: str) -> Read[Layers[colocation.ColocationStrategy]] | Unread:
    """Parse colocation-config. A bad cluster value rejects the document; a bad node entry falls back to the
    cluster.
    """
    if not text:
        return Read(Layers(cluster=colocation.DEFAULT))
    given = read(text, colocation.ColocationConfig)
    if isinstance(given, FieldError):
        return Unread(given)
    cluster = overlay(colocation.DEFAULT, given)
    if flaws := colocation.validate_runtime(cluster):
        return Unread(flaws[0], json=False)

    def usable(strategy: colocation.ColocationStrategy) -> list[FieldError]:
        return colocation.validate_runtime(strategy)

    return _layers(text, colocation.ColocationConfig, cluster, given.node_configs, "nodeConfigs", usable)


def threshold_layers(text: str) -> Read[Layers[ResourceThresholdStrategy]] | Unread:
    return _nested(text, strategies.ThresholdConfig, defaults.THRESHOLD, admission.validate_threshold)


def qos_layers(text: str) -> Read[Layers[ResourceQOSStrategy]] | Unread:
    return _nested(text, strategies.QOSConfig, ResourceQOSStrategy(), admission.validate_qos)


def cpu_burst_layers(text: str) -> Read[Layers[CPUBurstStrategy]] | Unread:
    return _nested(text, strategies.CPUBurstConfig, defaults.CPU_BURST, admission.validate_cpu_burst)


def system_layers(text: str) -> Read[Layers[SystemStrategy]] | Unread:
    return _nested(text, strategies.SystemConfig, defaults.SYSTEM_STRATEGY, admission.validate_system)


def cpu_normalization_layers(text: str) -> Read[Layers[ratios.CPUNormalizationStrategy]] | Unread:
    return _flat(text, ratios.CPUNormalizationConfig, ratios.DEFAULT_CPU_NORMALIZATION)


def resource_amplification_layers(text: str) -> Read[Layers[ratios.ResourceAmplificationStrategy]] | Unread:
    return _flat(text, ratios.ResourceAmplificationConfig, ratios.DEFAULT_RESOURCE_AMPLIFICATION)


def host_application_layers(text: str) -> Read[Layers[Applications]] | Unread:
    """Parse host-application-config. Nothing is merged: a node entry's list replaces the cluster's, even an empty
    one.
    """
    if not text:
        return Read(Layers(cluster=()))
    given = read(text, strategies.HostApplicationConfig)
    if isinstance(given, FieldError):
        return Unread(given)
    layers, remarks = [], _passed_over(text, strategies.HostApplicationConfig)
    for index, entry in enumerate(given.node_configs):
        selector = _selector(entry.node_selector, f"nodeConfigs[{index}]")
        if isinstance(selector, FieldError):
            remarks.append(selector)
        else:
            layers.append(Layer(name=entry.name, selector=selector, strategy=entry.applications))
    return Read(Layers(cluster=given.applications, nodes=tuple(layers)), tuple(remarks))


def _nested(
    text: str, model: type[Any], default: S, ranges: Callable[[Any], list[FieldError]]
) -> Read[Layers[S]] | Unread:
    """Parse `{clusterStrategy, nodeStrategies}`. A value out of range is used, as upstream does, and remarked on."""
    if not text:
        return Read(Layers(cluster=default))
    given = read(text, model)
    if isinstance(given, FieldError):
        return Unread(given)
    cluster = default if given.cluster_strategy is None else overlay(default, given.cluster_strategy)
    read_layers = _layers(text, model, cluster, given.node_strategies, "nodeStrategies")
    return Read(read_layers.value, (*read_layers.remarks, *ranges(given)))


def _flat(text: str, model: type[Any], default: S) -> Read[Layers[S]] | Unread:
    """Parse a document with the cluster's strategy at the top level and `nodeConfigs` beside it."""
    if not text:
        return Read(Layers(cluster=default))
    given = read(text, model)
    if isinstance(given, FieldError):
        return Unread(given)
    return _layers(text, model, overlay(default, given), given.node_configs, "nodeConfigs")


def _layers(
    text: str,
    model: type[Any],
    cluster: S,
    entries: Iterable[Any],
    where: str,
    flaws: Callable[[S], list[FieldError]] = lambda _: [],
) -> Read[Layers[S]]:
    spoken = _spoken(text, where, type(cluster))
    layers, remarks = [], _passed_over(text, model)
    for index, entry in enumerate(entries):
        here = f"{where}[{index}]"
        selector = _selector(entry.node_selector, here)
        if isinstance(selector, FieldError):
            remarks.append(selector)
            continue
        # An entry without any setting is the cluster's strategy. One with a setting states the unset bandwidth as 0.
        strategy = overlay(cluster, entry) if spoken[index] else cluster
        if wrong := flaws(strategy):
            remarks += [_below(here, flaw, "; the cluster's strategy is used for these nodes") for flaw in wrong]
            strategy = cluster
        layers.append(Layer(name=entry.name, selector=selector, strategy=strategy))
    return Read(Layers(cluster=cluster, nodes=tuple(layers)), tuple(remarks))


def _selector(given: LabelSelector | None, path: str) -> Selector | FieldError:
    """Build a node selector: None matches no node, an empty one every node."""
    if given is None:
        return NOTHING
    try:
        return Selector.of(given.match_labels, ((e.key, e.operator, e.values) for e in given.match_expressions))
    except SelectorError as error:
        return FieldError(f"{path}.nodeSelector", None, f"{error}; the entry is passed over")


def _spoken(text: str, where: str, strategy: type[msgspec.Struct]) -> list[bool]:
    """Return for each node entry whether it names any field of the strategy."""
    names = {field.encode_name.lower() for field in msgspec.structs.fields(strategy)}
    document: Any = msgspec.json.decode(text)
    entries = _entry(document, where) or []
    return [isinstance(entry, dict) and any(key.lower() in names for key in entry) for entry in entries]


def _entry(document: Any, name: str) -> Any:
    """Return the field by name in any case; of duplicates the last one counts."""
    found = None
    for key, value in document.items() if isinstance(document, Mapping) else ():
        if key.lower() == name.lower() and value is not None:
            found = value
    return found


def _passed_over(text: str, model: type[Any]) -> list[FieldError]:
    return [unknown.flaw() for unknown in unknown_names(msgspec.json.decode(text), model)]


def _below(path: str, flaw: FieldError, consequence: str) -> FieldError:
    return FieldError(f"{path}.{flaw.field}", flaw.value, flaw.rule + consequence)
