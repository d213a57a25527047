"""This module lays out a table of text for a terminal of a given width: as kubectl prints, never a cut or broken name.

A table that is too wide wraps its titles and sentences at spaces. If that is not enough, a last column of sentences
goes below its row; then the columns go into blocks, one below the other, each of which begins with the key columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import msgspec

GAP = 2  # spaces between two columns
READABLE = (28, 16)  # characters: columns of sentences are made no narrower than this, and then than that
NARROWEST = 10  # characters: the least that a column keeps where not even a block fits
BELOW_INDENT = "    "


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """TableColumn describes one column. Columns of one `group` that follow each other stay in one block."""

    title: str
    right: bool = False
    group: str = ""


class TableLine(msgspec.Struct, frozen=True, kw_only=True):
    """TableLine is one line of output; `row` is the index of its row, None in titles and between blocks."""

    text: str
    row: int | None = None
    is_title: bool = False


def lay_out_table(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int, keys: int = 1
) -> list[TableLine]:
    """Return the lines of a table that is at most `width` wide; a column without title and text is left out."""
    shown = [at for at, column in enumerate(columns) if column.title or any(row[at] for row in rows)]
    layout, below = _choose_layout(columns, rows, width, shown, keys)
    lines: list[TableLine] = []
    for block, widths in layout:
        if lines:
            lines.append(TableLine(text=""))
        lines += _block_lines(columns, rows, block, widths, below, width)
    return lines


_Layout = list[tuple[list[int], list[int]]]  # blocks: columns, and their widths


def _choose_layout(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int, shown: list[int], keys: int
) -> tuple[_Layout, int | None]:
    """Return the blocks and the column, if any, whose cells stand below their rows."""
    last = shown[-1]
    sentences = len(shown) > keys + 1 and not columns[last].right and any(" " in row[last] for row in rows)
    tries: list[tuple[list[int], int | None]] = [(shown, None)]
    if sentences:
        tries.append((shown[:-1], last))
    for readable in READABLE:
        for beside, below in tries:
            narrow = {at: _narrow(columns, rows, at, readable) for at in beside}
            if _total(list(narrow.values())) <= width:
                return [(beside, _widths(columns, rows, narrow, width))], below
    narrow = {at: _narrow(columns, rows, at, READABLE[0]) for at in shown}
    blocks = _blocks(columns, narrow, width, keys)
    return [(block, _widths(columns, rows, {at: narrow[at] for at in block}, width)) for block in blocks], None


def _natural(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], at: int) -> int:
    return max(len(columns[at].title), *(len(row[at]) for row in rows)) if rows else len(columns[at].title)


def _narrow(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], at: int, readable: int) -> int:
    """Return how narrow a column can be without a broken word, and sentences no narrower than `readable`."""
    cells = [row[at] for row in rows]
    title = max((len(word) for word in columns[at].title.split()), default=0)
    if columns[at].right:
        return max(title, *(len(cell) for cell in cells)) if cells else title
    word = max((len(word) for cell in cells for word in cell.split()), default=0)
    longest = max((len(cell) for cell in cells), default=0)
    return max(title, word, min(longest, readable))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(len(widths) - 1, 0)


def _widths(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], narrow: Mapping[int, int], width: int
) -> list[int]:
    """Return the widths of a block's columns: as wide as its text where there is room, the longest text first."""
    natural = [_natural(columns, rows, at) for at in narrow]
    found = list(narrow.values())
    left = width - _total(found)
    for place in sorted(range(len(found)), key=lambda place: found[place] - natural[place]):
        lacking = natural[place] - found[place]
        more = min(lacking, left) if lacking <= left or not columns[list(narrow)[place]].right else 0
        more = max(more, 0)
        found[place] += more
        left -= more
    if left < 0:  # a block of one column beside the keys: a word is folded rather than the line
        found[-1] = max(found[-1] + left, min(found[-1], NARROWEST))
    return found


def _blocks(columns: Sequence[TableColumn], narrow: Mapping[int, int], width: int, keys: int) -> list[list[int]]:
    key, others = list(narrow)[:keys], list(narrow)[keys:]
    blocks: list[list[int]] = []
    for part in _parts(columns, others):
        together = [*(blocks[-1] if blocks else key), *part]
        if _total([narrow[at] for at in together]) <= width:
            blocks[-1:] = [together]
        elif _total([narrow[at] for at in [*key, *part]]) <= width:
            blocks.append([*key, *part])
        else:
            blocks += [[*key, at] for at in part]
    return blocks or [key]


def _parts(columns: Sequence[TableColumn], among: list[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    for at in among:
        group = columns[at].group
        if group and parts and columns[parts[-1][0]].group == group:
            parts[-1].append(at)
        else:
            parts.append([at])
    return parts


def _block_lines(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    block: Sequence[int],
    widths: Sequence[int],
    below: int | None,
    width: int,
) -> list[TableLine]:
    right = [columns[at].right for at in block]
    titles = _row_lines([columns[at].title for at in block], widths, right, bottom=True)
    lines = [TableLine(text=text, is_title=True) for text in titles]
    for number, row in enumerate(rows):
        texts = _row_lines([row[at] for at in block], widths, right)
        if below is not None and row[below] not in ("", "-"):
            title = f"{columns[below].title}: " if columns[below].title else ""
            texts += wrap_text(f"{BELOW_INDENT}{title}{row[below]}", width)
        lines += [TableLine(text=text, row=number) for text in texts]
    return lines


def _row_lines(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, bottom: bool = False
) -> list[str]:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    padded = [
        [""] * (height - len(lines)) + lines if bottom else lines + [""] * (height - len(lines)) for lines in wrapped
    ]
    gap = " " * GAP
    return [
        gap.join(
            lines[at].rjust(width) if on_right else lines[at].ljust(width)
            for lines, width, on_right in zip(padded, widths, right, strict=True)
        ).rstrip()
        for at in range(height)
    ]


def _wrap(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else wrap_text(cell, width)


def wrap_text(line: str, width: int) -> list[str]:
    """Wrap one line at spaces; what follows an indented line is indented by two more."""
    if len(line) <= width:
        return [line.rstrip()]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.lstrip(),
        width=max(width, len(indent) + 3),
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if indent else "",
        break_on_hyphens=False,
    ) or [""]
