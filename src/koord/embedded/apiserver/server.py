"""The API server without a network: it takes one request and returns one answer or one watch.

HTTPS clients enter through `http_server`, programs of this process through `in_process_transport`. All
parts of the server are composed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.admission.chain import standard_chain
from koord.embedded.apiserver.admission.hooks import Hooks
from koord.embedded.apiserver.bootstrap import first_objects
from koord.embedded.apiserver.catalog import Catalog, ServedResource, builtin_resources
from koord.embedded.apiserver.crd import definition
from koord.embedded.apiserver.crd.definitions import Definitions
from koord.embedded.apiserver.kinds import STRATEGIES
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.printing.printer import TablePrinter
from koord.embedded.apiserver.refusal import Refusal
from koord.embedded.apiserver.rest import answering, negotiation, route
from koord.embedded.apiserver.rest.admission_chain import AdmissionChain
from koord.embedded.apiserver.rest.call import Call, Parts, Stamp
from koord.embedded.apiserver.rest.conversion import BUILTIN_CONVERSIONS
from koord.embedded.apiserver.rest.discovery import Discovery
from koord.embedded.apiserver.rest.expiry import Expiry
from koord.embedded.apiserver.rest.health import Health
from koord.embedded.apiserver.rest.openapi import OpenApi
from koord.embedded.apiserver.rest.options import flag, list_options
from koord.embedded.apiserver.rest.page import Pages
from koord.embedded.apiserver.rest.printing import Objects, Printer, Tables
from koord.embedded.apiserver.rest.route import Route
from koord.embedded.apiserver.rest.verb import Verbs
from koord.embedded.apiserver.rest.watching import Encoding, Stream, open_watch
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.apiserver.schema.decoding import decode
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.store import JournalFailed, Store
from koord.embedded.apiserver.store.compaction import Compaction
from koord.kube.transport import Answer, Request
from koord.telemetry.clock import Clock, WallClock

log = logging.getLogger(__name__)

SWEEP_S = 60.0  # at most this long between two runs of expiry and compaction


def builtin_catalog(strategies: Mapping[tuple[str, str], Strategy] | None = None) -> Catalog:
    """Return a catalog of all built-in resources; `strategies` by (group, kind) replace the usual ones."""

    def decoder(node: Node) -> Any:
        return functools.partial(decode, node=node)

    chosen = {**(STRATEGIES if strategies is None else strategies)}
    chosen[(definition.GROUP, definition.KIND)] = definition.DEFINITION
    return Catalog(builtin_resources(builtin(), decoder, chosen, BUILTIN_CONVERSIONS))


class Server:
    def __init__(
        self,
        store: Store | None = None,
        catalog: Catalog | None = None,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        admission: AdmissionChain | None = None,
        printer: Printer | None = None,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Compose the server. `chance` gives uids and generated names: seed it for a repeatable run. `tokens` maps
        bearer tokens to users.
        """
        self.clock = clock or WallClock()
        self.store = store or Store()
        self.catalog = catalog or builtin_catalog()
        self.tokens = dict(tokens or {})
        chance = chance or random.SystemRandom()
        stamp = Stamp(self.clock, chance)
        self.hooks = Hooks(self.store, self.catalog, stamp.uid)
        self._parts = Parts(
            store=self.store,
            catalog=self.catalog,
            clock=self.clock,
            chance=chance,
            stamp=stamp,
            admission=admission or standard_chain(self.store, self.hooks),
            expiry=Expiry(self.store, self.clock),
        )
        self._printer = printer or TablePrinter(self.clock)
        self._verbs = Verbs(self._parts, self._tables, self.tokens)
        self._discovery = Discovery(self.catalog)
        self._openapi = OpenApi(builtin(), self.catalog)
        self.pages = Pages()
        self._definitions = Definitions(self._parts)
        self._own_groups = frozenset(resource.group for resource in self.catalog.resources() if not resource.custom)
        self._health = Health(builtin().release, {"store": self._store_health})
        self._compaction = Compaction(self.store, self.clock)
        self._sweeper: asyncio.Task[None] | None = None
        self.closed = False

    # Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the stored custom resources, create the bootstrap objects, and start expiring Events and old
        history.
        """
        self._definitions.start()
        for path, body in first_objects():
            request = Request(method="POST", path=path, body=body, user="system:apiserver", user_agent="kube-apiserver")
            answer = await self.handle(request)
            if not answer.ok and answer.status != 409:
                raise RuntimeError(f"cannot create {body['metadata']['name']}: {answer.body.plain()}")
        self._sweeper = asyncio.create_task(self._sweep(), name="forgetting")

    async def close(self) -> None:
        """End every watch, write what the journal still holds, and stop."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self.hooks.close()
        await self.store.close()

    def expire(self) -> float | None:
        """Delete the Events that are due and return the seconds until the next one is. A started server does this
        by itself.
        """
        return self._parts.expiry.sweep()

    async def _sweep(self) -> None:
        compacted_s = self.clock.monotonic()
        while True:
            due = self.expire()
            if self.clock.monotonic() - compacted_s >= SWEEP_S:
                compacted_s = self.clock.monotonic()
                self._compaction.look()
            await self.clock.sleep(SWEEP_S if due is None else min(max(due, 1.0), SWEEP_S))

    def _store_health(self) -> str:
        try:
            self.store.check()
        except JournalFailed as error:
            return str(error)
        return ""

    # Requests ----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, *, tracked: bool = True) -> Answer:
        """Handle one request to its end. `track_managed_fields` keeps managedFields for the objects that it
        creates.
        """
        warnings: list[str] = []
        try:
            found = route.resource_route(request.path)
            if found is None:
                return await self.pages.answer(request) or self._other(request)
            if self._is_nowhere(found):
                return answering.text(404, "404 page not found\n")
            form = negotiation.negotiate(request.accept, streams=request.method == "GET" and not found.name)
            call = self._call(found, request, tracked, warnings)
            answer = await self._verbs.run(call, form)
        except Refusal as error:
            return answering.refused(error, warnings)
        except JournalFailed as error:
            return answering.refused(refusal.internal(str(error)), warnings)
        except RecursionError:
            return answering.refused(refusal.bad_request("the body is nested too deeply"), warnings)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return answering.refused(refusal.internal(f"{type(error).__name__}: {error}"), warnings)
        return self._finished(answer, request, form, call, warnings)

    def _finished(
        self, answer: Answer, request: Request, form: negotiation.Form, call: Call, warnings: list[str]
    ) -> Answer:
        if call.resource.warning:
            warnings = [call.resource.warning, *warnings]
        if warnings:
            headers = {**answer.headers, "Warning": answering.warning_header(warnings)}
            answer = msgspec.structs.replace(answer, headers=headers)
        if form.yaml:
            return answering.as_yaml(answer)
        if "pretty" in request.query and flag(request.query, "pretty"):
            return answering.as_pretty(answer)
        return answer

    async def watch(self, request: Request) -> Stream | Answer:
        """Open a watch, or return the error. Whoever reads the stream must close it."""
        try:
            found = route.resource_route(request.path)
            if found is None:
                raise refusal.no_such_path()
            if self._is_nowhere(found):
                return answering.text(404, "404 page not found\n")
            form = negotiation.negotiate(request.accept, streams=True)
            call = self._call(found, request, False, [])
            if "watch" not in call.resource.verbs:
                raise refusal.method_not_allowed()
            options = list_options(request.query, watch=True)
            encoding: Encoding = self._tables(call, form) if form.shape else Objects(call.resource)
            return open_watch(call, self._parts, options, encoding)
        except Refusal as error:
            return answering.refused(error)

    def is_watch(self, request: Request) -> bool:
        """Return whether a request asks for a stream: GET on a collection with `watch`, or the old /watch/ paths."""
        if request.method != "GET":
            return False
        found = route.resource_route(request.path)
        if found is None:
            return False
        return found.watch or (not found.name and bool(flag(request.query, "watch")))

    def _tables(self, call: Call, form: negotiation.Form) -> Tables:
        return Tables(self._printer, call.resource, form, call.request.query.get("includeObject", ""))

    def _is_nowhere(self, found: Route) -> bool:
        """Return whether a path is outside the built-in groups and belongs to no CRD, so that it gets a plain 404."""
        return found.group not in self._own_groups and (
            self.catalog.find(found.group, found.version, found.plural) is None
        )

    def _call(self, found: Route, request: Request, tracked: bool, warnings: list[str]) -> Call:
        resource = self.catalog.find(found.group, found.version, found.plural)
        if resource is None or (found.namespace and not resource.namespaced):
            raise refusal.no_such_path()
        self._check_place(found, resource, request.method)
        return Call(resource, found.namespace or "", found.name, found.subresource, request, tracked, warnings)

    def _check_place(self, found: Route, resource: ServedResource, method: str) -> None:
        """Raise unless objects of namespaced kinds are addressed in a namespace; only lists and watches span all
        of them.
        """
        if found.subresource and found.subresource not in resource.subresources:
            raise refusal.no_such_path()
        if resource.namespaced and found.namespace is None and (found.name or method not in ("GET", "DELETE")):
            raise refusal.no_such_path() if found.name else refusal.method_not_allowed()

    def _other(self, request: Request) -> Answer:
        answer = self._discovery.answer(request) or self._health.answer(request) or self._openapi.answer(request)
        if answer is not None:
            return answer
        if request.path in ("", "/"):
            return answering.json_answer(200, {"paths": self._paths()})
        return answering.text(404, "404 page not found\n")

    def _paths(self) -> list[str]:
        parts = (self._discovery.paths(), self._health.paths(), self.pages.paths(), ["/openapi/v2", "/openapi/v3"])
        return sorted(path for paths in parts for path in paths)
