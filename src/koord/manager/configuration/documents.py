"""Parsing of each document of slo-controller-config into strategies that are complete for a node, and the document as
programs use it: the last good value, whatever was written since. Pure.

What a broken document does to settings in use is decided in koord.manager.configuration.documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from koord.api.config.decode import decode_lenient, unknown_names
from koord.api.config.field_error import FieldError
from koord.api.config.slo import defaults, slo_documents, slo_validation
from koord.api.config.slo.defaults import overlay
from koord.api.config.slo.slo_documents import InterferenceStrategy
from koord.api.koordinator import slo
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.manager.colocation.strategy import LayeredStrategy, NodeStrategyLayer
from koord.values.selector import Selector, SelectorError

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

HostApplications = tuple[slo.HostApplicationSpec, ...]


class ParsedDocument(msgspec.Struct, Generic[T], frozen=True):
    value: T
    remarks: tuple[FieldError, ...] = ()  # what has no effect, or not the one that was meant


class RejectedDocument(msgspec.Struct, frozen=True):
    """A document that has no effect as a whole."""

    error: FieldError
    is_unreadable: bool = True  # not readable; False: readable, with a value that cannot be used
    more: tuple[FieldError, ...] = ()  # further values that cannot be used


def parse_colocation(text: str) -> ParsedDocument[LayeredStrategy[slo_documents.ColocationStrategy]] | RejectedDocument:
    """Parse colocation-config. A bad cluster value rejects the document; a bad node entry falls back to the cluster."""
    if not text:
        return ParsedDocument(LayeredStrategy(cluster=slo_documents.DEFAULT_COLOCATION))
    given = decode_lenient(text, slo_documents.ColocationConfig)
    if isinstance(given, FieldError):
        return RejectedDocument(given)
    cluster = overlay(slo_documents.DEFAULT_COLOCATION, given)
    if flaws := slo_documents.validate_runtime(cluster):
        return _reject_values(flaws)
    return _build_layers(
        text, slo_documents.ColocationConfig, cluster, given.node_configs, "nodeConfigs", slo_documents.validate_runtime
    )


def parse_threshold(
    text: str,
) -> ParsedDocument[LayeredStrategy[slo.ResourceThresholdStrategy]] | RejectedDocument:
    return _parse_nested(text, slo_documents.ThresholdConfig, defaults.THRESHOLD, slo_validation.validate_threshold)


def parse_qos(text: str) -> ParsedDocument[LayeredStrategy[slo.ResourceQOSStrategy]] | RejectedDocument:
    return _parse_nested(text, slo_documents.QOSConfig, slo.ResourceQOSStrategy(), slo_validation.validate_qos)


def parse_cpu_burst(text: str) -> ParsedDocument[LayeredStrategy[slo.CPUBurstStrategy]] | RejectedDocument:
    return _parse_nested(text, slo_documents.CPUBurstConfig, defaults.CPU_BURST, slo_validation.validate_cpu_burst)


def parse_system(text: str) -> ParsedDocument[LayeredStrategy[slo.SystemStrategy]] | RejectedDocument:
    return _parse_nested(text, slo_documents.SystemConfig, defaults.SYSTEM_STRATEGY, slo_validation.validate_system)


def parse_interference(text: str) -> ParsedDocument[LayeredStrategy[InterferenceStrategy]] | RejectedDocument:
    """Parse interference-config. What it does not state is left to koordlet's defaults."""
    return _parse_nested(text, slo_documents.InterferenceConfig, InterferenceStrategy(), lambda _: [])


def parse_cpu_normalization(
    text: str,
) -> ParsedDocument[LayeredStrategy[slo_documents.CPUNormalizationStrategy]] | RejectedDocument:
    return _parse_flat(text, slo_documents.CPUNormalizationConfig, slo_documents.DEFAULT_CPU_NORMALIZATION)


def parse_resource_amplification(
    text: str,
) -> ParsedDocument[LayeredStrategy[slo_documents.ResourceAmplificationStrategy]] | RejectedDocument:
    return _parse_flat(text, slo_documents.ResourceAmplificationConfig, slo_documents.DEFAULT_RESOURCE_AMPLIFICATION)


