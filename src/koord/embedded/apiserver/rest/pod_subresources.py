"""The subresources of pods: binding assigns a node, eviction deletes a pod within its budgets, and the log of a
simulated container is told by its status.

The decisions are pure functions; PodSubresources reads, stores and deletes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from koord.api.kubernetes.meta import DeleteOptions, Preconditions
from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import StatusError, bad_request, too_many_requests
from koord.embedded.apiserver.kinds.validators import parse_optional_selector
from koord.embedded.apiserver.rest.create_update import UPDATE_TRIES, ObjectWriter, uid_mismatch_message
from koord.embedded.apiserver.rest.delete import Deleter, check_preconditions
from koord.embedded.apiserver.rest.object_metadata import deep_copy, ordered_metadata
from koord.embedded.apiserver.rest.options import ListOptions, WriteOptions, delete_options, query_bool, query_int
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes, RequestContext, ServerDeps
from koord.embedded.apiserver.rest.subresource_strategy import STATUS_STRATEGY
from koord.embedded.apiserver.rest.watch import WatchEncoding, open_watch
from koord.values import timestamp

SERVER_USER_AGENT = "kube-apiserver"  # how the server signs what it writes on its own account


class PodSubresources:
    def __init__(self, deps: ServerDeps, writer: ObjectWriter, deleter: Deleter) -> None:
        self._deps = deps
        self._writer = writer
        self._deleter = deleter

    async def bind(self, context: RequestContext, binding: Obj, options: WriteOptions) -> None:
        """Bind the pod that the request context names."""
        deps = self._deps
        node = binding_target_node(binding, context.name)
        if deps.admission.mutating or deps.admission.validating:
            await self._admit(context, "binding", binding, options.dry_run)
        collection = context.collection(deps)
        record = collection.get(context.namespace, context.name)
        if record is None:
            raise api_errors.not_found("pods", "", context.name)
        pod = record.plain()
        uid = binding.get("metadata", {}).get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            raise api_errors.conflict(
                "pods", "", context.name, uid_mismatch_message(context, uid, pod["metadata"]["uid"])
            )
        new = assign_node(pod, binding, node, deps.metadata_generator.now())
        if options.dry_run:
            return
        stored = self._writer.put_without_waiting(context.resource, context.namespace, context.name, new)
        await deps.store.wait_durable(stored.revision)

    async def _admit(self, context: RequestContext, subresource: str, obj: Obj, dry_run: bool) -> None:
        attributes = AdmissionAttributes(
            "CREATE",
            context.resource,
            context.name,
            context.namespace,
            obj,
            None,
            subresource=subresource,
            dry_run=dry_run,
            user=context.request.user,
            warnings=context.warnings,
        )
        await self._deps.admission.mutate(attributes)
        await self._deps.admission.validate(attributes)

    async def evict(self, context: RequestContext, eviction: Obj, options: WriteOptions) -> None:
        if eviction.get("metadata", {}).get("name", "") != context.name:
            raise bad_request("name in URL does not match name in Eviction object")
        deletion = delete_options({}, {**(eviction.get("deleteOptions") or {}), "kind": "DeleteOptions"})
        if options.dry_run:
            deletion = msgspec.structs.replace(deletion, dry_run=["All"])
        await self._admit(context, "eviction", eviction, bool(deletion.dry_run))
        for _ in range(UPDATE_TRIES):
            pod = self._pod(context)
            policy = self._deps.catalog.find("policy", "v1", "poddisruptionbudgets")
            assert policy is not None, "disruption budgets are built in"
            stored = self._deps.store.collection(policy.storage)
            guarding = budgets_selecting(pod, [r.plain() for r in stored.scan(context.namespace)])
            verdict = decide_eviction(
                pod, guarding, self._deps.metadata_generator.now(), dry_run=bool(deletion.dry_run)
            )
            if isinstance(verdict, StatusError):
                raise verdict
            if verdict.status is not None:
                budget = RequestContext(
                    policy, context.namespace, verdict.budget, "status", context.request, False, context.warnings
                )
                if not await self._store_budget_status(budget, guarding[0], verdict.status):
                    continue  # someone else changed the budget: ask it again
            await self._mark_and_delete(context, pod, deletion, pinned=verdict.requires_unchanged_pod)
            return
        raise api_errors.too_many_requests("Cannot evict pod: its disruption budget keeps changing.", 1)

    def _pod(self, context: RequestContext) -> Obj:
        record = context.collection(self._deps).get(context.namespace, context.name)
        if record is None:
            raise api_errors.not_found("pods", "", context.name)
        return record.plain()

    async def _store_budget_status(self, context: RequestContext, budget: Obj, status: Obj) -> bool:
        """Store the new status of the budget; return False if the budget has changed since it was read."""
        request = msgspec.structs.replace(context.request, user_agent=SERVER_USER_AGENT)
        context = msgspec.structs.replace(context, request=request)

        def change(live: Obj) -> Obj:
            return deep_copy({**live, "metadata": budget["metadata"], "status": status})

        try:
            await self._writer.update(context, STATUS_STRATEGY, change, WriteOptions(), own_uid=True)
        except StatusError as error:
            if error.code == 409:
                return False
            raise
        return True

    async def _mark_and_delete(
        self, context: RequestContext, pod: Obj, options: DeleteOptions, *, pinned: bool
    ) -> None:
        """Add the DisruptionTarget condition to the pod, then delete it."""
        present = self._pod(context)
        wanted = options.preconditions
        if pinned and (wanted is None or wanted.resource_version is None):
            uid = wanted.uid if wanted is not None else None
            wanted = Preconditions(uid=uid, resource_version=pod["metadata"]["resourceVersion"])
        check_preconditions(context.resource, present, wanted)
        if not bool(options.dry_run):
            marked = with_disruption_target(present, self._deps.metadata_generator.now())
            if marked is not present:
                self._writer.put_without_waiting(context.resource, context.namespace, context.name, marked)
        # Checked above, against the pod that was decided on; its new condition has moved its version since.
        options = msgspec.structs.replace(options, preconditions=None)
        # Admission has admitted the eviction; it does not run for the deletion as well.
        await self._deleter.delete(msgspec.structs.replace(context, subresource=""), options, admitted=True)


def binding_target_node(binding: Obj, name: str) -> str:
    """Return the node that a binding names; raise if the binding is invalid."""
    given = binding.get("metadata", {}).get("name", "")
    if name and given and given != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    kind, node = target.get("kind", ""), target.get("name", "")
    if kind not in ("", "Node"):
        raise StatusError(500, "", f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not node:
        raise StatusError(500, "", "target.name: Required value")
    return str(node)


def assign_node(pod: Obj, binding: Obj, node: str, now: str) -> Obj:
    """Return the pod with its node assigned; only the top level is private. Raises 409 when the pod cannot be bound."""
    meta, spec = pod["metadata"], pod.get("spec", {})
    name = meta["name"]
    if "deletionTimestamp" in meta:
        raise _binding_conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _binding_conflict(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _binding_conflict(name, f"pod {name} has non-empty .spec.schedulingGates")
    meta = {**meta}
    given = binding.get("metadata", {})
    for key in ("labels", "annotations"):
        if given.get(key):
            meta[key] = {**meta.get(key, {}), **given[key]}
    status = {**pod.get("status", {})}
    status["conditions"] = _with_pod_scheduled(status.get("conditions", []), now)
    return {**pod, "metadata": ordered_metadata(meta), "spec": {**spec, "nodeName": node}, "status": status}


def _with_pod_scheduled(conditions: list[Obj], now: str) -> list[Obj]:
    found: Obj = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    kept = []
    for condition in conditions:
        if condition.get("type") != "PodScheduled":
            kept.append(condition)
            continue
        if condition.get("status") == "True":
            found["lastTransitionTime"] = condition.get("lastTransitionTime", now)
        if "observedGeneration" in condition:
            found["observedGeneration"] = condition["observedGeneration"]
        kept.append(found)
    return kept if any(c is found for c in kept) else [*kept, found]


def _binding_conflict(name: str, why: str) -> StatusError:
    return api_errors.conflict("pods/binding", "", name, why)


MAX_DISRUPTED_PODS = 2000
_BUDGET_VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."
BUDGET_SYNC_RETRY_S = 10


class EvictionAllowed(msgspec.Struct, frozen=True):
    """The eviction is allowed. `status` is that of the charged budget, to be stored before the deletion."""

    budget: str = ""
    status: Obj | None = None
    requires_unchanged_pod: bool = False  # the pod must not have changed since: its health was the reason


def budgets_selecting(pod: Obj, budgets: Sequence[Obj]) -> list[Obj]:
    """Return the budgets of the pod's namespace that select it."""
    labels = pod["metadata"].get("labels", {})
    found = []
    for budget in budgets:
        selector = parse_optional_selector(budget.get("spec", {}).get("selector"))
        # A broken selector protects nobody, as in the disruption controller.
        if selector is not None and selector.matches(labels):
            found.append(budget)
    return found


