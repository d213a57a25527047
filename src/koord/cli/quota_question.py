"""This module asks the quotas of a snapshot, live or from a file, about pods that do not exist yet."""

from __future__ import annotations

import time

from koord.cli import access
from koord.cli.simulate import filled, live
from koord.cli.simulate_input import Plain, completed, name_of, objects_in, pods_of
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.scheduler.assembly import Assembly
from koord.scheduler.explain.quota import Verdict, ledger_of, what_if
from koord.scheduler.explain.snapshot import FixedHandle, Snapshot


def asked_of_file(assembly: Assembly, files: tuple[str, ...], namespace: str, snapshot: str) -> list[Verdict]:
    return _asked(assembly, Snapshot(objects_in(snapshot)), _pods(files, namespace))


async def asked_live(client: Client, assembly: Assembly, files: tuple[str, ...], namespace: str) -> list[Verdict]:
    """Check pods against the live cluster. The server completes each pod by a dry-run create, so its webhooks
    apply.
    """
    ready: list[Plain] = []
    refused: list[Verdict] = []
    for pod in _pods(files, namespace):
        answer = await filled(client, pod)
        if isinstance(answer, Refused):
            key = f"{pod['metadata']['namespace']}/{name_of(pod)}"
            refused.append(Verdict(pod=key, message=f"the API server refuses it: {answer.message}"))
        else:
            ready.append(answer)
    return [*refused, *_asked(assembly, await live(client, assembly), ready)]


def _pods(files: tuple[str, ...], namespace: str) -> list[Plain]:
    pods = [pod for file in files for pod in pods_of(objects_in(file), namespace, None)]
    if not pods:
        access.fail(f"{', '.join(files)}: there is no Pod and nothing with a pod template in it")
    return pods


def _asked(assembly: Assembly, snapshot: Snapshot, pods: list[Plain]) -> list[Verdict]:
    state = snapshot.state()
    ledger = ledger_of(assembly.profiles(FixedHandle(snapshot, state, time.time())))
    if ledger is None:
        access.fail("no profile of the scheduler enables ElasticQuota")
    return what_if(ledger, [state.info(pod) for pod in completed(snapshot, pods)])