def parse_host_applications(text: str) -> ParsedDocument[LayeredStrategy[HostApplications]] | RejectedDocument:
    """Parse host-application-config. A node entry's list replaces the cluster's, even an empty one."""
    if not text:
        return ParsedDocument(LayeredStrategy(cluster=()))
    given = decode_lenient(text, slo_documents.HostApplicationConfig)
    if isinstance(given, FieldError):
        return RejectedDocument(given)
    if flaws := slo_validation.strategy_errors(given):
        return _reject_values(flaws)
    layers, remarks = [], _unknown_field_errors(text, slo_documents.HostApplicationConfig)
    for index, entry in enumerate(given.node_configs):
        selector = _build_selector(entry.node_selector, f"nodeConfigs[{index}]")
        if isinstance(selector, FieldError):
            remarks.append(selector)
        else:
            layers.append(NodeStrategyLayer(name=entry.name, selector=selector, strategy=entry.applications))
    return ParsedDocument(LayeredStrategy(cluster=given.applications, nodes=tuple(layers)), tuple(remarks))


def _parse_nested(
    text: str, model: type[Any], default: S, validate: Callable[[Any], list[FieldError]]
) -> ParsedDocument[LayeredStrategy[S]] | RejectedDocument:
    """Parse `{clusterStrategy, nodeStrategies}`. Two values that do not fit each other are used, and remarked on.

    A value that NodeSLO's schema refuses would be refused for every node, again and again, and one that no node can use
    would be used: the document as a whole has no effect then.
    """
    if not text:
        return ParsedDocument(LayeredStrategy(cluster=default))
    given = decode_lenient(text, model)
    if isinstance(given, FieldError):
        return RejectedDocument(given)
    if flaws := slo_validation.strategy_errors(given):
        return _reject_values(flaws)
    cluster = default if given.cluster_strategy is None else overlay(default, given.cluster_strategy)
    read_layers = _build_layers(text, model, cluster, given.node_strategies, "nodeStrategies")
    return ParsedDocument(read_layers.value, (*read_layers.remarks, *validate(given)))


def _reject_values(flaws: list[FieldError]) -> RejectedDocument:
    return RejectedDocument(flaws[0], is_unreadable=False, more=tuple(flaws[1:]))


def _parse_flat(text: str, model: type[Any], default: S) -> ParsedDocument[LayeredStrategy[S]] | RejectedDocument:
    """Parse a document with the cluster's strategy at the top level and `nodeConfigs` beside it."""
    if not text:
        return ParsedDocument(LayeredStrategy(cluster=default))
    given = decode_lenient(text, model)
    if isinstance(given, FieldError):
        return RejectedDocument(given)
    return _build_layers(text, model, overlay(default, given), given.node_configs, "nodeConfigs")


def _build_layers(
    text: str,
    model: type[Any],
    cluster: S,
    entries: Iterable[Any],
    where: str,
    flaws: Callable[[S], list[FieldError]] = lambda _: [],
) -> ParsedDocument[LayeredStrategy[S]]:
    spoken = _names_any_field(text, where, type(cluster))
    layers, remarks = [], _unknown_field_errors(text, model)
    for index, entry in enumerate(entries):
        here = f"{where}[{index}]"
        selector = _build_selector(entry.node_selector, here)
        if isinstance(selector, FieldError):
            remarks.append(selector)
            continue
        # An entry without any setting is the cluster's strategy. One with a setting states the unset bandwidth as 0.
        strategy = overlay(cluster, entry) if spoken[index] else cluster
        if wrong := flaws(strategy):
            remarks += [_prefix_error(here, flaw, "; the cluster's strategy is used for these nodes") for flaw in wrong]
            strategy = cluster
        layers.append(NodeStrategyLayer(name=entry.name, selector=selector, strategy=strategy))
    return ParsedDocument(LayeredStrategy(cluster=cluster, nodes=tuple(layers)), tuple(remarks))


def _build_selector(given: LabelSelector | None, path: str) -> Selector | FieldError:
    """Build a node selector: None matches no node, an empty one every node."""
    try:
        return label_selector_as_selector(given)
    except SelectorError as error:
        return FieldError(f"{path}.nodeSelector", None, f"{error}; the entry is passed over")


def _names_any_field(text: str, where: str, strategy: type[msgspec.Struct]) -> list[bool]:
    """Return for each node entry whether it names any field of the strategy."""
    names = {field.encode_name.lower() for field in msgspec.structs.fields(strategy)}
    document: Any = msgspec.json.decode(text)
    entries = _find_field(document, where) or []
    return [isinstance(entry, dict) and any(key.lower() in names for key in entry) for entry in entries]