def can_ignore_budgets(pod: Obj) -> bool:
    """Return whether a pod is finished, not started or terminating, so that evicting it disrupts nothing."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]


def _is_ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def decide_eviction(pod: Obj, budgets: Sequence[Obj], now: str, *, dry_run: bool) -> EvictionAllowed | StatusError:
    """Decide an eviction. `budgets` are those that select the pod."""
    if can_ignore_budgets(pod) or not budgets:
        return EvictionAllowed()
    if len(budgets) > 1:
        return StatusError(
            500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    budget = budgets[0]
    status = budget.get("status", {})
    if not _is_ready(pod):
        policy = budget.get("spec", {}).get("unhealthyPodEvictionPolicy")
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        if policy == "AlwaysAllow" or (healthy >= desired and desired > 0):
            return EvictionAllowed(requires_unchanged_pod=True)
    return _decrement_budget(budget, pod["metadata"]["name"], now, dry_run)


def _decrement_budget(budget: Obj, pod_name: str, now: str, dry_run: bool) -> EvictionAllowed | StatusError:
    name = budget["metadata"]["name"]
    status = budget.get("status", {})
    generation = budget["metadata"].get("generation", 0)
    if status.get("observedGeneration", 0) < generation:
        cause = f"The disruption budget {name} is still being processed by the server."
        return _budget_error(cause, BUDGET_SYNC_RETRY_S)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        return api_errors.forbidden("poddisruptionbudget", "policy", name, "pdb disruptions allowed is negative")
    disrupted = status.get("disruptedPods") or {}
    if len(disrupted) > MAX_DISRUPTED_PODS:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        return api_errors.forbidden("poddisruptionbudget", "policy", name, why)
    if allowed == 0:
        return _budget_error(_budget_reason(name, status), 0)
    new = {**status, "disruptionsAllowed": allowed - 1}
    if allowed == 1:
        new["conditions"] = _with_disruption_disallowed(status.get("conditions", []), generation, now)
    if dry_run:
        return EvictionAllowed(name)
    new["disruptedPods"] = {**disrupted, pod_name: now}
    return EvictionAllowed(name, new)


def _budget_reason(name: str, status: Obj) -> str:
    failed = next(
        (
            c
            for c in status.get("conditions", [])
            if c.get("type") == "DisruptionAllowed" and c.get("reason") == "SyncFailed" and c.get("status") == "False"
        ),
        None,
    )
    if failed is not None:
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: "
            f"{failed.get('message', '')}"
        )
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _budget_error(cause: str, retry_s: int) -> StatusError:
    return too_many_requests(_BUDGET_VIOLATED, retry_s, {"causes": [{"reason": "DisruptionBudget", "message": cause}]})


def _with_disruption_disallowed(conditions: list[Obj], generation: int, now: str) -> list[Obj]:
    """Set the condition of a budget that is used up at once; the disruption controller confirms it later."""
    old = next((c for c in conditions if c.get("type") == "DisruptionAllowed"), None)
    moved = old is None or old.get("status") != "False"
    condition: Obj = {
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": generation,
        "lastTransitionTime": now if moved or old is None else old.get("lastTransitionTime", now),
        "reason": "InsufficientPods",
        "message": "",
    }
    if old is None:
        return [*conditions, condition]
    return [condition if c is old else c for c in conditions]


def with_disruption_target(pod: Obj, now: str) -> Obj:
    """Return the pod with a DisruptionTarget condition; only the top level is private."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    status = {**pod.get("status", {})}
    kept = [c for c in status.get("conditions", []) if c.get("type") != "DisruptionTarget"]
    if len(kept) != len(status.get("conditions", [])):
        return pod  # it is a target already, and since then
    status["conditions"] = [*kept, condition]
    return {**pod, "metadata": {**pod["metadata"]}, "status": status}


