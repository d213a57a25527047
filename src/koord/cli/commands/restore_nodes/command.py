"""This module is `koord restore-nodes`: it stops what writes to nodes, has each koordlet put its machine back, and
removes what koord wrote into Node objects. The chart runs it before a release is deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from koord.api.koordinator.protocol import DESCHEDULER_NAME, SCHEDULER
from koord.api.koordinator.yarn import OPERATOR_LEASE, OPERATOR_PROGRAM
from koord.api.kubernetes.builtin_kinds import (
    DAEMON_SETS,
    DEPLOYMENTS,
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.rbac import RbacRule
from koord.api.kubernetes.resource import Resource
from koord.cli import cluster_access
from koord.cli.commands.restore_nodes.plan import RestoreProgress, node_patch, restore_progress, restoring_patch
from koord.cli.manifests.koordlet_daemonset import NAME as KOORDLET
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.context import NAMESPACE
from koord.manager.program import LEASE_NAME
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


@click.command("restore-nodes")
@click.option(
    "-n", "--namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koord is installed."
)
@click.option("--timeout", default="4m", show_default=True, help="How long koordlets and pods may take in all.")
@cluster_access.cluster_options
def restore_nodes(namespace: str, timeout: str, kubeconfig: str, context: str) -> None:
    """Put all nodes back to what they were without koord; before it is uninstalled.

    Deletes the webhook configurations, scales koord-manager, koord-scheduler, koord-descheduler and koord-yarn-operator
    to zero, has the koordlet of each node put back every kernel file that it wrote, deletes the DaemonSet, and removes
    from Nodes the resources, annotations, labels and conditions that koord wrote. Pods go on running. Nodes that are
    not ready are named and left. The Helm chart runs this before an uninstall.
    """
    try:
        seconds = parse_seconds(timeout)
    except DurationError as wrong:
        cluster_access.fail(f"--timeout: {wrong}")

    async def main(client: Client, clock: Clock) -> None:
        await NodeRestoration(client, clock, namespace, clock.monotonic() + seconds).run()

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
            (MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME),
            (VALIDATING_WEBHOOK_CONFIGURATIONS, VALIDATING_NAME),
        ):
            await self._delete(resource, name, None)
        await self._stop_programs()
        await self._restore_machines()
        await self._clean_nodes()
        for name in LEASE_NAMES:
            await self._delete(LEASES, name, self._namespace)
        await self._delete(SECRETS, SECRET_NAME, self._namespace)

    async def _stop_programs(self) -> None:
        for name in PROGRAMS:
            stopped = await self._client.patch(
                DEPLOYMENTS, name, {"spec": {"replicas": 0}}, self._namespace, kind="merge"
            )
            if not (isinstance(stopped, ApiError) and stopped.not_found):
                unwrap(stopped)
        for name in PROGRAMS:
            await self._until_no_pods(name)
            click.echo(f"{name}: no pod runs")

    async def _restore_machines(self) -> None:
        found = await self._client.dynamic.get(DAEMON_SETS, KOORDLET, self._namespace)
        if isinstance(found, ApiError) and found.not_found:
            click.echo(f"there is no DaemonSet {KOORDLET}: no machine is restored")
            return
        patch = restoring_patch(unwrap(found))
        unwrap(await self._client.patch(DAEMON_SETS, KOORDLET, patch, self._namespace, kind="merge"))
        progress = await self._until_restored()
        for one in progress.nodes:
            click.echo(f"{one.node}: {one.state}{f' ({one.detail.strip()})' if one.detail else ''}")
        await self._delete(DAEMON_SETS, KOORDLET, self._namespace)
        await self._until_no_pods(KOORDLET, but_on=progress.names("unreachable"))

    async def _until_restored(self) -> RestoreProgress:
        progress = RestoreProgress(nodes=(), complete=False)

        async def left() -> str:
            nonlocal progress
            daemon_set = unwrap(await self._client.get(DAEMON_SETS, KOORDLET, self._namespace))
            pods = unwrap(await self._client.list(PODS, self._namespace, labels=f"koord-app={KOORDLET}"))
            nodes = unwrap(await self._client.list(NODES))
            progress = restore_progress(daemon_set, pods.items, nodes.items)
            failed = [f"{one.node} ({one.detail.strip()})" for one in progress.nodes if one.state == "failed"]
            if failed:
                return f"koordlet could not restore {', '.join(failed)}"
            return "" if progress.complete else f"koordlet has not restored {', '.join(progress.names('waiting'))}"

        await self._until(left)
        return progress

    async def _clean_nodes(self) -> None:
        for node in unwrap(await self._client.list(NODES)).items:
            name, patch = node.metadata.name, node_patch(node)
            if not patch:
                continue
            done = await self._client.patch(NODES, name, patch, kind="strategic", subresource="status")
            if not (isinstance(done, ApiError) and done.not_found):
                unwrap(done)
            click.echo(f"{name}: resources, annotations, labels and conditions of koord are removed")

    async def _until_no_pods(self, app: str, but_on: list[str] | None = None) -> None:
        async def left() -> str:
            pods = unwrap(await self._client.list(PODS, self._namespace, labels=f"koord-app={app}"))
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