def _find_field(document: Any, name: str) -> Any:
    """Return the field by name in any case; of duplicates the last one counts."""
    found = None
    for key, value in document.items() if isinstance(document, Mapping) else ():
        if key.lower() == name.lower() and value is not None:
            found = value
    return found


def _unknown_field_errors(text: str, model: type[Any]) -> list[FieldError]:
    return [unknown.to_field_error() for unknown in unknown_names(msgspec.json.decode(text), model)]


def _prefix_error(path: str, flaw: FieldError, consequence: str) -> FieldError:
    return FieldError(f"{path}.{flaw.field}", flaw.value, flaw.rule + consequence)


DocumentState = Literal["Unknown", "Default", "Applied", "Rejected"]
DocumentParser = Callable[[str], ParsedDocument[T] | RejectedDocument]


_MAX_TOLD = 5  # values of one document that a message names


class DocumentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one document, in the shape of a condition."""

    key: str
    state: DocumentState
    reason: str = ""
    message: str = ""


class LastGoodDocument(Generic[T]):
    """The last good value of one document; the defaults until `available`.

    `error` is set while what the cluster says is not in use: the text was rejected, or there is no ConfigMap. `remarks`
    are parts of a good document that have no effect.
    """

    def __init__(self, key: str, parse: DocumentParser[T]) -> None:
        default = parse("")
        if isinstance(default, RejectedDocument):
            raise ValueError(f"{key}: no settings at all must be readable, got {default.error}")
        self.key = key
        self.value: T = default.value
        self.available = False
        self.error = ""
        self.remarks: tuple[str, ...] = ()
        self.status = DocumentStatus(
            key=key, state="Unknown", reason="NotSeen", message="the ConfigMap was not read yet"
        )
        self._default: T = default.value
        self._parse = parse
        self._handlers: list[Callable[[], object]] = []

    @property
    def is_known(self) -> bool:
        """Return whether the ConfigMap, or its absence, is known; `value` may still be the defaults."""
        return self.status.state != "Unknown"

    def on_change(self, handler: Callable[[], object]) -> None:
        """Call `handler` whenever `value`, `available` or the presence of an error changed."""
        self._handlers.append(handler)

    def update(self, text: str | None) -> RejectedDocument | None:
        """Update from the text that the ConfigMap has under this key; None when it lacks the key."""
        result = self._parse(text or "")
        if isinstance(result, RejectedDocument):
            return self._reject(result)
        self.remarks = tuple(describe_error(self.key, remark) for remark in result.remarks)
        if text:
            self.status = DocumentStatus(
                key=self.key, state="Applied", reason="Applied", message="; ".join(self.remarks)
            )
        else:
            self.status = DocumentStatus(
                key=self.key, state="Default", reason="NotSet", message="the defaults are in use"
            )
        self._store(result.value, "")
        return None

    def mark_absent(self, message: str) -> None:
        """Note that there is no ConfigMap and none was seen before: the defaults are in use, and `message` says so."""
        self.status = DocumentStatus(key=self.key, state="Default", reason="ConfigMapNotFound", message=message)
        self._store(self._default, message)

    def _reject(self, unread: RejectedDocument) -> RejectedDocument:
        stays = "the last good settings stay in use" if self.available else "nothing is changed until it is corrected"
        told = [unread.error, *unread.more[: _MAX_TOLD - 1]]
        left = len(unread.more) + 1 - len(told)
        words = [describe_error(self.key, error) for error in told] + ([f"{left} more"] if left else [])
        message = "; ".join((*words, stays))
        reason = "Unreadable" if unread.is_unreadable else "InvalidValue"
        self.status = DocumentStatus(key=self.key, state="Rejected", reason=reason, message=message)
        self.remarks = ()
        changed = not self.error
        self.error = message
        if changed:
            self._notify()
        return unread

    def _store(self, value: T, error: str) -> None:
        changed = not self.available or value != self.value or bool(error) != bool(self.error)
        self.value, self.available, self.error = value, True, error
        if changed:
            self._notify()

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()


def describe_error(key: str, flaw: FieldError) -> str:
    """Format which setting is wrong, what it holds and why, in one line."""
    path = f"{key}: {flaw.field}" if flaw.field else key
    shown = "" if flaw.value is None else f" is {msgspec.json.encode(flaw.value).decode()[:80]},"
    return f"{path}{shown} {flaw.rule}"
