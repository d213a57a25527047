"""This module is `koord config check`: it reports what is wrong with configuration files without a cluster."""

from __future__ import annotations

import sys

import click
import msgspec

from koord.cli.config_examination import Report, examine
from koord.manager.configuration.finding import Finding

_SHOWN = 60  # characters of a value


@click.group()
def config() -> None:
    """Look at configuration files."""


@config.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Warnings fail the check as well.")
@click.option("-q", "--quiet", is_flag=True, help="Print problems only.")
def check(files: tuple[str, ...], strict: bool, quiet: bool) -> None:
    """Check configuration files without a cluster.

    Knows the slo-controller-config ConfigMap, KubeSchedulerConfiguration and DeschedulerConfiguration, alone or inside
    a ConfigMap; - reads standard input. Prints one line for each problem, as FILE:LINE. Ends with 0 when all is well,
    1 when something is wrong, 2 when a file cannot be read.
    """
    reports = []
    for file in files:
        try:
            with click.open_file(file, encoding="utf-8") as stream:
                text = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            click.echo(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}", err=True)
            sys.exit(2)
        reports.append(examine(file, text))
    for report in reports:
        _print(report, quiet)
    bad = sum(report.count("error") + (report.count("warning") if strict else 0) for report in reports)
    sys.exit(1 if bad else 0)


def _print(report: Report, quiet: bool) -> None:
    for line, finding in sorted(report.lines, key=lambda entry: entry[0]):
        click.echo(_line(report.file, line, finding))
    wrong, warned = report.count("error"), report.count("warning")
    if quiet:
        return
    if wrong or warned:
        parts = [_counted(wrong, "error")] * bool(wrong) + [_counted(warned, "warning")] * bool(warned)
        click.echo(click.style(f"{report.file}: {', '.join(parts)}", bold=True))
    else:
        click.echo(click.style(f"{report.file}: OK", fg="green", bold=True))
    if not wrong:
        for paragraph in report.checked:
            click.echo(paragraph)


def _line(file: str, line: int, finding: Finding) -> str:
    flaw = finding.flaw
    severity = click.style(finding.severity, fg="red" if finding.severity == "error" else "yellow", bold=True)
    where = ": ".join(part for part in (finding.key, flaw.field) if part)
    shown = ""
    if flaw.value is not None:
        text = msgspec.json.encode(flaw.value).decode()
        shown = f" is {text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'},"
    rule = flaw.rule
    if rule[:1].isupper():  # a sentence of its own, from the decoder
        where, rule = f"{where}:", rule[0].lower() + rule[1:]
    return f"{click.style(f'{file}:{line}', bold=True)}: {severity}: {f'{where}{shown} {rule}'.strip()}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
