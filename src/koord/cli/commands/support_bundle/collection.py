"""This module collects the files of a support bundle, and what was left out and why."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from typing import Any

import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.resource import Resource
from koord.cli.commands.doctor.facts import ClusterFacts, Obj, Unread, readable
from koord.cli.commands.doctor.finding import DoctorReport
from koord.cli.commands.doctor.reading import READ_ERRORS, read_list
from koord.cli.commands.doctor.unstructured import entries, name_of, number, text
from koord.cli.commands.support_bundle.redaction import redact_object, redact_text
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import error_from_response
from koord.kube.transport.interface import ApiRequest
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
