"""List objects: which records at which revision, selected by namespace, labels and fields, in which pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from koord.embedded.apiserver.refusal import bad_request, expired
from koord.embedded.apiserver.rest import continuation
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.continuation import INCONSISTENT, Continuation
from koord.embedded.apiserver.rest.options import ListOptions, revision_of, too_large
from koord.embedded.apiserver.rest.selection import Selection, selection_of
from koord.embedded.apiserver.store import Collection, Record, TooOld

Obj = dict[str, Any]


class Page(msgspec.Struct, frozen=True):
    records: list[Record]
    metadata: Obj


def list_page(call: Call, parts: Parts, options: ListOptions) -> Page:
    selection = selection_of(call.resource, call.namespace, options.labels, options.fields)
    collection = call.collection(parts)
    current = parts.store.revision
    if options.token:
        return _next_page(call, collection, options, selection, current)
    asked = revision_of(options.version, invalid="list")
    if asked > current:
        raise too_large(asked, current)
    exact = options.match == "Exact" or (options.limit and asked and not options.match)
    if exact:
        try:
            records: Iterable[Record] = collection.scan_at(asked, call.namespace)
        except TooOld:
            raise expired("The resourceVersion for the provided list is too old.") from None
        return _page(call, records, asked, options.limit, selection)
    # A list "from the cache, any version" is not cut into pages by kube-apiserver either.
    limit = 0 if options.version == "0" else options.limit
    return _page(call, _present(collection, call.namespace, selection), current, limit, selection)


def _present(collection: Collection, namespace: str, selection: Selection) -> Iterable[Record]:
    if selection.name is not None and namespace:
        found = collection.get(namespace, selection.name)
        return [] if found is None else [found]
    return collection.scan(namespace)


def _next_page(call: Call, collection: Collection, options: ListOptions, selection: Selection, current: int) -> Page:
    if options.version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    token = continuation.decode(options.token)
    after = _full_key(call, token.after)
    if token.revision == INCONSISTENT:
        return _page(call, collection.scan(call.namespace, after), current, options.limit, selection)
    if token.revision > current:
        raise too_large(token.revision, current)
    try:
        records = collection.scan_at(token.revision, call.namespace, after)
    except TooOld:
        raise continuation.Expired(token) from None
    return _page(call, records, token.revision, options.limit, selection)


def _page(call: Call, records: Iterable[Record], revision: int, limit: int, selection: Selection) -> Page:
    metadata: Obj = {"resourceVersion": str(revision)}
    if call.resource.custom:
        metadata["continue"] = ""  # lists of custom objects always say it
    matching: Iterator[Record] = iter(records)
    if selection.selects:
        matching = filter(selection.matches, matching)
    if not limit:
        return Page(list(matching), metadata)
    found = list(itertools.islice(matching, limit))
    rest = sum(1 for _ in matching) if not selection.selects else sum(1 for _ in itertools.islice(matching, 1))
    if rest:
        metadata["continue"] = continuation.encode(Continuation(revision, _relative_key(call, found[-1])))
        if not selection.selects:
            metadata["remainingItemCount"] = rest
    return Page(found, metadata)


def _full_key(call: Call, after: str) -> str:
    if call.namespace:
        return call.namespace + after
    return after if call.resource.namespaced else "/" + after


def _relative_key(call: Call, record: Record) -> str:
    if call.namespace:
        return "/" + record.name
    return f"{record.namespace}/{record.name}" if call.resource.namespaced else record.name
