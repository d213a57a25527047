"""These tests print every recorded row of a real server again; `record_rows` made the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.rest.conversion import TablePrinter
from koord.embedded.apiserver.server import builtin_catalog
from koord.telemetry.clock import ManualClock

Obj = dict[str, Any]
ROWS: list[Obj] = json.loads(gzip.decompress(Path(__file__).with_name("rows.json.gz").read_bytes()))
CATALOG = builtin_catalog()


def _id(row: Obj) -> str:
    place = row["path"].removeprefix("/apis/").removeprefix("/api/").replace("/", "-")
    return f"{place}-{row['object']['metadata']['name']}"


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_row(row: Obj) -> None:
    root, *middle, version, plural = str(row["path"]).strip("/").split("/")
    resource = CATALOG.find("" if root == "api" else middle[0], version, plural)
    assert resource is not None
    printer = TablePrinter(ManualClock(row["at"]))
    assert [[c["name"], c["type"], c["format"], c["priority"]] for c in printer.columns(resource)] == row["columns"]
    assert list(printer.row(resource, row["object"])) == row["cells"]
