"""This module prints what a command found: JSON and YAML as they are, tables through rich, part of the extra
`cli`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec
import yaml

from koord.cli.cluster_access import fail

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 200  # for files and pipes: a row is never cut


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
        from rich.console import Console
    except ImportError:
        fail("tables need the package rich (pip install 'koord[cli]'); -o json and -o yaml work without it")
    # Words about amounts are not to be coloured by guesses, and names like [system] are no markup.
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def plain_table(*columns: tuple[str, str]) -> Table:
    """Make a table with columns by title and side ("left", "right"), without lines: as kubectl prints."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in columns:
        table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold")
    return table
