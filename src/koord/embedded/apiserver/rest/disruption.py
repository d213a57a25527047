"""The subresources of pods that move them: binding assigns a node, eviction deletes a pod within its
disruption budgets.

The decisions are pure functions; PodSubresources reads, stores and deletes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.refusal import Refusal, bad_request
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.rest.binding import bound, check_binding
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.rest.deleting import Deleter, check_preconditions
from koord.embedded.apiserver.rest.door import STATUS
from koord.embedded.apiserver.rest.eviction import budgets_of, decide_eviction, disruption_target
from koord.embedded.apiserver.rest.options import DeleteOptions, Preconditions, WriteOptions, delete_options
from koord.embedded.apiserver.rest.writing import UPDATE_TRIES, Writer, wrong_uid

Obj = dict[str, Any]
MYSELF = "kube-apiserver"  # how the server signs what it writes on its own account


class PodHandover:
    def __init__(self, parts: Parts, writer: Writer, deleter: Deleter) -> None:
        self._parts = parts
        self._writer = writer
        self._deleter = deleter

    async def bind(self, call: Call, binding: Obj, options: WriteOptions) -> None:
        """Bind the pod that the request context names."""
        parts = self._parts
        node = check_binding(binding, call.name)
        if parts.admission.mutating or parts.admission.validating:
            await self._admit(call, "binding", binding, options.dry_run)
        collection = call.collection(parts)
        record = collection.get(call.namespace, call.name)
        if record is None:
            raise refusal.not_found("pods", "", call.name)
        pod = record.plain()
        uid = binding.get("metadata", {}).get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            raise refusal.conflict("pods", "", call.name, wrong_uid(call, uid, pod["metadata"]["uid"]))
        new = bound(pod, binding, node, parts.stamp.now())
        if options.dry_run:
            return
        stored = self._writer.put_now(call.resource, call.namespace, call.name, new)
        await parts.store.settled(stored.revision)

    async def _admit(self, call: Call, subresource: str, obj: Obj, dry_run: bool) -> None:
        attributes = Attributes(
            "CREATE",
            call.resource,
            call.name,
            call.namespace,
            obj,
            None,
            subresource=subresource,
            dry_run=dry_run,
            user=call.request.user,
            warnings=call.warnings,
        )
        await self._parts.admission.mutate(attributes)
        await self._parts.admission.validate(attributes)

    async def evict(self, call: Call, eviction: Obj, options: WriteOptions) -> None:
        if eviction.get("metadata", {}).get("name", "") != call.name:
            raise bad_request("name in URL does not match name in Eviction object")
        deletion = delete_options({}, {**(eviction.get("deleteOptions") or {}), "kind": "DeleteOptions"})
        if options.dry_run:
            deletion = msgspec.structs.replace(deletion, dry_run=["All"])
        await self._admit(call, "eviction", eviction, deletion.is_dry_run)
        for _ in range(UPDATE_TRIES):
            pod = self._pod(call)
            policy = self._parts.catalog.find("policy", "v1", "poddisruptionbudgets")
            assert policy is not None, "disruption budgets are built in"
            stored = self._parts.store.collection(policy.storage)
            guarding = budgets_of(pod, [r.plain() for r in stored.scan(call.namespace)])
            verdict = decide_eviction(pod, guarding, self._parts.stamp.now(), dry_run=deletion.is_dry_run)
            if isinstance(verdict, Refusal):
                raise verdict
            if verdict.status is not None:
                budget = Call(policy, call.namespace, verdict.budget, "status", call.request, False, call.warnings)
                if not await self._spend(budget, guarding[0], verdict.status):
                    continue  # someone else changed the budget: ask it again
            await self._delete(call, pod, deletion, pinned=verdict.unchanged_pod)
            return
        raise refusal.too_many_requests("Cannot evict pod: its disruption budget keeps changing.", 1)

    def _pod(self, call: Call) -> Obj:
        record = call.collection(self._parts).get(call.namespace, call.name)
        if record is None:
            raise refusal.not_found("pods", "", call.name)
        return record.plain()

    async def _spend(self, call: Call, budget: Obj, status: Obj) -> bool:
        """Store the new status of the budget and return True, or return False if the budget has changed since it
        was read.
        """
        request = msgspec.structs.replace(call.request, user_agent=MYSELF)
        call = msgspec.structs.replace(call, request=request)

        def change(live: Obj) -> Obj:
            return clone({**live, "metadata": budget["metadata"], "status": status})

        try:
            await self._writer.update(call, STATUS, change, WriteOptions(), own_uid=True)
        except Refusal as error:
            if error.code == 409:
                return False
            raise
        return True

    async def _delete(self, call: Call, pod: Obj, options: DeleteOptions, *, pinned: bool) -> None:
        """Add the DisruptionTarget condition to the pod, then delete it."""
        present = self._pod(call)
        wanted = options.preconditions
        if pinned and (wanted is None or wanted.resource_version is None):
            uid = wanted.uid if wanted is not None else None
            wanted = Preconditions(uid=uid, resource_version=pod["metadata"]["resourceVersion"])
        check_preconditions(call.resource, present, wanted)
        if not options.is_dry_run:
            marked = disruption_target(present, self._parts.stamp.now())
            if marked is not present:
                self._writer.put_now(call.resource, call.namespace, call.name, marked)
        # Checked above, against the pod that was decided on; its new condition has moved its version since.
        options = msgspec.structs.replace(options, preconditions=None)
        # Admission has admitted the eviction; it does not run for the deletion as well.
        await self._deleter.delete(msgspec.structs.replace(call, subresource=""), options, admitted=True)