# The log of a simulated container: one line for each state that its status tells of, and a stream of them.
#
# No process runs, so nothing else is known. Errors are those of a kubelet: a container that is not part of the pod,
# one that has not started, and a run before this one that never was.

_LISTS = (
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
)


class LogLine(msgspec.Struct, frozen=True):
    time: str
    text: str


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """LogOptions is the query of a log request."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time: str = ""
    tail_lines: int | None = None
    limit_bytes: int | None = None


def read_log_options(query: Mapping[str, str]) -> LogOptions:
    return LogOptions(
        container=query.get("container", ""),
        follow=bool(query_bool(query, "follow")),
        previous=bool(query_bool(query, "previous")),
        timestamps=bool(query_bool(query, "timestamps")),
        since_seconds=query_int(query, "sinceSeconds"),
        since_time=query.get("sinceTime", ""),
        tail_lines=query_int(query, "tailLines"),
        limit_bytes=query_int(query, "limitBytes"),
    )


def choose_container(pod: Obj, asked: str) -> str:
    """Return the container that is meant. Raises where the pod has none of that name, or several and none is named."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    if asked:
        if not any(one["name"] == asked for listed, _ in _LISTS for one in spec.get(listed) or ()):
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    names = [one["name"] for one in spec.get("containers") or ()]
    if len(names) != 1:
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    return str(names[0])


