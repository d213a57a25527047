"""Create and delete pods for their owners, and enqueue owners when their pods change.

Pods are created in batches that double with success, and expected until the caches show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from koord.api.builtin import PODS
from koord.api.core import Pod
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.expectation import Expectations
from koord.kube.recorder import EventType, reference
from koord.kube.refused import Refused
from koord.kube.verb import Plain

# A template that the server refuses is refused once, not five hundred times.
FIRST_BATCH = 1
BURST = 500
_NAME_TRIES = 4


class PodWriter:
    def __init__(self, context: Context, resource: Resource[Any], expectations: Expectations) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._resource = resource
        self._expectations = expectations

    async def create(self, owner: Object, bodies: Sequence[Callable[[], Plain]]) -> tuple[int, Refused | None]:
        """Create pods; return how many were made and the first refusal, after which no further batch was begun.

        A body is made anew when its name turns out to be taken.
        """
        made, size, at = 0, FIRST_BATCH, 0
        while at < len(bodies):
            batch = bodies[at : at + size]
            answers = await asyncio.gather(*(self._create(owner, body) for body in batch), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            refusals = [answer for answer in answers if isinstance(answer, Refused)]
            made += len(batch) - len(refusals)
            if refusals:
                return made, refusals[0]
            at += len(batch)
            size *= 2
        return made, None

    async def delete(self, owner: Object, pods: Sequence[Pod]) -> Refused | None:
        answers = await asyncio.gather(*(self._delete(owner, pod) for pod in pods), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return next((answer for answer in answers if isinstance(answer, Refused)), None)

    async def _create(self, owner: Object, make: Callable[[], Plain]) -> Refused | None:
        uid = owner.metadata.uid
        self._expectations.creating(uid)
        answer: Pod | Refused | None = None
        try:
            for _ in range(_NAME_TRIES):
                answer = await self._client.create(PODS, make())
                if not (isinstance(answer, Refused) and answer.already_exists):
                    break
        finally:
            if isinstance(answer, Pod):
                self._expectations.created(uid, answer.metadata.uid)
            else:
                self._expectations.not_created(uid)
        assert answer is not None, "at least one try was made"
        if isinstance(answer, Refused):
            # A namespace that is being emptied refuses everything: that is no news.
            if not namespace_ends(answer):
                self._tell(owner, "Warning", "FailedCreate", f"Error creating: {answer.message}")
            return answer
        self._tell(owner, "Normal", "SuccessfulCreate", f"Created pod: {answer.metadata.name}", answer)
        return None

    async def _delete(self, owner: Object, pod: Pod) -> Refused | None:
        uid, meta = owner.metadata.uid, pod.metadata
        self._expectations.deleting(uid, meta.uid)
        done = False
        try:
            answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
            done = not isinstance(answer, Refused)
        finally:
            if not done:
                self._expectations.not_deleted(uid, meta.uid)
        if isinstance(answer, Refused):
            if answer.not_found or answer.conflict:
                return None  # gone already, which is what was wanted
            self._tell(owner, "Warning", "FailedDelete", f"Error deleting: {answer.message}")
            return answer
        self._tell(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}", pod)
        return None

    def _tell(self, owner: Object, type: EventType, reason: str, message: str, pod: Pod | None = None) -> None:
        """Record an event. It names the pod, so that events about two pods do not count as repetitions."""
        related = None if pod is None else reference(PODS, pod)
        self._recorder.record(reference(self._resource, owner), type, reason, message, related=related)


def namespace_ends(refused: Refused) -> bool:
    """Return whether a request was refused because its namespace is terminating."""
    return refused.forbidden and any(
        cause.reason == "NamespaceTerminating" for cause in (refused.details.causes if refused.details else ())
    )
