"""This module is `koord restore-nodes`: it stops what writes to nodes, has each koordlet put its machine back, and
removes what koord wrote into Node objects. The chart runs it before a release is deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

import click
import msgspec

from koord.api.koordinator.protocol import DESCHEDULER_NAME, SCHEDULER
from koord.api.koordinator.yarn import OPERATOR_LEASE, OPERATOR_PROGRAM
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.workload import DaemonSet
from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor.installation import program_workloads
from koord.cli.manifests.daemonsets import KOORDLET, RESTORE, SAFE_MODE, restoring_container
from koord.koordlet.reporters.builders.node_conditions import PREFIX
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.colocation.device_resources import decide_node_removal
from koord.manager.program import LEASE_NAME
from koord.manager.reconcile_loop import NAMESPACE
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, SECRET_NAME, VALIDATING_NAME
from koord.telemetry.clock import Clock
from koord.values.duration import DurationError, parse_seconds

PROGRAMS = ("koord-manager", SCHEDULER, DESCHEDULER_NAME, OPERATOR_PROGRAM)
LEASE_NAMES = (LEASE_NAME, SCHEDULER, DESCHEDULER_NAME, OPERATOR_LEASE)
RIGHTS: tuple[RbacRule, ...] = (
    RbacRule("", ("nodes",), ("list",)),
    RbacRule("", ("nodes/status",), ("patch",)),
    RbacRule("admissionregistration.k8s.io", ("mutatingwebhookconfigurations",), ("delete",), (MUTATING_NAME,)),
    RbacRule("admissionregistration.k8s.io", ("validatingwebhookconfigurations",), ("delete",), (VALIDATING_NAME,)),
    RbacRule("", ("pods",), ("list",), namespace=NAMESPACE),
    RbacRule("apps", ("deployments",), ("patch",), PROGRAMS, NAMESPACE),
    RbacRule("apps", ("daemonsets",), ("get", "patch", "delete"), (KOORDLET,), NAMESPACE),
    RbacRule("coordination.k8s.io", ("leases",), ("delete",), LEASE_NAMES, NAMESPACE),
    RbacRule("", ("secrets",), ("delete",), (SECRET_NAME,), NAMESPACE),
)
_POLL_S = 1.0

RestoreState = Literal["restored", "waiting", "failed", "unreachable"]


class NodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one node's koordlet in putting the machine back; `detail` is what it said last."""

    node: str
    state: RestoreState
    detail: str = ""


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of all koordlets. `complete` counts the nodes that nobody can restore now as done."""

    nodes: tuple[NodeProgress, ...]
    complete: bool

    def names(self, state: RestoreState) -> list[str]:
        return [one.node for one in self.nodes if one.state == state]


def restoring_patch(daemon_set: Obj) -> Obj:
    """Return the merge patch that has each koordlet replaced by one that restores its machine and then writes nothing.

    All are replaced at once: nothing is to be protected any more.
    """
    spec = daemon_set["spec"]["template"]["spec"]
    agent = next(one for one in spec["containers"] if one["name"] == KOORDLET)
    args = [*agent["args"], *(() if SAFE_MODE in agent["args"] else (SAFE_MODE,))]
    agents = [{**one, "args": args} if one["name"] == KOORDLET else one for one in spec["containers"]]
    others = [one for one in spec.get("initContainers", ()) if one["name"] != RESTORE]
    inits = [*others, restoring_container({**agent, "args": args})]
    return {
        "spec": {
            "minReadySeconds": 0,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}},
            "template": {"spec": {"containers": agents, "initContainers": inits}},
        }
    }


def restore_progress(daemon_set: DaemonSet, pods: Iterable[Pod], nodes: Iterable[Node]) -> RestoreProgress:
    """Judge by the pods of the DaemonSet, of which those of an older template count for nothing."""
    ready = {node.metadata.name for node in nodes if _is_ready(node)}
    by_node: dict[str, NodeProgress] = {}
    for pod in pods:
        name = pod.spec.node_name
        progress = _progress(pod, reachable=name in ready)
        if name and (name not in by_node or by_node[name].state == "waiting"):
            by_node[name] = progress
    found = tuple(by_node[name] for name in sorted(by_node))
    status = daemon_set.status
    seen = (status.observed_generation or 0) >= daemon_set.metadata.generation
    settled = [one for one in found if one.state in ("restored", "unreachable")]
    complete = seen and len(settled) == len(found) and len(settled) >= status.desired_number_scheduled
    return RestoreProgress(nodes=found, complete=complete)


def node_patch(node: Node, *, koordlet_only: bool = False) -> Obj:
    """Return the strategic merge patch of the node's status without what koord, or its koordlet alone, wrote there;
    empty when nothing is.
    """
    patch: Obj = {} if koordlet_only else decide_node_removal(node)
    conditions = [
        {"$patch": "delete", "type": one.type} for one in node.status.conditions if one.type.startswith(PREFIX)
    ]
    if conditions:
        patch.setdefault("status", {})["conditions"] = conditions
    return patch


def _progress(pod: Pod, *, reachable: bool) -> NodeProgress:
    name = pod.spec.node_name
    state = next((one for one in pod.status.init_container_statuses if one.name == RESTORE), None)
    ended = None if state is None else state.state.terminated or state.last_state.terminated
    if ended is not None and ended.exit_code == 0:
        return NodeProgress(node=name, state="restored", detail=ended.message)
    if not reachable:
        return NodeProgress(node=name, state="unreachable", detail="the node is not ready")
    if ended is not None:
        return NodeProgress(node=name, state="failed", detail=ended.message or f"exit code {ended.exit_code}")
    return NodeProgress(node=name, state="waiting")


def _is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


@click.command("restore-nodes")
@click.option(
    "-n", "--namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koord is installed."
)
@click.option("--timeout", default="4m", show_default=True, help="How long koordlets and pods may take in all.")
@click.option(
    "--koordlet-only",
    is_flag=True,
    help="Leave the other programs, the webhooks and what Nodes lend: before Koordinator's koordlet comes back.",
)
@cluster_access.cluster_options
def restore_nodes(namespace: str, timeout: str, koordlet_only: bool, kubeconfig: str, context: str) -> None:
    """Put all nodes back to what they were without koord; before it is uninstalled.

    Deletes the webhook configurations, scales koord-manager, koord-scheduler, koord-descheduler and koord-yarn-operator
    to zero, has the koordlet of each node put back every kernel file that it wrote, deletes the DaemonSet, and removes
    from Nodes the resources, annotations, labels and conditions that koord wrote. Pods go on running. Nodes that are
    not ready are named and left. The Helm chart runs this before an uninstall.

    With --koordlet-only kernel files are put back, and the DaemonSet and the conditions of Nodes go. All else works on.
    """
    try:
        seconds = parse_seconds(timeout)
    except DurationError as wrong:
        cluster_access.fail(f"--timeout: {wrong}")

    async def main(client: Client, clock: Clock) -> None:
        restoration = NodeRestoration(client, clock, namespace, clock.monotonic() + seconds)
        await (restoration.run_koordlet_only() if koordlet_only else restoration.run())

    cluster_access.run_with_client(main, kubeconfig, context)


class NodeRestoration:
    """NodeRestoration does one step after the other; each may be repeated, so that a second run goes on where a first
    one ended.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str, deadline: float) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._deadline = deadline

    async def run(self) -> None:
        # First of all: without a manager, webhooks that fail closed would refuse the pods and nodes of what follows.
        for resource, name in (
            (builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME),
            (builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS, VALIDATING_NAME),
        ):
            await self._delete(resource, name, None)
        await self._stop_programs()
        await self._restore_machines()
        await self._clean_nodes()
        for name in LEASE_NAMES:
            await self._delete(builtin_kinds.LEASES, name, self._namespace)
        await self._delete(builtin_kinds.SECRETS, SECRET_NAME, self._namespace)

    async def run_koordlet_only(self) -> None:
        """Put machines back for an agent of others. The DaemonSet goes, since Helm would keep a container that it did
        not add there.
        """
        await self._restore_machines()
        await self._clean_nodes(koordlet_only=True)

    async def _stop_programs(self) -> None:
        for name in PROGRAMS:
            stopped = await self._client.patch(
                builtin_kinds.DEPLOYMENTS, name, {"spec": {"replicas": 0}}, self._namespace, kind="merge"
            )
            if not (isinstance(stopped, ApiError) and stopped.not_found):
                unwrap(stopped)
        for name in PROGRAMS:
            await self._until_no_pods(name)
            click.echo(f"{name}: no pod runs")

    async def _restore_machines(self) -> None:
        found = await self._client.dynamic.get(builtin_kinds.DAEMON_SETS, KOORDLET, self._namespace)
        if isinstance(found, ApiError) and found.not_found:
            click.echo(f"there is no DaemonSet {KOORDLET}: no machine is restored")
            return
        daemon_set = unwrap(found)
        for agent in program_workloads((), (daemon_set,)):
            if agent.is_upstream:
                images = ", ".join(agent.images)
                cluster_access.fail(f"{agent.title} runs Koordinator's own {images}: it is left as it is")
        patch = restoring_patch(daemon_set)
        unwrap(await self._client.patch(builtin_kinds.DAEMON_SETS, KOORDLET, patch, self._namespace, kind="merge"))
        progress = await self._until_restored()
        for one in progress.nodes:
            click.echo(f"{one.node}: {one.state}{f' ({one.detail.strip()})' if one.detail else ''}")
        await self._delete(builtin_kinds.DAEMON_SETS, KOORDLET, self._namespace)
        await self._until_no_pods(KOORDLET, but_on=progress.names("unreachable"))

    async def _until_restored(self) -> RestoreProgress:
        progress = RestoreProgress(nodes=(), complete=False)

        async def left() -> str:
            nonlocal progress
            daemon_set = unwrap(await self._client.get(builtin_kinds.DAEMON_SETS, KOORDLET, self._namespace))
            pods = unwrap(await self._client.list(builtin_kinds.PODS, self._namespace, labels=f"koord-app={KOORDLET}"))
            nodes = unwrap(await self._client.list(builtin_kinds.NODES))
            progress = restore_progress(daemon_set, pods.items, nodes.items)
            failed = [f"{one.node} ({one.detail.strip()})" for one in progress.nodes if one.state == "failed"]
            if failed:
                return f"koordlet could not restore {', '.join(failed)}"
            return "" if progress.complete else f"koordlet has not restored {', '.join(progress.names('waiting'))}"

        await self._until(left)
        return progress

    async def _clean_nodes(self, *, koordlet_only: bool = False) -> None:
        removed = "conditions" if koordlet_only else "resources, annotations, labels and conditions"
        for node in unwrap(await self._client.list(builtin_kinds.NODES)).items:
            name, patch = node.metadata.name, node_patch(node, koordlet_only=koordlet_only)
            if not patch:
                continue
            done = await self._client.patch(builtin_kinds.NODES, name, patch, kind="strategic", subresource="status")
            if not (isinstance(done, ApiError) and done.not_found):
                unwrap(done)
            click.echo(f"{name}: {removed} of koord are removed")

    async def _until_no_pods(self, app: str, but_on: list[str] | None = None) -> None:
        async def left() -> str:
            pods = unwrap(await self._client.list(builtin_kinds.PODS, self._namespace, labels=f"koord-app={app}"))
            names = [pod.metadata.name for pod in pods.items if pod.spec.node_name not in (but_on or ())]
            return f"pods still run: {', '.join(names)}" if names else ""

        await self._until(left)

    async def _until(self, left: Callable[[], Awaitable[str]]) -> None:
        """Wait until nothing is left to be done; end the command at the deadline."""
        while problem := await left():
            if self._clock.monotonic() > self._deadline:
                cluster_access.fail(f"{problem}; run it again, or uninstall with --no-hooks")
            await self._clock.sleep(_POLL_S)

    async def _delete(self, resource: Resource[Object], name: str, namespace: str | None) -> None:
        done = await self._client.delete(resource, name, namespace)
        if isinstance(done, ApiError):
            if not done.not_found:
                unwrap(done)
            return
        click.echo(f"{resource.kind} {name}: deleted")
