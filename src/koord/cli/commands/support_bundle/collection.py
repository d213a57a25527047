"""This module is `koord support-bundle`: it collects the findings of koord doctor, objects and logs, with what was left
out and why, and saves them in an archive.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.resource import Resource
from koord.cli import cluster_access
from koord.cli.commands.doctor.command import CANNOT_ASK, reason_not_to_judge
from koord.cli.commands.doctor.facts import READ_ERRORS, ClusterFacts, Obj, Unread, read_list, readable
from koord.cli.commands.doctor.finding import DoctorReport
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.registry import CHECK_IDS, run_checks
from koord.cli.commands.doctor.unstructured import entries, name_of, number, text
from koord.cli.commands.support_bundle.redaction import redact_object, redact_text
from koord.cli.printing import format_bytes
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.certificates import write_private_file
from koord.telemetry.clock import Clock
from koord.version import build_info

MAX_LOG_BYTES = 4 << 20  # of one container
MAX_BUNDLE_BYTES = 256 << 20  # of all files before compression

# Of the installation's namespace. Secrets are not among them.
_NAMESPACED: tuple[Resource[Any], ...] = (
    builtin_kinds.PODS,
    builtin_kinds.CONFIG_MAPS,
    builtin_kinds.SERVICES,
    builtin_kinds.SERVICE_ACCOUNTS,
    builtin_kinds.CORE_EVENTS,
    builtin_kinds.LEASES,
    builtin_kinds.DEPLOYMENTS,
    builtin_kinds.REPLICA_SETS,
    builtin_kinds.DAEMON_SETS,
    builtin_kinds.ROLES,
    builtin_kinds.ROLE_BINDINGS,
)
_CLUSTER_WIDE: tuple[Resource[Any], ...] = (
    builtin_kinds.NODES,
    builtin_kinds.PRIORITY_CLASSES,
    builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS,
    builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS,
    *CUSTOM_KINDS,
)
ALWAYS_LEFT_OUT = (
    "Secrets: they are never read, except the public certificate of the webhook for koord doctor",
    "values of environment variables, tokens, passwords and private keys: replaced by REDACTED",
    "managedFields and the annotation kubectl.kubernetes.io/last-applied-configuration",
    "pods and events of other namespaces",
)


class BundleContent(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, bytes]
    left_out: tuple[str, ...]


class _Files:
    """_Files gathers files up to a size, and notes those that did not fit."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.left_out: list[str] = list(ALWAYS_LEFT_OUT)
        self._room = MAX_BUNDLE_BYTES

    def add(self, name: str, content: bytes) -> None:
        if len(content) > self._room:
            self.left_out.append(f"{name}: {len(content)} bytes do not fit into the archive")
            return
        self._room -= len(content)
        self.files[name] = content

    def add_objects(self, resource: Resource[Any], objects: Iterable[Obj]) -> None:
        found = [redact_object(one) for one in objects]
        if found:
            folder = resource.group or "core"
            self.add(f"objects/{folder}/{resource.version}/{resource.plural}.json", _encode({"items": found}))


async def collect_bundle(client: Client, facts: ClusterFacts, report: DoctorReport, tail_lines: int) -> BundleContent:
    """Collect everything; what cannot be read is named among what was left out."""
    files = _Files()
    files.add("doctor.json", _encode(redact_object(msgspec.to_builtins(report))))
    version = {} if isinstance(facts.version, Unread) else facts.version
    files.add("versions.json", _encode({"koord": build_info()._asdict(), "server": redact_object(version)}))
    for resource in _NAMESPACED:
        await _add_kind(files, client, resource, facts.namespace)
    for resource in _CLUSTER_WIDE:
        await _add_kind(files, client, resource, None)
    for pod in readable(facts.pods):
        await _add_logs(files, client, pod, facts.namespace, tail_lines)
    answers = {node: msgspec.to_builtins(one) for node, one in facts.koordlets.items()}
    files.add("koordlets.json", _encode(redact_object(answers)))
    if facts.koordlets_not_asked:
        files.left_out.append(f"answers of {facts.koordlets_not_asked} koordlets, which were not asked")
    files.add("left-out.txt", "".join(f"{line}\n" for line in files.left_out).encode())
    return BundleContent(files=files.files, left_out=tuple(files.left_out))


