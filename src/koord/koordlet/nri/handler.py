"""This module holds the interface between the NRI session and what koordlet decides about pods and containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from koord.wire.nri_objects import ContainerAdjustment, ContainerUpdate, LinuxResources, NriContainer, NriPodSandbox

# The names of Koordinator's stages; it has none for Synchronize.
SYNCHRONIZE = "Synchronize"
PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
PRE_REMOVE_RUN_POD_SANDBOX = "PreRemoveRunPodSandbox"
PRE_CREATE_CONTAINER = "PreCreateContainer"
PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

HandlerOutcome = Literal["success", "failed", "timeout"]
OutcomeObserver = Callable[[str, HandlerOutcome, float, str], None]  # stage, outcome, seconds, detail


class NriHandler(Protocol):
    """NriHandler decides about pods and containers.

    The runtime waits for each answer. A method that raises, or that is slower than its deadline and is then cancelled,
    changes nothing, and with the failure policy Fail the runtime is told. The runtime holds its lock while it waits:
    a method that calls UpdateContainers would wait for itself.
    """

    async def synchronize(self, pods: tuple[NriPodSandbox, ...], containers: tuple[NriContainer, ...]) -> None:
        """Take over all pods and containers that exist; called once for each connection, before any other method."""
        ...

    async def run_pod_sandbox(self, pod: NriPodSandbox) -> None:
        """Act on a new pod: its sandbox's cgroup exists, its containers do not."""
        ...

    async def remove_pod_sandbox(self, pod: NriPodSandbox) -> None:
        """Act on a pod that goes. Its annotations are those of its start if this connection saw it, or else empty."""
        ...

    async def create_container(self, pod: NriPodSandbox, container: NriContainer) -> ContainerAdjustment | None:
        """Return what to change of a container before it is created."""
        ...

    async def update_container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources
    ) -> ContainerUpdate | None:
        """Return what to change of an update. `resources` are those that the container is about to have.

        An update without a container_id is about this container.
        """
        ...
