"""Tables of the command line fit the terminal: nothing is cut, no name is broken, no line ends in spaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cli.table_layout import TableColumn, lay_out_table

TIERS = [
    TableColumn(title=f"{tier} {word}", right=True, group=tier) for tier in ("PROD", "MID") for word in ("REQ", "USED")
]
COLUMNS = [TableColumn(title="NODE"), TableColumn(title="CAPACITY", right=True), *TIERS]
ROWS = [("general-0", "16000m", "1000m", "500m", "0m", "0m"), ("general-10", "128000m", "13000m", "6500m", "0m", "0m")]


def texts(columns: Sequence[TableColumn], rows: Sequence[tuple[str, ...]], width: int, keys: int = 1) -> list[str]:
    return [line.text for line in lay_out_table(columns, rows, width, keys)]


def test_a_table_that_fits_is_one_line_a_row() -> None:
    assert texts(COLUMNS, ROWS, 80) == [
        "NODE        CAPACITY  PROD REQ  PROD USED  MID REQ  MID USED",
        "general-0     16000m     1000m       500m       0m        0m",
        "general-10   128000m    13000m      6500m       0m        0m",
    ]


def test_titles_are_wrapped_first() -> None:
    assert texts(COLUMNS, ROWS, 50) == [
        "                        PROD             MID   MID",
        "NODE        CAPACITY     REQ  PROD USED  REQ  USED",
        "general-0     16000m   1000m       500m   0m    0m",
        "general-10   128000m  13000m      6500m   0m    0m",
    ]


def test_what_is_still_too_wide_goes_into_blocks_that_begin_with_the_key_and_keep_groups_whole() -> None:
    assert texts(COLUMNS, ROWS, 38) == [
        "                                 PROD",
        "NODE        CAPACITY  PROD REQ   USED",
        "general-0     16000m     1000m   500m",
        "general-10   128000m    13000m  6500m",
        "",
        "NODE        MID REQ  MID USED",
        "general-0        0m        0m",
        "general-10       0m        0m",
    ]


def test_sentences_go_below_their_row_before_columns_are_parted() -> None:
    columns = [TableColumn(title="POD"), TableColumn(title="NODE"), TableColumn(title="WHY")]
    rows = [("default/a-long-name-of-a-pod", "node-1", "0/6 nodes are available"), ("default/b", "node-2", "-")]
    assert texts(columns, rows, 46) == [
        "POD                           NODE",
        "default/a-long-name-of-a-pod  node-1",
        "    WHY: 0/6 nodes are available",
        "default/b                     node-2",
    ]


def test_a_column_without_title_and_text_is_left_out() -> None:
    columns = [TableColumn(title="NAME"), TableColumn(title="")]
    assert texts(columns, [("a", ""), ("b", "")], 80) == ["NAME", "a", "b"]


WORD = st.text(alphabet="abcdefgh-./", min_size=1, max_size=20)
CELL = st.one_of(WORD, st.lists(WORD, min_size=1, max_size=8).map(" ".join))


@given(
    rows=st.lists(st.tuples(WORD, CELL, CELL, CELL), min_size=1, max_size=4),
    right=st.tuples(st.booleans(), st.booleans()),
    width=st.integers(60, 120),
)
def test_every_word_is_printed_whole_and_no_line_is_too_wide(
    rows: list[tuple[str, ...]], right: tuple[bool, bool], width: int
) -> None:
    columns = [
        TableColumn(title="KEY"),
        TableColumn(title="A COUNT", right=right[0]),
        TableColumn(title="SOME TEXT", right=False),
        TableColumn(title="WHY", right=right[1]),
    ]
    rows = [
        tuple(cell.split()[0] if one.right else cell for one, cell in zip(columns, row, strict=True)) for row in rows
    ]
    lines = texts(columns, rows, width)
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    printed = " ".join(lines).split()
    for row in rows:
        for word in " ".join(row).split():
            assert word in printed


@pytest.mark.parametrize("width", [1, 5, 20])
def test_a_terminal_that_is_much_too_narrow_gets_every_row(width: int) -> None:
    lines = texts(COLUMNS, ROWS, width)
    assert sum(line.startswith("general-0") for line in lines) >= 1