async def _add_kind(files: _Files, client: Client, resource: Resource[Any], namespace: str | None) -> None:
    found = await read_list(client, resource, namespace)
    if isinstance(found, Unread):
        files.left_out.append(redact_text(f"{found.resource} {resource.version}: {found.why}"))
    else:
        files.add_objects(resource, found)


async def _add_logs(files: _Files, client: Client, pod: Obj, namespace: str, tail_lines: int) -> None:
    name = name_of(pod)
    restarts = {
        text(one, "name"): number(one, "restartCount") or 0 for one in entries(pod, "status", "containerStatuses")
    }
    for container in (text(one, "name") for one in entries(pod, "spec", "containers")):
        for previous in (False, True) if restarts.get(container) else (False,):
            title = f"logs/{_file_name(name)}/{_file_name(container)}{'.previous' * previous}.log"
            query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(MAX_LOG_BYTES)}
            query |= {"previous": "true"} if previous else {}
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
            try:
                answer = await client.raw(ApiRequest(method="GET", path=path, query=query))
                if not answer.ok:
                    files.left_out.append(redact_text(f"{title}: {error_from_response(answer)}"))
                    continue
                log = answer.body.raw().decode(errors="replace")
            except READ_ERRORS as error:
                files.left_out.append(redact_text(f"{title}: {error}"))
                continue
            files.add(title, redact_text(log).encode())


def _file_name(name: str) -> str:
    """Return the name as one part of a path in the archive."""
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name).lstrip(".") or "_"


def _encode(content: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def build_archive(content: BundleContent, at_s: float) -> bytes:
    """Return the files as tar.gz below one folder, of one time and without an owner."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=at_s) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, body in sorted(content.files.items()):
            entry = tarfile.TarInfo(f"koord-support-bundle/{name}")
            entry.size, entry.mtime, entry.mode = len(body), int(at_s), 0o600
            archive.addfile(entry, io.BytesIO(body))
    return out.getvalue()


TAIL_LINES = 5000


@click.command("support-bundle")
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .tar.gz to write."
)
@click.option(
    "-n", "--namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koord is installed."
)
@click.option("--tail", default=TAIL_LINES, show_default=True, type=click.IntRange(1), help="Lines of each log.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of koordlet's --addr.")
@cluster_access.cluster_options
def support_bundle(output: Path, namespace: str, tail: int, koordlet_port: int, kubeconfig: str, context: str) -> None:
    """Save what a report of a problem needs in an archive: findings of koord doctor, objects of koord's kinds, events,
    leases, logs and versions.

    Secrets are left out; tokens, passwords, private keys and values of environment variables are replaced. Look into
    the archive before you send it: names and addresses of your cluster are in it. Ends with 0 when it was written, 2
    when the cluster could not be asked or the file not written.
    """

    async def main(client: Client, clock: Clock) -> None:
        facts = await gather_facts(client, clock, namespace, checks=CHECK_IDS, port=koordlet_port)
        if wrong := reason_not_to_judge(facts):
            cluster_access.fail(wrong, CANNOT_ASK)
        content = await collect_bundle(client, facts, run_checks(facts), tail)
        archive = build_archive(content, facts.at.timestamp())
        try:
            write_private_file(output, archive)
        except OSError as error:
            cluster_access.fail(f"cannot write {output}: {error.strerror}", CANNOT_ASK)
        click.echo(f"{output}: {len(content.files)} files, {format_bytes(len(archive))}")
        click.echo("Left out:")
        for line in content.left_out:
            click.echo(f"  {line}")

    cluster_access.run_with_client(main, kubeconfig, context, exit_code=CANNOT_ASK)
