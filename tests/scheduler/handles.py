"""Handles for making plugins in tests."""

from __future__ import annotations

from typing import Any

from koord.api.resource import Resource
from koord.scheduler.framework.handle import Lister
from koord.scheduler.state.cluster import ClusterState


class StateOnly:
    """For plugins that read nodes and pods and nothing else."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def lister(self, resource: Resource[Any]) -> Lister[Any]:
        raise LookupError(f"this test has no {resource.plural}")
