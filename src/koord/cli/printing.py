"""This module prints what a command found: JSON and YAML as they are, tables through rich, part of the extra
`cli`. Amounts and durations in tables are short; exact numbers are for -o json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec
import yaml

from koord.api.koordinator.resource_name import BATCH_CPU, CPU, MID_CPU
from koord.cli.cluster_access import fail
from koord.cli.table_layout import TableColumn

if TYPE_CHECKING:
    from rich.console import Console

    from koord.cli.terminal import PlainTable


PIPE_WIDTH = 1 << 16  # characters, for files and pipes: a row is one line there


def print_result(found: Any, output: str, table: Callable[[Console], None]) -> None:
    """Print `found` as JSON or YAML, or call `table` to print it for people."""
    if output == "table":
        table(make_console())
        return
    plain = msgspec.to_builtins(found)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


def make_console() -> Console:
    try:
        from koord.cli.terminal import TerminalConsole
    except ModuleNotFoundError as missing:
        if missing.name != "rich":
            raise
        fail("tables need the package rich (pip install rich); -o json and -o yaml work without it")
    # Words about amounts are not to be coloured by guesses, and names like [system] are no markup.
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return TerminalConsole(highlight=False, markup=False, emoji=False, width=width)


def plain_table(*columns: str, keys: int = 1) -> PlainTable:
    """Make a table with columns by title, without lines: as kubectl prints. A title after ">" stands on the right, and
    "PROD|ROOM" is the column PROD ROOM of the group PROD. The first `keys` columns begin every block of a table that is
    too wide for one.
    """
    from koord.cli.terminal import PlainTable

    return PlainTable([_column(title) for title in columns], keys)


def _column(title: str) -> TableColumn:
    group, bar, _ = title.removeprefix(">").partition("|")
    words = title.removeprefix(">").replace("|", " ")
    return TableColumn(title=words, right=title.startswith(">"), group=group if bar else "")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 replica, 2 replicas."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi")
_CPU_RESOURCES = (CPU, BATCH_CPU, MID_CPU)


def format_amount(resource: str, units: int | None) -> str:
    """Format an amount of a resource that counts milli-cores or bytes."""
    if units is None:
        return "-"
    return f"{units}m" if resource in _CPU_RESOURCES else format_bytes(units)


def format_bytes(size_bytes: int) -> str:
    """Format bytes with one decimal in the largest unit that leaves a whole part."""
    if abs(size_bytes) < 1024:
        return str(size_bytes)
    power = min((abs(size_bytes).bit_length() - 1) // 10, len(_BINARY_UNITS))
    return f"{size_bytes / 1024**power:.1f}{_BINARY_UNITS[power - 1]}"


def format_duration(seconds: float) -> str:
    """Format the two largest units: 14m48s, 3h2m, 5d1h."""
    left = abs(int(seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def format_age(reported: datetime | None, at: datetime) -> str:
    return "never" if reported is None else f"{format_duration((at - reported).total_seconds())} ago"


def short_resource_name(resource: str) -> str:
    return resource.removeprefix("kubernetes.io/")
