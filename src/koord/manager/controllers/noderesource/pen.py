"""Writes the decisions of the noderesource controller: patches of the node and its topology, and events."""

from __future__ import annotations

from random import Random

from koord.api.builtin import NODES
from koord.api.custom import NODE_RESOURCE_TOPOLOGIES
from koord.kube.client import Client
from koord.kube.ratelimit import jittered
from koord.kube.refused import Refused
from koord.manager.controllers.tally import Tally
from koord.policy.colocation.decision import Decision
from koord.policy.colocation.difference import Write
from koord.policy.colocation.wire import Node
from koord.policy.colocation.zone import revised
from koord.telemetry.clock import Clock

TRIES = 4
FIRST_S, FACTOR, JITTER = 0.01, 5.0, 0.1


class Pen:
    def __init__(self, client: Client, clock: Clock, tally: Tally) -> None:
        self._client = client
        self._clock = clock
        self._tally = tally
        self._rng = Random()

    async def node(self, node: Node, write: Write) -> Refused | None:
        """Patch resources and metadata at once: a node's status subresource accepts annotations and labels.

        A node that is gone, or another one of its name, needs nothing more.
        """
        meta = node.metadata
        reason = "updateNodeStatus" if write.status_due else "patchNodeMeta"
        answer = await self._client.plain.patch(
            NODES, meta.name, write.patch(), kind="merge", subresource="status", uid=meta.uid
        )
        if not isinstance(answer, Refused):
            self._tally.succeeded(reason)
            return None
        if answer.not_found or (answer.code == 422 and answer.conflict):
            self._tally.failed("updateNodeNotFound")
            return None
        self._tally.failed(reason)
        return answer

    async def zones(self, name: str, decision: Decision, *, overdue: bool) -> Refused | None:
        """Patch the zones. They are one list, and the koordlet writes it too: read, change own entries, write that
        version.

        The object is read as plain data, so that fields that no model knows are kept.
        """
        if decision.batch is None:
            return None
        ratio = None if decision.normalization is None else decision.normalization.ratio
        refused: Refused | None = None
        for tried in range(TRIES):
            if tried:
                await self._clock.sleep(jittered(FIRST_S * FACTOR ** (tried - 1), JITTER, self._rng))
            found = await self._client.plain.get(NODE_RESOURCE_TOPOLOGIES, name)
            if isinstance(found, Refused):
                return None if found.not_found else self._failed(found)
            zones = revised(
                found.get("zones") or [],
                decision.batch.zones,
                ratio,
                decision.rules.diff_threshold,
                overdue=overdue,
            )
            if zones is None:
                return None
            answer = await self._client.plain.patch(
                NODE_RESOURCE_TOPOLOGIES,
                name,
                {"zones": zones},
                kind="merge",
                uid=found["metadata"]["uid"],
                resource_version=found["metadata"]["resourceVersion"],
            )
            if not isinstance(answer, Refused):
                self._tally.succeeded("updateNodeResourceTopology")
                return None
            if answer.not_found:
                return None
            refused = answer
            if not answer.conflict:
                break
        return None if refused is None else self._failed(refused)

    def _failed(self, refused: Refused) -> Refused:
        self._tally.failed("updateNodeResourceTopology")
        return refused
