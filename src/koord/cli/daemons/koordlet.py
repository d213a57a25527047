"""This module is the koordlet program, and `koordlet restore`, which undoes all that it ever wrote."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, PROGRAM, KoordletPlan, plan_koordlet, to_double_dash
from koord.cli.daemons.lifecycle import set_verbosity
from koord.gpu.mps import MpsControl, end_daemons
from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.koordlet.agent import Koordlet
from koord.koordlet.cgroup_writer.effects import TaskEffect, WriteOutcome, file_of_effect
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.journal import WriteJournal
from koord.koordlet.control_loop import JOURNAL_FILE
from koord.koordlet.hook_calls.node_actions import undo_node_actions
from koord.koordlet.pod_resources import settings as pod_resources
from koord.koordlet.settings import KoordletSettings, missing_requirement
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.loader import daemon_connection
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.logs import Logs
from koord.telemetry.process import freeze_after_startup, shorten_gc_pauses

_LOG = logging.getLogger("koord.cli.daemons.koordlet")  # by name: as a script this module is called __main__
USER_AGENT = "koordlet"


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    restoring = argv[:1] == ["restore"]
    words = to_double_dash(argv[1:] if restoring else argv)
    return process.run_program(
        KOORDLET_FLAGS, words, lambda values, logs: run_koordlet(values, logs, environ, restoring=restoring)
    )


def run_koordlet(values: FlagValues, logs: Logs, environ: Mapping[str, str], *, restoring: bool = False) -> int:
    plan = plan_koordlet(values, environ if not restoring else {"NODE_NAME": "-", **environ})
    if isinstance(plan, str):
        return process.report_errors(PROGRAM, [plan])
    if restoring:
        return restore_files(plan)
    missing = [
        why
        for wanted, why in (
            (plan.settings.cri_eviction, missing_requirement()),
            (plan.settings.pod_resources, pod_resources.missing_requirement()),
        )
        if wanted is not None and why
    ]
    if missing:
        return process.report_errors(PROGRAM, missing)
    for name, why in KOORDLET_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    for warning in plan.warnings:
        _LOG.warning("%s", warning)
    clock = WallClock()
    try:
        found = daemon_connection(environ, clock, kubeconfig=plan.kubeconfig)
    except BadConfig as wrong:
        return process.report_errors(PROGRAM, [str(wrong)])
    plan = msgspec.structs.replace(plan, settings=with_kubelet_credentials(plan.settings, found))
    client = Client(HttpTransport(found, clock), clock=clock, qps=plan.qps, burst=plan.burst, user_agent=USER_AGENT)
    return process.run_event_loop(lambda stop: serve(plan, client, clock, logs, stop))


def with_kubelet_credentials(settings: KoordletSettings, found: Connection) -> KoordletSettings:
    """Use the API server's credentials for the kubelet as well."""
    pods = msgspec.structs.replace(settings.pods, auth=found.auth, certificate=found.certificate)
    return msgspec.structs.replace(settings, pods=pods)


async def serve(plan: KoordletPlan, client: Client, clock: Clock, logs: Logs, stop: asyncio.Event) -> int:
    """Serve until `stop`. While an API server does not answer yet, the machine is managed already."""
    informers = InformerFactory(client, clock)
    agent = Koordlet(client, informers, clock, plan.settings, Host.local(plan.paths))
    agent.endpoint.flag("v", lambda text: set_verbosity(logs, text))
    informers.start()
    await agent.start()
    freeze_after_startup()
    shorten_gc_pauses()  # a container that starts waits for the answer of hooks
    try:
        await stop.wait()
        _LOG.info("ending; files keep their values")
    finally:
        await agent.stop()
        await informers.stop()
        await client.close()
    return 0


def restore_files(plan: KoordletPlan) -> int:
    """Put every file in the journal back, and undo what the agent did besides. The agent must not run meanwhile, or it
    writes again.
    """
    host = Host.local(plan.paths)
    tree = open_tree(host, kubepods=plan.settings.kubepods)
    if isinstance(tree, LayoutNotDetected):
        return process.report_errors(PROGRAM, [str(tree)])
    kept = [
        *undo_node_actions(tree, plan.settings.state_dir),
        *asyncio.run(end_daemons(MpsControl(plan.settings.mps))),
    ]
    for problem in kept:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
    journal = WriteJournal(host, f"{plan.settings.state_dir}/{JOURNAL_FILE}")
    unread = journal.io_error
    if unread is not None:
        return process.report_errors(PROGRAM, [f"the journal cannot be read: {unread}"])
    if not len(journal):
        print("the journal is empty: there is nothing to put back")
        return 1 if kept else 0
    results = CgroupExecutor(tree, WallClock(), journal=journal).restore("koordlet restore")
    failed = [result for result in results if not result.is_settled]
    for result in results:
        if result in failed or result.status is WriteOutcome.OVERWRITTEN:
            file = file_of_effect(result.effect) if not isinstance(result.effect, TaskEffect) else result.effect
            print(f"{PROGRAM}: {file}: {result.status.value}: {result.detail}", file=sys.stderr)
    if journal.io_error is not None:
        print(f"{PROGRAM}: the journal still has entries that are done with: {journal.io_error}", file=sys.stderr)
    count = Counter(result.status for result in results)
    print(
        f"{len(results)} files in the journal: {count[WriteOutcome.WRITTEN]} put back, "
        f"{count[WriteOutcome.SAME]} had their value already, {count[WriteOutcome.VANISHED]} are gone, "
        f"{count[WriteOutcome.OVERWRITTEN]} were written by others since and left, {len(failed)} could not be put back"
    )
    return 1 if failed or kept else 0


if __name__ == "__main__":
    main()
