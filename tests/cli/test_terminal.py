"""What commands print for people: whole rows in pipes, wrapped lines without trailing spaces on terminals."""

from __future__ import annotations

import io

from koord.cli.printing import counted, make_console, plain_table
from koord.cli.terminal import TerminalConsole


def printed(width: int, *parts: object) -> str:
    out = io.StringIO()
    console = TerminalConsole(file=out, width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    return out.getvalue()


def test_a_sentence_is_wrapped_with_its_indentation_and_without_trailing_spaces() -> None:
    text = printed(30, "  why  0/6 nodes are available: [6 Insufficient cpu]")
    assert text == "  why  0/6 nodes are\n    available: [6 Insufficient\n    cpu]\n"


def test_a_row_is_one_line_where_the_output_is_no_terminal() -> None:
    table = plain_table("POD", "WHY")
    table.add_row("default/a", "word " * 100 + "end")
    console = make_console()
    with console.capture() as capture:
        console.print(table)
    assert [line.split()[-1] for line in capture.get().splitlines()] == ["WHY", "end"]


def test_a_group_is_part_of_its_title() -> None:
    table = plain_table("NODE", ">PROD|ROOM")
    table.add_row("node-1", "16000m", style="bold")
    assert printed(80, table) == "NODE    PROD ROOM\nnode-1     16000m\n"


def test_a_count_of_one_has_a_singular() -> None:
    assert (counted(1, "attempt"), counted(2, "attempt"), counted(0, "replica")) == (
        "1 attempt",
        "2 attempts",
        "0 replicas",
    )
