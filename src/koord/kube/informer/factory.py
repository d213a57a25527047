"""This module makes informers: one shared for each model and scope of a kind, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.informer.reflector import MalformedObject, WatchScope
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

# Two models of one kind are two views and two caches: a slim one must not stand in for a full one.
_InformerKey = tuple[str, str, type[Object], WatchScope]


class InformerFactory:
    """InformerFactory shares informers: `for_resource` requests one, `start` runs them, `wait_for_cache_sync`
    waits for the first state, `stop` ends every task.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        seed: int | None = None,
        on_malformed: Callable[[MalformedObject], None] | None = None,
    ) -> None:
        """Create a factory. `seed` makes the jitter of reconnections repeat from run to run."""
        self._client = client
        self._clock = clock
        self._seed = seed
        self._on_malformed = on_malformed
        self._shared: dict[_InformerKey, Informer[Any]] = {}
        self._tasks: dict[_InformerKey, asyncio.Task[None]] = {}
        self._started = False

    def for_resource(
        self,
        resource: Resource[O],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        transform: Callable[[O], O | None] | None = None,
        resync_s: float | None = None,
    ) -> Informer[O]:
        """Return the shared informer of this resource and scope; its first caller sets `transform` and `resync_s`."""
        scope = WatchScope(namespace=namespace, labels=labels, fields=fields)
        view: _InformerKey = (resource.api_version, resource.plural, resource.model, scope)
        known = self._shared.get(view)
        if known is not None:
            if transform is not None and transform != known.transform:
                raise ValueError(f"the informer of {resource.plural} {scope} is shared and has another transform")
            return known
        rng = Random() if self._seed is None else Random(f"{self._seed} {view[:2]} {scope}")
        informer = Informer(
            self._client,
            resource,
            self._clock,
            scope=scope,
            transform=transform,
            resync_s=resync_s,
            on_malformed=self._on_malformed,
            rng=rng,
        )
        self._shared[view] = informer
        if self._started:
            self._start(view, informer)
        return informer

    def start(self) -> None:
        """Run the informers requested so far; those requested later are run at once."""
        self._started = True
        for view, informer in self._shared.items():
            if view not in self._tasks:
                self._start(view, informer)

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Wait until every informer and all its handlers know the first state. TimeoutError names the late ones."""
        waiting = [asyncio.create_task(informer.wait_for_sync()) for informer in self._shared.values()]
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for_all(waiting)
        except TimeoutError:
            late = [
                f"{informer.resource.plural} ({informer.counts.last_failure or 'no answer yet'})"
                for informer in self._shared.values()
                if not informer.has_synced
            ]
            raise TimeoutError(f"not synced within {timeout} s: {', '.join(late)}") from None
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def stop(self) -> None:
        """End every task and wait for it. Raise what an informer died of, if one did."""
        self._started = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        died = [end for end in ends if isinstance(end, Exception)]
        if died:
            raise ExceptionGroup("informers died", died)

    @property
    def dead_informers(self) -> tuple[str, ...]:
        """Return the informers that ended though nobody stopped them: their caches no longer follow the cluster."""
        return tuple(task.get_name() for task in self._tasks.values() if task.done())

    async def __aenter__(self) -> InformerFactory:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __iter__(self) -> Iterator[Informer[Any]]:
        return iter(tuple(self._shared.values()))

    def _start(self, view: _InformerKey, informer: Informer[Any]) -> None:
        task = asyncio.create_task(informer.run(), name=f"informer-{informer.resource.plural}")
        task.add_done_callback(_log_if_died)
        self._tasks[view] = task

    async def _wait_for_all(self, waiting: list[asyncio.Task[None]]) -> None:
        """Wait for all of `waiting`, unless an informer dies first: then nothing will ever sync it."""
        pending = set(waiting)
        while pending:
            running = set(self._tasks.values())
            done, _ = await asyncio.wait(pending | running, return_when=asyncio.FIRST_COMPLETED)
            for task in done & running:
                if not task.cancelled():
                    task.result()
                raise RuntimeError(f"{task.get_name()} ended before it was synced")
            pending -= done


def _log_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: its view of the cluster is frozen", task.get_name(), exc_info=error)
