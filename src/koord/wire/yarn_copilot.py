"""The HTTP API of the YARN copilot, as Koordinator's copilot serves it on a Unix socket, and the containers that a
NodeManager lists over REST.

koord-yarn-copilot serves this API, and koordlet calls it: the containers of YARN on a node, and how one is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.koordinator.yarn import CONTAINER_PREFIX, MIB, MILLI_PER_VCORE
from koord.values.quantity import Quantity, QuantityError

SOCKET = "yarn-copilot/yarn-copilot.sock"  # below /var/run
NAMESPACE = "yarn"  # of every ContainerInfo
# What Events about containers are about; they are written to the namespace default, as those about nodes are.
EVENT_KIND, EVENT_API_VERSION = "YarnContainer", "yarn.hadoop.apache.org/v1"
PLUGIN_NAME, PLUGIN_VERSION = "yarn", "v1"
HEALTH, INFORMATION = "/health", "/information"
CONTAINERS, CONTAINER = "/v1/containers", "/v1/container"
KILL_CONTAINER, KILL_BY_RESOURCE = "/v1/killContainer", "/v1/killContainersByResource"
_ZERO_TIME = "0001-01-01T00:00:00Z"  # the NodeManager does not tell when a container started
_PRIORITY = 1  # of every container, as upstream states it

# In these a container has ended or is about to; it is no longer listed.
FINAL_STATES = frozenset(
    {
        "KILLING",
        "DONE",
        "LOCALIZATION_FAILED",
        "CONTAINER_RESOURCES_CLEANINGUP",
        "CONTAINER_CLEANEDUP_AFTER_KILL",
        "EXITED_WITH_FAILURE",
        "EXITED_WITH_SUCCESS",
    }
)


class NodeManagerContainer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One container as the NodeManager's /ws/v1/node/containers has it."""

    id: str
    state: str = ""
    user: str = ""
    memory_mb: int = msgspec.field(name="totalMemoryNeededMB", default=0)
    vcores: int = msgspec.field(name="totalVCoresNeeded", default=0)

    @property
    def is_live(self) -> bool:
        return self.state not in FINAL_STATES

    @property
    def memory_bytes(self) -> int:
        return max(0, self.memory_mb) * MIB


class _Containers(msgspec.Struct, frozen=True):
    container: list[NodeManagerContainer] | None = None


class _ContainerList(msgspec.Struct, frozen=True):
    containers: _Containers | None = None  # {} when there is none


class MalformedAnswer(msgspec.Struct, frozen=True):
    why: str

    def __str__(self) -> str:
        return self.why


def parse_node_manager_containers(body: bytes) -> list[NodeManagerContainer] | MalformedAnswer:
    """Parse the NodeManager's list; those of final states are left out."""
    try:
        listed = msgspec.json.decode(body, type=_ContainerList)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return MalformedAnswer(f"no list of containers: {error}")
    found = listed.containers.container if listed.containers is not None else None
    return [one for one in found or () if one.is_live]


def is_container_id(text: str) -> bool:
    """Return whether the text may be the id of a container, and so the name of one directory."""
    return text.startswith(CONTAINER_PREFIX) and text.isascii() and text.replace("_", "").isalnum()


def is_application_master(container_id: str) -> bool:
    """Return whether the container is its application's first, which is its master: with it ends the application."""
    number = container_id.rpartition("_")[2]
    return number.isdecimal() and int(number) == 1


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """Quantities by the name of a resource."""

    limits: Mapping[str, str] | None = None
    requests: Mapping[str, str] | None = None


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One container of YARN in the copilot's API, in terms of a pod."""

    name: str
    namespace: str = NAMESPACE
    uid: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    priority: int = _PRIORITY
    create_timestamp: str | None = _ZERO_TIME
    cgroup_dir: str = ""
    host_network: bool = True
    resources: ContainerResources = ContainerResources()

    def requested(self, resource: str) -> Quantity | None:
        """Return the request; None where there is none, or where it cannot be read."""
        text = (self.resources.requests or {}).get(resource)
        if text is None:
            return None
        try:
            return Quantity.parse(text)
        except QuantityError:
            return None


class PluginInformation(msgspec.Struct, frozen=True):
    name: str = PLUGIN_NAME
    version: str = PLUGIN_VERSION


class KillRequest(msgspec.Struct, frozen=True):
    container_id: str = msgspec.field(name="containerID", default="")


class KillByResourceRequest(msgspec.Struct, frozen=True):
    """The amounts to free, as quantities by the name of a resource (cpu, memory). Nothing asked for kills nothing."""

    resources: Mapping[str, str] = {}


class KilledContainers(msgspec.Struct, frozen=True):
    items: Sequence[ContainerInfo] = ()


def container_info(container: NodeManagerContainer, group: str) -> ContainerInfo:
    """Return the container in terms of a pod. `group` is the cgroup of all containers."""
    amounts = {"cpu": str(max(0, container.vcores)), "memory": str(container.memory_bytes)}
    return ContainerInfo(
        name=container.id,
        uid=container.id,
        cgroup_dir=f"{group}/{container.id}",
        resources=ContainerResources(limits=amounts, requests=amounts),
    )


def select_by_resource(
    containers: Sequence[NodeManagerContainer], milli: int, memory_bytes: int
) -> list[NodeManagerContainer]:
    """Select the containers to kill so that their requests free both amounts, or all when that is too little.

    Masters go last, as their whole application ends with them, and before that the newest first, as they lose least.
    A container that brings nothing that is missing is left alone.
    """
    order = sorted(containers, key=lambda one: one.id, reverse=True)
    chosen: list[NodeManagerContainer] = []
    for one in sorted(order, key=lambda one: is_application_master(one.id)):
        if milli <= 0 and memory_bytes <= 0:
            break
        brings_cpu, brings_memory = max(0, one.vcores) * MILLI_PER_VCORE, one.memory_bytes
        if (milli > 0 and brings_cpu) or (memory_bytes > 0 and brings_memory):
            chosen.append(one)
            milli -= brings_cpu
            memory_bytes -= brings_memory
    return chosen
