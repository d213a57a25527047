"""List objects: which records at which revision, selected by namespace, labels and fields, in which pages."""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
from collections.abc import Iterable, Iterator

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import StatusError, bad_request, expired
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.options import ListOptions, parse_resource_version, resource_version_too_large
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.store.collection import ResourceCollection, RevisionTooOldError, StoreRecord
from koord.values.selector import FieldSelector, Selector, SelectorError


class RecordPage(msgspec.Struct, frozen=True):
    records: list[StoreRecord]
    metadata: Obj


def list_page(context: RequestContext, deps: ServerDeps, options: ListOptions) -> RecordPage:
    selection = parse_selection(context.resource, context.namespace, options.label_selector, options.field_selector)
    collection = context.collection(deps)
    current = deps.store.revision
    if options.continue_token:
        return _next_page(context, collection, options, selection, current)
    asked = parse_resource_version(options.resource_version, invalid="list")
    if asked > current:
        raise resource_version_too_large(asked, current)
    exact = options.resource_version_match == "Exact" or (
        options.limit and asked and not options.resource_version_match
    )
    if exact:
        try:
            records: Iterable[StoreRecord] = collection.scan_at(asked, context.namespace)
        except RevisionTooOldError:
            raise expired("The resourceVersion for the provided list is too old.") from None
        return _make_page(context, records, asked, options.limit, selection)
    # A list "from the cache, any version" is not cut into pages by kube-apiserver either.
    limit = 0 if options.resource_version == "0" else options.limit
    return _make_page(context, _current_records(collection, context.namespace, selection), current, limit, selection)


def _current_records(
    collection: ResourceCollection, namespace: str, selection: SelectionPredicate
) -> Iterable[StoreRecord]:
    if selection.name is not None and namespace:
        found = collection.get(namespace, selection.name)
        return [] if found is None else [found]
    return collection.scan(namespace)


def _next_page(
    context: RequestContext,
    collection: ResourceCollection,
    options: ListOptions,
    selection: SelectionPredicate,
    current: int,
) -> RecordPage:
    if options.resource_version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    token = decode_continue(options.continue_token)
    after = _full_key(context, token.after_key)
    if token.revision == INCONSISTENT_REVISION:
        return _make_page(context, collection.scan(context.namespace, after), current, options.limit, selection)
    if token.revision > current:
        raise resource_version_too_large(token.revision, current)
    try:
        records = collection.scan_at(token.revision, context.namespace, after)
    except RevisionTooOldError:
        raise ContinueExpiredError(token) from None
    return _make_page(context, records, token.revision, options.limit, selection)


def _make_page(
    context: RequestContext, records: Iterable[StoreRecord], revision: int, limit: int, selection: SelectionPredicate
) -> RecordPage:
    metadata: Obj = {"resourceVersion": str(revision)}
    if context.resource.custom:
        metadata["continue"] = ""  # lists of custom objects always say it
    matching: Iterator[StoreRecord] = iter(records)
    if selection.filters:
        matching = filter(selection.matches, matching)
    if not limit:
        return RecordPage(list(matching), metadata)
    found = list(itertools.islice(matching, limit))
    rest = sum(1 for _ in matching) if not selection.filters else sum(1 for _ in itertools.islice(matching, 1))
    if rest:
        metadata["continue"] = encode_continue(ContinueToken(revision, _relative_key(context, found[-1])))
        if not selection.filters:
            metadata["remainingItemCount"] = rest
    return RecordPage(found, metadata)


def _full_key(context: RequestContext, after: str) -> str:
    if context.namespace:
        return context.namespace + after
    return after if context.resource.namespaced else "/" + after


def _relative_key(context: RequestContext, record: StoreRecord) -> str:
    if context.namespace:
        return "/" + record.name
    return f"{record.namespace}/{record.name}" if context.resource.namespaced else record.name


_UNIVERSAL_FIELDS = ("metadata.name", "metadata.namespace")


class SelectionPredicate:
    """Selects records. `filters` is False when only the namespace counts, which the collection checks itself."""

    __slots__ = ("_field_terms", "_labels", "_name_terms", "filters", "name", "namespace")

    def __init__(self, namespace: str, labels: Selector | None, fields: FieldSelector | None) -> None:
        self.namespace = namespace
        self._labels = labels
        self._name_terms = [t for t in fields.terms if t.field in _UNIVERSAL_FIELDS] if fields else []
        self._field_terms = [t for t in fields.terms if t.field not in _UNIVERSAL_FIELDS] if fields else []
        self.name = fields.exact_value("metadata.name") if fields else None
        self.filters = bool(labels or self._name_terms or self._field_terms)

    def matches(self, record: StoreRecord) -> bool:
        for term in self._name_terms:
            value = record.name if term.field == "metadata.name" else record.namespace
            if (value == term.value) is not term.equal:
                return False
        for term in self._field_terms:
            if (record.fields.get(term.field, "") == term.value) is not term.equal:
                return False
        return self._labels is None or self._labels.matches(record.labels)


@functools.lru_cache(maxsize=1024)
def _match_namespace(namespace: str) -> SelectionPredicate:
    return SelectionPredicate(namespace, None, None)


def parse_selection(resource: ServedResource, namespace: str, labels: str, fields: str) -> SelectionPredicate:
    if not labels and not fields:
        return _match_namespace(namespace)
    try:
        label_selector = Selector.parse(labels) if labels else None
        field_selector = FieldSelector.parse(fields) if fields else None
    except SelectorError as error:
        raise bad_request(str(error)) from None
    if field_selector is not None:
        for name in field_selector.fields():
            if name not in _UNIVERSAL_FIELDS and name not in resource.strategy.selectable_fields:
                raise bad_request(_unsupported_field(resource, name))
    if label_selector is not None and label_selector.is_everything():
        label_selector = None
    return SelectionPredicate(namespace, label_selector, field_selector)


def _unsupported_field(resource: ServedResource, name: str) -> str:
    if resource.custom or resource.strategy.selectable_fields:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


_TOKEN_FORMAT = "meta.k8s.io/v1"
INCONSISTENT_REVISION = -1  # go on from the key, in the present state
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class ContinueToken(msgspec.Struct, frozen=True):
    revision: int
    after_key: str  # the last key that was served, relative to the namespace of the list


class _WireToken(msgspec.Struct):
    v: str = ""
    rv: int = 0
    start: str = ""


def encode_continue(page: ContinueToken) -> str:
    raw = msgspec.json.encode(_WireToken(_TOKEN_FORMAT, page.revision, page.after_key + "\0"))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_continue(token: str) -> ContinueToken:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        found = msgspec.json.decode(raw, type=_WireToken)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None
    why = ""
    if found.v != _TOKEN_FORMAT:
        why = f'server does not recognize this encoded version "{found.v}"'
    elif not found.rv:
        why = f"incorrect encoded start resourceVersion (version {_TOKEN_FORMAT})"
    elif not found.start:
        why = f"encoded start key empty (version {_TOKEN_FORMAT})"
    if why:
        raise bad_request(f"invalid continue token: continue key is not valid: {why}")
    return ContinueToken(found.rv, found.start.rstrip("\0"))


class ContinueExpiredError(StatusError):
    """A 410 error with a token that continues inconsistently, for clients that prefer that to starting over."""

    def __init__(self, page: ContinueToken) -> None:
        super().__init__(410, "Expired", _TOO_OLD)
        self._token = encode_continue(ContinueToken(INCONSISTENT_REVISION, page.after_key))

    def status(self) -> dict[str, object]:
        body: dict[str, object] = super().status()
        body["metadata"] = {"continue": self._token}
        return body
