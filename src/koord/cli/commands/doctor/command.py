"""This module is `koord doctor`: it gathers facts, runs the checks and prints what they found."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn, Protocol

import click
import msgspec

from koord.api.model import Obj
from koord.cli import cluster_access
from koord.cli.commands.doctor.facts import NOT_READABLE, ClusterFacts, Unread, unread_reason
from koord.cli.commands.doctor.finding import DoctorReport, Finding, Severity
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.node_checks import NODE_CHECKS
from koord.cli.commands.doctor.registry import CHECK_IDS, run_checks
from koord.cli.printing import print_result
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.telemetry.clock import Clock

WIDTH = 80
CANNOT_ASK = 2  # the exit code when there is no answer to judge by
_COLORS: dict[Severity, str] = {
    "error": "red",
    "warning": "yellow",
    "unknown": "magenta",
    "info": "cyan",
    "ok": "green",
}
_INDENT = " " * 9


@click.command()
@click.option(
    "-n", "--namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koord is installed."
)
@click.option(
    "--only", multiple=True, type=click.Choice(CHECK_IDS), help="Only this check; may be given several times."
)
@click.option("--node", default="", help="Only the checks of this node.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of koordlet's --addr.")
@cluster_access.output_option
@cluster_access.cluster_options
def doctor(
    namespace: str, only: tuple[str, ...], node: str, koordlet_port: int, output: str, kubeconfig: str, context: str
) -> None:
    """Check a cluster and its installation of koord, and say what is wrong and how to repair it.

    Changes nothing. Works before an installation too: then it tells whether there is something in the way. What this
    user may not read is told as unknown. Ends with 0 when there is no error, 1 when there are errors, 2 when the
    cluster could not be asked.
    """
    chosen = only or (NODE_CHECKS if node else CHECK_IDS)

    async def main(client: Client, clock: Clock) -> None:
        facts = await gather_facts(client, clock, namespace, checks=chosen, node=node, port=koordlet_port)
        if wrong := reason_not_to_judge(facts):
            cluster_access.fail(wrong, CANNOT_ASK)
        report = run_checks(facts, chosen)
        end_with_report(report, output, report_text(report))

    cluster_access.run_with_client(main, kubeconfig, context, exit_code=CANNOT_ASK)


class CountedReport(Protocol):
    def count(self, severity: Severity) -> int: ...


def end_with_report(report: CountedReport, output: str, text: str) -> NoReturn:
    """Print the report, for people as `text`, and end the command with whether there are errors."""
    if output == "table":
        click.echo(text)
    else:
        print_result(report, output, lambda _: None)
    sys.exit(1 if report.count("error") else 0)


def refused_credentials(version: Obj | Unread) -> str:
    """Return why the server does not know the user, from its answer to the first question; empty when it does."""
    if isinstance(version, Unread) and version.why.startswith("401"):
        return f"the API server does not accept the credentials: {version.why}"
    return ""


def reason_not_to_judge(facts: ClusterFacts) -> str:
    """Return why nothing can be concluded: the server knows no such user, or has no such node."""
    if wrong := refused_credentials(facts.version):
        return wrong
    if facts.node and facts.nodes == ():
        return f"there is no node {facts.node}"
    return ""


def report_text(report: DoctorReport) -> str:
    """Return the report for people, in lines of at most 80 characters."""
    lines = [_wrap(f"koord {report.koord_version}, API server {report.server_version or '?'}", ""), ""]
    for finding in merge_unread(report.findings):
        lines += finding_lines(finding)
    if report.skipped:
        lines.append("")
        groups: dict[str, list[str]] = {}
        for one in report.skipped:
            groups.setdefault(one.why, []).append(one.check)
        lines += [_wrap(f"Not checked: {', '.join(checks)}: {why}.", "") for why, checks in groups.items()]
    counted = ", ".join(f"{report.count(kind)} {kind}" for kind in _COLORS if report.count(kind))
    return "\n".join((*lines, "", counted or "nothing was checked"))


def merge_unread(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with one for each thing that cannot be read, whatever number of checks wants it."""
    wanted: dict[str, list[str]] = {}
    for one in findings:
        if one.id == NOT_READABLE:
            wanted.setdefault(one.what, []).append(one.check)
    merged: dict[str | int, Finding] = {}
    for number, one in enumerate(findings):
        if one.id != NOT_READABLE:
            merged[number] = one
        elif one.what not in merged:
            merged[one.what] = msgspec.structs.replace(one, why=unread_reason(wanted[one.what]))
    return list(merged.values())


def finding_lines(finding: Finding) -> list[str]:
    head = click.style(f"{finding.severity.upper():<8}", fg=_COLORS[finding.severity], bold=True)
    name = finding.check if finding.severity == "ok" else finding.id
    first = _wrap(f"{name}: {finding.what}", _INDENT).removeprefix(_INDENT)
    lines = [f"{head} {first}"]
    if finding.severity != "ok":
        lines += [_wrap(finding.why, _INDENT)] if finding.why else []
        # A command stays on one line, so that it can be copied.
        lines += [f"{_INDENT}$ {finding.fix}"] if finding.fix else []
    return lines


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=True
    )
