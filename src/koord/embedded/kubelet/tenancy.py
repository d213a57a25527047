"""Sync one pod on its simulated host: admit or recover it, advance its run, and report its status to the
API server.

The fleet decides which pod is synced and when. Admission and recovery are pure decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from koord.api.builtin import PODS
from koord.api.meta import Object
from koord.api.part import ObjectReference
from koord.embedded.kubelet import usage
from koord.embedded.kubelet.admission import admit
from koord.embedded.kubelet.behaviour import USAGE, BadAnnotation, Plan, plan_of, start_s
from koord.embedded.kubelet.host import Tenant
from koord.embedded.kubelet.podlife import Deletion, Orders, Run, admitted, advance, next_due
from koord.embedded.kubelet.podstatus import Plain, backing_off, patch_between, rejected_status, status_of
from koord.embedded.kubelet.recovery import run_of
from koord.embedded.kubelet.usage import BadUsage, Load, Points, load_of
from koord.embedded.kubelet.view import ANNOTATION_PREFIX
from koord.kube import verb
from koord.kube.client import Client
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder, reference
from koord.kube.refused import Refused, from_answer
from koord.kube.transport import Request
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

DEFAULT_GRACE_S = 30
DEFAULT_RESTART_POLICY = "Always"


class Tenancy:
    def __init__(
        self, client: Client, clock: Clock, seed: int, recorder: Recorder, traces: Mapping[str, Points]
    ) -> None:
        self._client = client
        self._clock = clock
        self._seed = seed
        self._recorder = recorder
        self._traces = traces
        self._quiet = QuietLog(_LOG, clock)

    async def sync(self, tenant: Tenant) -> Outcome:
        try:
            return await self._sync(tenant)
        except OUTAGE as error:
            self._quiet.warning("pod %s: %s", tenant.view.metadata.name, error)
            return Requeue(str(error))

    def orders(self, tenant: Tenant, plan: Plan) -> Orders:
        spec, status = tenant.view.spec, tenant.view.status
        grace = spec.termination_grace_period_seconds
        return Orders(
            plan=plan,
            restart_policy=spec.restart_policy or DEFAULT_RESTART_POLICY,
            deadline_s=spec.active_deadline_seconds,
            grace_s=DEFAULT_GRACE_S if grace is None else grace,
            deletion=tenant.deletion,
            gates_open=all(status.condition(gate) == "True" for gate in tenant.template.gates),
        )

    async def _sync(self, tenant: Tenant) -> Outcome:
        now = self._clock.time()
        self._note_deletion(tenant, now)
        if tenant.run is None and not tenant.rejected:
            refused = await self._take_in(tenant, now)
            if refused is not None:
                return self._outcome(tenant, refused)
        if tenant.run is not None and not tenant.run.over and tenant.view.status.phase in ("Succeeded", "Failed"):
            tenant.rejected = True  # someone else declared it over, and that is final
            tenant.host.let_go(tenant)
        if tenant.rejected or tenant.run is None or tenant.plan is None:
            return await self._finish(tenant)
        orders = self.orders(tenant, tenant.plan)
        run = tenant.run = advance(tenant.run, orders, now)
        refused = await self._tell(tenant, run)
        if refused is not None:
            return self._outcome(tenant, refused)
        if run.over:
            tenant.host.let_go(tenant)
            return await self._finish(tenant)
        tenant.host.hold(tenant)
        due = next_due(run, orders)
        return Done() if due is None else Retry(max(0.0, due - self._clock.time()))

    def note_usage(self, tenant: Tenant) -> None:
        """Apply a changed usage annotation; everything else was settled when the pod was admitted."""
        load = self._load(tenant)
        if isinstance(load, BadAnnotation):
            self._recorder.record(_about(tenant.view), "Warning", "InvalidSimulation", str(load))
        else:
            tenant.load = load

    def _load(self, tenant: Tenant) -> Load | BadAnnotation:
        key = ANNOTATION_PREFIX + USAGE
        said = tenant.view.metadata.annotations.get(key)
        model = tenant.host.machine.pool.usage if said is None else usage.parse(said)
        template = tenant.template
        if not isinstance(model, BadUsage):
            load = load_of(model, template.requests, template.limits, self._traces)
            if not isinstance(load, BadUsage):
                return load
            model = load
        return BadAnnotation(key=key, value=said or "", rule=model.rule)

    def _note_deletion(self, tenant: Tenant, now: float) -> None:
        meta = tenant.view.metadata
        if meta.deletion_timestamp is None:
            return
        grace = float(meta.deletion_grace_period_seconds or 0)
        if tenant.deletion is None or grace < tenant.deletion.grace_s:
            tenant.deletion = Deletion(now, grace)

    async def _take_in(self, tenant: Tenant, now: float) -> Refused | None:
        """Admit a pod that is new here, or recover one that ran before this process did."""
        status = tenant.view.status
        if status.phase in ("Succeeded", "Failed"):
            tenant.rejected = True  # over before it was ours: only its deletion is left to do
            return None
        plan, load = self._plan(tenant), self._load(tenant)
        if isinstance(plan, BadAnnotation):
            return await self._reject(tenant, "InvalidSimulation", f"Pod was rejected: {plan}", now)
        if isinstance(load, BadAnnotation):
            return await self._reject(tenant, "InvalidSimulation", f"Pod was rejected: {load}", now)
        tenant.load = load
        host = tenant.host
        if status.start_time:
            return await self._take_over(tenant, plan, now)
        no = admit(tenant.template, host.allocatable, host.used, host.ports, host.labels)
        if no is not None:
            return await self._reject(tenant, no.reason, no.message, now)
        tenant.plan = plan
        tenant.run = admitted(plan, now, start_s(plan, self._seed, _key(tenant)))
        host.hold(tenant)
        host.give_address(tenant)
        return None

    def _plan(self, tenant: Tenant) -> Plan | BadAnnotation:
        policy = tenant.view.spec.restart_policy or DEFAULT_RESTART_POLICY
        return plan_of(tenant.view.metadata.annotations, tenant.template, policy)

    async def _take_over(self, tenant: Tenant, plan: Plan, now: float) -> Refused | None:
        meta = tenant.view.metadata
        found = await self._client.get(PODS, meta.name, meta.namespace)
        if isinstance(found, Refused):
            return found
        host = tenant.host
        tenant.plan = plan
        tenant.run = run_of(found.status, tenant.template, plan, now)
        tenant.ip = found.status.pod_ip
        if tenant.ip and not tenant.view.spec.host_network:
            host.block.claim(tenant.ip)
        host.hold(tenant)
        host.give_address(tenant)
        tenant.told = (tenant.run, tenant.about())
        return None

    async def _reject(self, tenant: Tenant, reason: str, message: str, now: float) -> Refused | None:
        status = rejected_status(reason, message, tenant.about(), now)
        refused = await self._patch(tenant, status)
        if refused is None:
            tenant.rejected = True
            self._recorder.record(_about(tenant.view), "Warning", reason, message)
        return refused

    async def _tell(self, tenant: Tenant, run: Run) -> Refused | None:
        about, told = tenant.about(), tenant.told
        contradicted = told is not None and tenant.contradicted()
        if told is not None and told[0] is run and told[1] == about and not contradicted:
            return None
        before = None if told is None or contradicted else status_of(*told)
        patch = patch_between(before, status_of(run, about))
        if patch is None:
            return None
        refused = await self._patch(tenant, patch)
        if refused is None:
            self._announce(tenant, None if told is None else told[0], run)
            tenant.told = (run, about)
        return refused

    def _announce(self, tenant: Tenant, before: Run | None, after: Run) -> None:
        """Record a BackOff event only: an event on every start would double the writes."""
        for name in backing_off(before, after, tenant.template):
            meta = tenant.view.metadata
            note = f"Back-off restarting failed container {name} in pod {meta.name}_{meta.namespace}({meta.uid})"
            self._recorder.record(_about(tenant.view), "Warning", "BackOff", note)

    async def _finish(self, tenant: Tenant) -> Outcome:
        """Delete a pod that is over from the API server when its deletion was requested."""
        if tenant.deletion is None and tenant.view.metadata.deletion_timestamp is None:
            return Done()
        meta = tenant.view.metadata
        request = verb.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)
        refused = await self._send(request)
        return Done() if refused is None else self._outcome(tenant, refused)

    async def _patch(self, tenant: Tenant, status: Plain) -> Refused | None:
        meta = tenant.view.metadata
        body = {"status": status}
        return await self._send(
            verb.patch(PODS, meta.name, body, meta.namespace, kind="strategic", subresource="status", uid=meta.uid)
        )

    async def _send(self, request: Request) -> Refused | None:
        answer = await self._client.raw(request)
        return None if answer.ok else from_answer(answer)

    def _outcome(self, tenant: Tenant, refused: Refused) -> Outcome:
        if refused.not_found or refused.conflict:
            return Done()  # it is gone, or a namesake has come: the informer will say so
        self._quiet.warning("pod %s/%s: %s", tenant.view.metadata.namespace, tenant.view.metadata.name, refused)
        return Requeue(str(refused))


def _key(tenant: Tenant) -> str:
    meta = tenant.view.metadata
    return f"{meta.namespace}/{meta.name}/{meta.uid}"


def _about(pod: Object) -> ObjectReference:
    return reference(PODS, pod)
