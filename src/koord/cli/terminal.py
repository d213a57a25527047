"""This module prints to a terminal through rich: tables that fit it, and sentences that are wrapped at spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from koord.cli.table_layout import TableColumn, lay_out_table, wrap_text


class PlainTable:
    """PlainTable is a table without lines, laid out for the width of the console that prints it."""

    def __init__(self, columns: Sequence[TableColumn], keys: int = 1) -> None:
        self._columns = columns
        self._keys = keys
        self._rows: list[tuple[str, ...]] = []
        self._styles: list[str] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a row; cells that are not given are empty."""
        assert len(cells) <= len(self._columns), f"{len(cells)} cells for {len(self._columns)} columns"
        self._rows.append((*cells, *("" for _ in self._columns[len(cells) :])))
        self._styles.append(style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in lay_out_table(self._columns, self._rows, options.max_width, self._keys):
            style = "bold" if line.is_title else self._styles[line.row] if line.row is not None else ""
            yield Text(line.text, style=style, no_wrap=True, overflow="ignore")


class TerminalConsole(Console):
    """TerminalConsole wraps what is given as a string at spaces, keeps its indentation and leaves no trailing space."""

    def print(self, *objects: Any, **options: Any) -> None:
        shown = [self._wrapped(each) if isinstance(each, str) else each for each in objects]
        super().print(*shown, **options)

    def _wrapped(self, text: str) -> Text:
        lines = [part for line in text.split("\n") for part in wrap_text(line, self.width)]
        return Text("\n".join(lines), no_wrap=True, overflow="ignore")
