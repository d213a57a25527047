"""Follow the containers that Hadoop YARN runs on this node, which koord-yarn-copilot tells of, and kill those that are
evicted through it.

A node without a copilot has no socket of one, and no such containers. While the copilot does not answer, the containers
are not known, and none of them is evicted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import msgspec

from koord.api.koordinator.protocol import (
    BATCH,
    BE,
    BEST_EFFORT,
    L_EVICTION_ENABLED,
    L_PRIORITY_CLASS,
    L_QOS_CLASS,
    PRIORITY_BANDS,
    TRUE,
)
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.api.koordinator.slo import CgroupPath, HostApplicationSpec
from koord.api.koordinator.yarn import ALLOCATION_NAME, HOST_APPLICATION
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.policy.qos import priority_class_of_value
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpReply
from koord.telemetry.plain_http import HttpFailure, request
from koord.wire import yarn_copilot as api
from koord.wire.yarn_copilot import ContainerInfo

_LOG = logging.getLogger(__name__)

BESTEFFORT_BASE, ROOT_BASE = "KubepodsBesteffort", "CgroupRoot"


class YarnCopilotSettings(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str = ""  # the copilot's socket; "" looks for none
    interval_s: float = 3.0
    timeout_s: float = 5.0
    kill_timeout_s: float = 10.0  # after that the numbers that the choice was made on are old


class YarnContainers:
    """Follows the containers. Run it in a task; `containers` is the same object while nothing changed.

    `on_group` is called with the cgroup of all containers when it is first seen and whenever it changes.
    """

    def __init__(
        self, settings: YarnCopilotSettings, clock: Clock, on_group: Callable[[str], None] = lambda group: None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_group = on_group
        self._group = ""
        self._log = ProblemLog(_LOG, "YARN's containers are not known", "YARN's containers are known again")
        self.containers: tuple[PodMeta, ...] = ()
        self.is_present = False  # whether this node has a copilot

    @property
    def problem(self) -> str:
        return self._log.problem

    async def run(self) -> None:
        while self._settings.endpoint:
            await self.refresh()
            await self._clock.sleep(self._settings.interval_s)

    async def refresh(self) -> None:
        """Ask the copilot for the containers."""
        self._look_for_socket()
        found = await self._list() if self.is_present else ()
        if isinstance(found, str):
            self._log.fails(found)
            self.containers = ()
            return
        self._log.works()
        if found != self.containers:
            self.containers = found
        group = found[0].group.rpartition("/")[0] if found else self._group
        if group and group != self._group:
            self._group = group
            self._on_group(group)

    def _look_for_socket(self) -> None:
        self.is_present = os.path.exists(self._settings.endpoint)

    async def kill(self, uid: str) -> str | None:
        """Kill one container. Return None when its processes are gone, else why not."""
        body = msgspec.json.encode(api.KillRequest(uid))
        answer = await self._call("POST", api.KILL_CONTAINER, body, self._settings.kill_timeout_s)
        if isinstance(answer, str):
            return answer
        if answer.status == 200:
            return None
        refusal = _refusal(answer)
        running = await self.is_running(uid)
        return None if running is False else refusal

    async def is_running(self, uid: str) -> bool | str:
        """Return whether the container is still there, or why that is not known."""
        listed = await self._list()
        return listed if isinstance(listed, str) else any(one.uid == uid for one in listed)

    async def _list(self) -> tuple[PodMeta, ...] | str:
        answer = await self._call("GET", api.CONTAINERS, b"", self._settings.timeout_s)
        if isinstance(answer, str):
            return answer
        if answer.status != 200:
            return _refusal(answer)
        try:
            listed = msgspec.json.decode(answer.body, type=list[ContainerInfo])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"the copilot's answer cannot be read: {error}"
        groups = {one.cgroup_dir.strip("/") for one in listed}
        if not all(groups) or any(".." in group.split("/") for group in groups):
            return "the copilot's answer names no cgroup below the root"
        return tuple(container_meta(one) for one in sorted(listed, key=lambda one: one.name))

    async def _call(self, method: str, path: str, body: bytes, timeout_s: float) -> HttpReply | str:
        if not self._settings.endpoint:
            return "no socket of a copilot is configured"
        answer = await request(self._settings.endpoint, method, path, body, timeout_s=timeout_s)
        return f"the copilot does not answer: {answer}" if isinstance(answer, HttpFailure) else answer


def _refusal(answer: HttpReply) -> str:
    said = answer.body[:500].decode("utf-8", "replace").strip()
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, str]).get("message", said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"the copilot answered {answer.status}: {said}"
    return f"the copilot answered {answer.status}: {said}"


def container_meta(info: ContainerInfo) -> PodMeta:
    """Return the container as decisions see it: best-effort work of the batch class, like pods of koord-batch.

    A priority within a band of Koordinator counts. An application's master has one more than its tasks, and so goes
    after them: with it the whole application ends.
    """
    cpu, memory = info.requested(CPU), info.requested(MEMORY)
    stated = info.priority if priority_class_of_value(info.priority) else PRIORITY_BANDS[BATCH].shipped
    defaults = {L_QOS_CLASS: BE, L_EVICTION_ENABLED: TRUE}
    if not priority_class_of_value(info.priority):
        defaults[L_PRIORITY_CLASS] = BATCH
    return PodMeta(
        uid=info.uid or info.name,
        namespace=info.namespace,
        name=info.name,
        group=info.cgroup_dir.strip("/"),
        labels={**defaults, **(info.labels or {})},
        annotations=info.annotations or {},
        priority=stated + api.is_application_master(info.name),
        kube_qos=BEST_EFFORT,
        requests={
            BATCH_CPU: 0 if cpu is None else max(0, cpu.milli_value()),
            BATCH_MEMORY: 0 if memory is None else max(0, memory.value()),
        },
        host_network=info.host_network,
        third_party=ALLOCATION_NAME,
    )


def yarn_application(group: str, layout: CgroupLayout) -> HostApplicationSpec:
    """Return the host application that stands for all containers in that group."""
    besteffort = f"{layout.qos_dir(BEST_EFFORT)}/"
    base, path = (
        (BESTEFFORT_BASE, group.removeprefix(besteffort)) if group.startswith(besteffort) else (ROOT_BASE, group)
    )
    return HostApplicationSpec(
        name=HOST_APPLICATION, priority=BATCH, qos=BE, cgroup_path=CgroupPath(base=base, relative_path=path)
    )


def with_application(
    stated: tuple[HostApplicationSpec, ...], more: HostApplicationSpec, layout: CgroupLayout
) -> tuple[HostApplicationSpec, ...]:
    """Return the applications with one more, unless one of them has its group, or one above it, or its name."""
    group = f"{layout.host_application_dir(more)}/"
    covered = any(one.name == more.name or group.startswith(f"{layout.host_application_dir(one)}/") for one in stated)
    return stated if covered else (*stated, more)