def container_log(pod: Obj, container: str, *, previous: bool) -> list[LogLine]:
    """Return the lines of a container's run, or of the one before. Raises where there is no such run."""
    name = pod["metadata"]["name"]
    status = _container_status(pod, container)
    state = status.get("lastState" if previous else "state") or {}
    if "waiting" in state and "terminated" in (status.get("lastState") or {}):
        state = status["lastState"]  # between two runs the last one is shown
    if previous and "terminated" not in state:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if "running" not in state and "terminated" not in state:
        reason = (state.get("waiting") or {}).get("reason", "ContainerCreating")
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
    ended = state.get("terminated") or {}
    began = ended.get("startedAt") or (state.get("running") or {}).get("startedAt") or ""
    node, image = pod["spec"].get("nodeName", ""), status.get("image", "")
    lines = [LogLine(began, f"{container} ({image}) started on {node}: a simulated container, which runs no process")]
    if not ended and status.get("ready"):
        since = next(
            (
                one.get("lastTransitionTime") or began
                for one in pod["status"].get("conditions") or ()
                if one.get("type") == "ContainersReady" and one.get("status") == "True"
            ),
            began,
        )
        lines.append(LogLine(max(since, began), f"{container} is ready"))
    if ended:
        text = f"{container} ended with exit code {ended.get('exitCode', 0)}: {ended.get('reason', 'Completed')}"
        message = f", {ended['message']}" if ended.get("message") else ""
        lines.append(LogLine(ended.get("finishedAt") or began, f"{text}{message}"))
    return lines


def _container_status(pod: Obj, container: str) -> Obj:
    status = pod.get("status") or {}
    listed = (one for _, field in _LISTS for one in status.get(field) or ())
    return next((one for one in listed if one["name"] == container), {})


def format_log(lines: list[LogLine], options: LogOptions, now: datetime) -> bytes:
    """Return the text of those lines that the options ask for. Every line begins with its time."""
    since = options.since_time
    if options.since_seconds is not None:
        since = timestamp.text(now - timedelta(seconds=options.since_seconds))
    kept = [line for line in lines if line.time >= since]
    if options.tail_lines is not None:
        kept = kept[len(kept) - min(options.tail_lines, len(kept)) :]
    prefix = "{0.time} " if options.timestamps else ""
    text = "".join(f"{prefix.format(line)}{line.time} {line.text}\n" for line in kept).encode()
    return text if options.limit_bytes is None else text[: options.limit_bytes]


def _now(deps: ServerDeps) -> datetime:
    return datetime.fromtimestamp(deps.clock.time(), UTC)


def read_log(pod: Obj, options: LogOptions, deps: ServerDeps) -> bytes:
    """Return what there is now. Raises StatusError where there is no such container or run."""
    container = choose_container(pod, options.container)
    return format_log(container_log(pod, container, previous=options.previous), options, _now(deps))


async def follow_log(
    context: RequestContext, deps: ServerDeps, options: LogOptions, encoding: WatchEncoding
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a container as its pod's status changes, until the container has ended or its pod is gone."""
    stream = open_watch(context, deps, ListOptions(), encoding)
    shown: set[LogLine] = set()
    try:
        async for frame in stream:
            pod = frame.body.plain()
            if frame.type not in ("ADDED", "MODIFIED", "DELETED") or "spec" not in pod:
                return
            state = _container_status(pod, options.container).get("state") or {}
            if "running" in state or "terminated" in state:
                lines = container_log(pod, options.container, previous=False)
                if not shown:
                    yield format_log(lines, options, _now(deps))
                else:
                    plain = msgspec.structs.replace(options, tail_lines=None, since_seconds=None, since_time="")
                    new = [line for line in lines if line not in shown]
                    yield format_log(new, plain, _now(deps))
                shown.update(lines)
            if "terminated" in state or frame.type == "DELETED":
                return
    finally:
        stream.close_now()
