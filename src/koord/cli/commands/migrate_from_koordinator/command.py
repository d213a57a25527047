"""This module is `koord migrate-from-koordinator`: it gathers facts, prints the report and writes the values."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from koord import __version__
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.resource import Resource
from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor.command import CANNOT_ASK, WIDTH, end_with_report, finding_lines, refused_credentials
from koord.cli.commands.doctor.facts import Objects, read_list, read_path
from koord.cli.commands.doctor.finding import printable
from koord.cli.commands.doctor.installation import program_workloads
from koord.cli.commands.migrate_from_koordinator.facts import KoordinatorFacts
from koord.cli.commands.migrate_from_koordinator.program_arguments import Argument, Verdict
from koord.cli.commands.migrate_from_koordinator.report import (
    VALUES_FILE,
    MoveReport,
    MoveStep,
    ProgramMove,
    make_report,
)
from koord.kube.client.typed_client import Client
from koord.telemetry.clock import Clock

_COUNTED: dict[Verdict, str] = {"works": "work", "no effect": "without effect", "refused": "refused"}

_NAMESPACED: dict[str, Resource[Any]] = {
    "deployments": builtin_kinds.DEPLOYMENTS,
    "daemon_sets": builtin_kinds.DAEMON_SETS,
    "config_maps": builtin_kinds.CONFIG_MAPS,
    "services": builtin_kinds.SERVICES,
    "service_accounts": builtin_kinds.SERVICE_ACCOUNTS,
    "leases": builtin_kinds.LEASES,
    "roles": builtin_kinds.ROLES,
    "role_bindings": builtin_kinds.ROLE_BINDINGS,
}
_CLUSTER_WIDE: dict[str, Resource[Any]] = {
    "cluster_roles": builtin_kinds.CLUSTER_ROLES,
    "cluster_role_bindings": builtin_kinds.CLUSTER_ROLE_BINDINGS,
    "priority_classes": builtin_kinds.PRIORITY_CLASSES,
    "mutating_webhooks": builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS,
    "validating_webhooks": builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS,
    "crds": builtin_kinds.CUSTOM_RESOURCE_DEFINITIONS,
    "all_deployments": builtin_kinds.DEPLOYMENTS,
    "all_daemon_sets": builtin_kinds.DAEMON_SETS,
}


async def gather_facts(client: Client, namespace: str = "") -> KoordinatorFacts:
    """Read all lists; without a namespace, of the one that Koordinator is installed in. Raise Unreachable where the API
    server does not answer at all.
    """
    version = await read_path(client, "/version")
    everywhere = await _read(client, _CLUSTER_WIDE, None)
    place = namespace or _namespace_of_programs(everywhere["all_deployments"], everywhere["all_daemon_sets"])
    lists: dict[str, Any] = {**everywhere, **await _read(client, _NAMESPACED, place)}
    return KoordinatorFacts(namespace=place, version=version, **lists)


def _namespace_of_programs(deployments: Objects, daemon_sets: Objects) -> str:
    found = [one.namespace for one in program_workloads(deployments, daemon_sets) if one.is_upstream]
    return cluster_access.NAMESPACE if cluster_access.NAMESPACE in found or not found else sorted(found)[0]


async def _read(client: Client, kinds: dict[str, Resource[Any]], namespace: str | None) -> dict[str, Objects]:
    found = await asyncio.gather(*(read_list(client, kind, namespace) for kind in kinds.values()))
    return dict(zip(kinds, found, strict=True))


@click.command("migrate-from-koordinator")
@click.option("--dry-run", is_flag=True, help="Report, and change nothing. Without it the command says what to run.")
@click.option("-n", "--namespace", default="", help="Where Koordinator is installed. [default: where it is found]")
@click.option(
    "--values-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the values for koord's chart to this file.",
)
@cluster_access.output_option
@cluster_access.cluster_options
def migrate_from_koordinator(
    dry_run: bool, namespace: str, values_file: Path | None, output: str, kubeconfig: str, context: str
) -> None:
    """Tell what of Koordinator is installed, what changes with koord and what is not supported, and print the commands
    of the move and of the way back.

    Reads, and changes nothing: the move itself is an upgrade of the Helm release, which Helm can roll back. Ends with 0
    when nothing stands in the way, 1 when something does, 2 when the cluster could not be asked or without --dry-run.
    """

    async def main(client: Client, clock: Clock) -> None:
        facts = await gather_facts(client, namespace)
        if wrong := refused_credentials(facts.version):
            cluster_access.fail(wrong, CANNOT_ASK)
        report = make_report(facts, __version__, str(values_file or VALUES_FILE))
        if not dry_run:
            cluster_access.fail(refusal(report), CANNOT_ASK)
        if values_file is not None:
            _write_values(values_file, report.values)
        end_with_report(report, output, report_text(report))

    cluster_access.run_with_client(main, kubeconfig, context, exit_code=CANNOT_ASK)


def _write_values(path: Path, values: Obj) -> None:
    try:
        path.write_text(values_text(values))
    except OSError as error:
        cluster_access.fail(f"cannot write {path}: {error.strerror}", CANNOT_ASK)


def refusal(report: MoveReport) -> str:
    """Return what to run instead. Whoever forgets --dry-run gets no change of a cluster, but the command for it."""
    (upgrade,) = (one.command for one in report.move if one.command.startswith("helm "))
    wrong = report.count("error")
    first = f"; {wrong} finding{'s' * (wrong > 1)} of --dry-run must be settled first" if wrong else ""
    return f"this command changes nothing: the move is `{upgrade}`{first}. Run it with --dry-run for the report."


def values_text(values: Obj) -> str:
    """Return the file of values with what a reader must know of it."""
    head = (
        "# Values of this installation of Koordinator that differ from the defaults of its chart 1.8.\n"
        "# Documents of slo-controller-config are not among them: the chart keeps those that the cluster has.\n"
    )
    return head + (yaml.dump(values, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True) if values else "{}\n")


def report_text(report: MoveReport) -> str:
    """Return the report for people, in lines of at most 100 characters but for commands."""
    server = report.server_version or "?"
    lines = [_wrap(f"koord {report.koord_version}, API server {server}, namespace {report.namespace}"), ""]
    lines += _installed_lines(report)
    for finding in report.findings:
        lines += finding_lines(finding)
    lines += ["", _wrap(_values_line(report)), "", "The move:", *_step_lines(report.move), ""]
    lines += ["The way back:", *_step_lines(report.back), ""]
    counted = ", ".join(
        f"{report.count(kind)} {kind}" for kind in ("error", "warning", "unknown", "info") if report.count(kind)
    )
    verdict = "Nothing stands in the way."
    if report.count("unknown"):
        verdict = "What could not be read may stand in the way: run it with more rights."
    if report.count("error"):
        verdict = "Errors stand in the way of the move."
    return "\n".join((*lines, f"{counted}. {verdict}" if counted else verdict))


def _installed_lines(report: MoveReport) -> list[str]:
    if not report.programs:
        return []
    release = report.release
    how = f"Helm release {release.namespace}/{release.name}" if release else "not by Helm"
    lines = [_wrap(f"Koordinator is installed ({printable(how)}):")]
    for one in report.programs:
        lines.append(_wrap(f"{one.workload}: {', '.join(one.images)} becomes {report.image}", "  "))
        lines += [_wrap(line, "    ") for line in _argument_lines(one)]
    known = [one for one in report.definitions if one.known]
    replaced = sum(one.outcome == "replaced" for one in report.objects)
    lines.append(
        _wrap(
            f"{len(known)} CustomResourceDefinitions are upgraded and keep their objects, {replaced} other objects are "
            f"replaced under the same names.",
            "  ",
        )
    )
    return [*lines, ""]


def _argument_lines(program: ProgramMove) -> Iterator[str]:
    for title, arguments in (("flags", program.flags), ("feature gates", program.gates)):
        counted = [f"{number} {words}" for verdict, words in _COUNTED.items() if (number := _count(arguments, verdict))]
        yield from [f"{title}: {', '.join(counted)}"] if counted else []


def _count(arguments: tuple[Argument, ...], verdict: Verdict) -> int:
    return sum(one.verdict == verdict for one in arguments)


def _values_line(report: MoveReport) -> str:
    if not report.values:
        return "Values that must be carried over: none."
    return f"Values that must be carried over (--values-file writes them): {', '.join(report.values)}."


def _step_lines(steps: tuple[MoveStep, ...]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        yield _wrap(f"{number}. {step.title}.", "  ")
        yield from [f"     $ {step.command}"] if step.command else []


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        printable(text), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


class _BlockDumper(yaml.SafeDumper):
    """_BlockDumper writes texts of several lines in block style, so that a configuration can be read."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _represent_text)
