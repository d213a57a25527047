"""This module is `koord support-bundle`: it collects the findings of koord doctor, objects and logs, removes what must
not leave a cluster (tokens, passwords, private keys, values of environment variables), and saves them in an archive
with what was left out and why.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.resource import Resource
from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor.command import CANNOT_ASK, reason_not_to_judge
from koord.cli.commands.doctor.facts import (
    READ_ERRORS,
    ClusterFacts,
    Unread,
    entries,
    name_of,
    number,
    read_list,
    readable,
    text,
)
from koord.cli.commands.doctor.finding import DoctorReport
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.registry import CHECK_IDS, run_checks
from koord.cli.printing import format_bytes
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.certificates import write_private_file
from koord.telemetry.clock import Clock
from koord.version import build_info

REDACTED = "REDACTED"

# Copies of whole objects as text, with everything that is removed elsewhere.
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
_MAX_DEPTH = 100  # deeper values are replaced as a whole

_WORD = r"(?:token|password|passwd|secret|credential|api[-_]?key|access[-_]?key|private[-_]?key|authorization|bearer)"
_SECRET_NAME = re.compile(rf"{_WORD}s?$|[-_.](?:key|pem)$|^(?:key|tls\.key)$", re.IGNORECASE)
# Repetitions have a limit, or start at a mark that is rare: a log may hold one word of many megabytes.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_JSON_WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?")
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,20})[\w.~+/=-]{6,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,500}(@)")
# A name that ends like a secret's, then = or :, then the value: flags, assignments, YAML, JSON, query strings, and JSON
# inside of a quoted text.
_ASSIGNMENT = re.compile(
    rf"""({_WORD}s?(?:\\{{0,8}}["'])?\s{{0,20}}[=:]\s{{0,20}})"""
    r"""(\\{1,8}["'][^"'\\]*(?:\\{1,8}["'])?|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&,;}\]]+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"""(?<![\w-])(--[\w-]{{0,60}}?{_WORD}s?\s{{1,20}})([^\s-]\S*)""", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return the text with secrets replaced. Redacting again changes nothing."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _JSON_WEB_TOKEN.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _URL_PASSWORD.sub(rf"\1{REDACTED}\2", text)
    text = _ASSIGNMENT.sub(_replace_value, text)
    return _FLAG.sub(rf"\1{REDACTED}", text)


def _replace_value(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    quote = value[0] if value[0] in "\"'" else ""
    # Authorization names the scheme first; the value that follows it is replaced as a bearer's.
    if value.lower() in ("bearer", "basic"):
        return found[0]
    return f"{name}{quote}{REDACTED}{quote}"


def redact_object(obj: Any) -> Any:
    """Return a copy of an object as of JSON without secrets, with the same fields."""
    return _redact(obj, depth=0)


def _redact(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {
            redact_text(str(key)): _redact_field(str(key), inner, depth + 1)
            for key, inner in value.items()
            if key not in _DROPPED_ANNOTATIONS and key != "managedFields"
        }
    if isinstance(value, list | tuple):
        return _redact_list(list(value), depth)
    return _redact_string(value, depth) if isinstance(value, str) else value


def _redact_list(values: list[Any], depth: int) -> list[Any]:
    """Redact a list; a flag whose value is the next item of a command line hides that."""
    made, hides = [], False
    for one in values:
        if hides and isinstance(one, str) and not one.startswith("-"):
            made.append(REDACTED)
            hides = False
            continue
        hides = isinstance(one, str) and one.startswith("-") and "=" not in one and _is_secret_name(one)
        made.append(_redact(one, depth + 1))
    return made


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if name == "env" and isinstance(value, list):
        return [_redact_variable(one, depth) for one in value]
    if name in ("stringData", "binaryData"):
        return {redact_text(str(key)): REDACTED for key in value} if isinstance(value, dict) else REDACTED
    if _is_secret_name(name) and isinstance(value, str | int | float) and not isinstance(value, bool) and value:
        return REDACTED
    return _redact(value, depth)


def _redact_variable(variable: Any, depth: int) -> Any:
    """Redact the value of an environment variable, whatever its name says; where it comes from stays."""
    if not isinstance(variable, dict):
        return REDACTED
    return {
        redact_text(str(key)): REDACTED if key == "value" else _redact(inner, depth + 1)
        for key, inner in variable.items()
        if key != "managedFields"
    }


def _redact_string(text: str, depth: int) -> str:
    """Redact a text; one that holds JSON as JSON, so that fields count as fields."""
    if text[:1] in ("{", "[") and depth < _MAX_DEPTH // 2:
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return redact_text(text)
        return redact_text(msgspec.json.encode(_redact(inner, depth + 1)).decode())
    return redact_text(text)


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


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
