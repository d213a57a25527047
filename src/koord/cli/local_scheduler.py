"""This module is the scheduler of `koord up`: Kubernetes' and Koordinator's profiles side by side over one
state.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import shipped
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, Plugins, Profile
from koord.api.protocol import SCHEDULER
from koord.cli.page import page_of
from koord.embedded.cluster import Context
from koord.scheduler.assembly import Assembly, load, without_unbuilt
from koord.scheduler.explain import service
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.registry import ENTRY_POINTS, registered
from koord.scheduler.program import Leading, Scheduler
from koord.telemetry.endpoint import Endpoint, Services

KUBERNETES = "default-scheduler"


def configuration() -> KubeSchedulerConfiguration:
    """Return the default configuration: every schedulerName that a pod may have is served here."""
    given = shipped.configuration()
    same_queue = Plugins(queue_sort=shipped.plugins().queue_sort)  # all profiles must say the same of it
    kubernetes = Profile(scheduler_name=KUBERNETES, plugins=same_queue)
    return msgspec.structs.replace(given, profiles=(*given.profiles, kubernetes))


def assembled(file: Path | None = None) -> Assembly | str:
    """Assemble the scheduler from a file, taken as it is, or from the default without the plugins that are not
    built yet.
    """
    factories = registered(entry_points(group=ENTRY_POINTS))
    if file is None:
        config, _ = without_unbuilt(configuration(), factories)
    else:
        try:
            read = load(file.read_text())
        except OSError as error:
            return f"cannot read {file}: {error.strerror}"
        if isinstance(read, list):
            return _listed(file, read)
        config = read
    made = Assembly.of(config, factories)
    return _listed(file, made) if isinstance(made, list) else made


def left_out() -> tuple[str, ...]:
    """Return Koordinator's plugins that the default configuration names and this version does not have."""
    return without_unbuilt(configuration(), registered(entry_points(group=ENTRY_POINTS)))[1]


class LocalScheduler:
    """LocalScheduler is the program in this process: always the leader, with its services below /koord of the API
    server.
    """

    def __init__(self, context: Context, assembly: Assembly) -> None:
        self.scheduler = Scheduler(context.client, context.informers, context.clock, assembly, seed=context.seed)
        self._leading = Leading(self.scheduler)
        self._pages = context.pages
        self._endpoint = Endpoint(context.clock)
        services = Services(self._endpoint)
        for path, handler in service.routes(Explainer(self.scheduler, context.clock)):
            services.add("GET", path, handler)

    async def start(self) -> None:
        await self._leading.start()
        self._pages.add(SCHEDULER, page_of(self._endpoint))

    async def stop(self) -> None:
        self._pages.remove(SCHEDULER)
        await self._leading.stop()


def make(context: Context, assembly: Assembly | None = None) -> LocalScheduler:
    if assembly is None:
        found = assembled()
        if isinstance(found, str):
            raise ValueError(found)
        assembly = found
    return LocalScheduler(context, assembly)


def _listed(file: Path | None, errors: list[FieldError]) -> str:
    return "; ".join(f"{file}: {error}" if file is not None else str(error) for error in errors)
