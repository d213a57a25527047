"""This module is the koordlet program, and `koordlet restore`, which undoes all that it ever wrote."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from koord.cli import program as process
from koord.cli.flags import Values
from koord.cli.flags_logging import verbosity
from koord.cli.koordlet_flags import FLAGS, PROGRAM, Plan, long_form, planned
from koord.cli.reaching import connection
from koord.host.cgroup.detection import Undetected, open_tree
from koord.host.host import Host
from koord.koordlet.apply.executor import Executor
from koord.koordlet.apply.journal import Journal
from koord.koordlet.engine import JOURNAL
from koord.koordlet.program import Koordlet
from koord.koordlet.settings import Settings
from koord.kube.client import Client
from koord.kube.connection import BadConfig, Connection
from koord.kube.http import HttpTransport
from koord.kube.informers import Informers
from koord.telemetry import collector
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.logs import Logs

_LOG = logging.getLogger("koord.cli.koordlet")  # by name: as a script this module is called __main__
USER_AGENT = "koordlet"


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    restoring = argv[:1] == ["restore"]
    words = long_form(argv[1:] if restoring else argv)
    return process.run(FLAGS, words, lambda values, logs: work(values, logs, environ, restoring=restoring))


def work(values: Values, logs: Logs, environ: Mapping[str, str], *, restoring: bool = False) -> int:
    plan = planned(values, environ if not restoring else {"NODE_NAME": "-", **environ})
    if isinstance(plan, str):
        return process.refuse(PROGRAM, [plan])
    if restoring:
        return restore(plan)
    for name, why in FLAGS.unused(values):
        _LOG.info("--%s has no effect: %s", name, why)
    clock = WallClock()
    try:
        found = connection(environ, clock, kubeconfig=plan.kubeconfig)
    except BadConfig as wrong:
        return process.refuse(PROGRAM, [str(wrong)])
    plan = msgspec.structs.replace(plan, settings=with_identity(plan.settings, found))
    client = Client(HttpTransport(found, clock), clock=clock, qps=plan.qps, burst=plan.burst, user_agent=USER_AGENT)
    return process.run_loop(lambda stop: serve(plan, client, clock, logs, stop))


def with_identity(settings: Settings, found: Connection) -> Settings:
    """Use the API server's credentials for the kubelet as well."""
    pods = msgspec.structs.replace(settings.pods, auth=found.auth, certificate=found.certificate)
    return msgspec.structs.replace(settings, pods=pods)


async def serve(plan: Plan, client: Client, clock: Clock, logs: Logs, stop: asyncio.Event) -> int:
    """Serve until `stop`. While an API server does not answer yet, the machine is managed already."""
    informers = Informers(client, clock)
    agent = Koordlet(client, informers, clock, plan.settings, Host.here(plan.paths))
    agent.endpoint.flag("v", lambda text: verbosity(logs, text))
    informers.start()
    await agent.start()
    collector.settle()
    try:
        await stop.wait()
        _LOG.info("ending; files keep their values")
    finally:
        await agent.stop()
        await informers.stop()
        await client.close()
    return 0


def restore(plan: Plan) -> int:
    """Put every file in the journal back. The agent must not run meanwhile, or it writes again."""
    host = Host.here(plan.paths)
    tree = open_tree(host, kubepods=plan.settings.kubepods)
    if isinstance(tree, Undetected):
        return process.refuse(PROGRAM, [str(tree)])
    journal = Journal(host, f"{plan.settings.state_dir}/{JOURNAL}")
    if journal.fault is not None:
        return process.refuse(PROGRAM, [f"the journal cannot be read: {journal.fault}"])
    found = len(journal)
    results = Executor(tree, WallClock(), journal=journal).restore("koordlet restore")
    failed = [result for result in results if not result.settled]
    for result in failed:
        print(f"{PROGRAM}: {result.effect}: {result.status.value} {result.detail}", file=sys.stderr)
    print(f"{found} files in the journal, {len(results) - len(failed)} put back, {len(failed)} could not be")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
