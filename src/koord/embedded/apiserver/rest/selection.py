"""The selection predicate of a list or watch: one namespace or all, labels, and the fields by which the
kind can be selected.
"""

from __future__ import annotations

import functools

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import bad_request
from koord.embedded.apiserver.store import Record
from koord.values.field_selector import FieldSelector
from koord.values.requirement import SelectorError
from koord.values.selector import Selector

_EVERY_KIND = ("metadata.name", "metadata.namespace")


class Selection:
    """Selects records. `filters` is False when only the namespace is to be checked, which the collection does
    by itself.
    """

    __slots__ = ("_labels", "_others", "_terms", "name", "namespace", "selects")

    def __init__(self, namespace: str, labels: Selector | None, fields: FieldSelector | None) -> None:
        self.namespace = namespace
        self._labels = labels
        self._terms = [t for t in fields.terms if t.field in _EVERY_KIND] if fields else []
        self._others = [t for t in fields.terms if t.field not in _EVERY_KIND] if fields else []
        self.name = fields.exact_value("metadata.name") if fields else None
        self.selects = bool(labels or self._terms or self._others)

    def matches(self, record: Record) -> bool:
        for term in self._terms:
            value = record.name if term.field == "metadata.name" else record.namespace
            if (value == term.value) is not term.equal:
                return False
        for term in self._others:
            if (record.fields.get(term.field, "") == term.value) is not term.equal:
                return False
        return self._labels is None or self._labels.matches(record.labels)


@functools.lru_cache(maxsize=1024)
def _everything(namespace: str) -> Selection:
    return Selection(namespace, None, None)


def selection_of(resource: ServedResource, namespace: str, labels: str, fields: str) -> Selection:
    if not labels and not fields:
        return _everything(namespace)
    try:
        label_selector = Selector.parse(labels) if labels else None
        field_selector = FieldSelector.parse(fields) if fields else None
    except SelectorError as error:
        raise bad_request(str(error)) from None
    if field_selector is not None:
        for name in field_selector.fields():
            if name not in _EVERY_KIND and name not in resource.strategy.fields:
                raise bad_request(_unknown(resource, name))
    if label_selector is not None and label_selector.is_everything():
        label_selector = None
    return Selection(namespace, label_selector, field_selector)


def _unknown(resource: ServedResource, name: str) -> str:
    if resource.custom or resource.strategy.fields:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'
