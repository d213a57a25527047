"""Log lines follow klog's two formats, and -v and --vmodule set the levels."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from koord.telemetry.logs import Logs


@contextmanager
def logging_to(**settings: object) -> Iterator[tuple[Logs, io.StringIO]]:
    stream = io.StringIO()
    logs = Logs(stream=stream, **settings)  # type: ignore[arg-type]
    logs.start()
    try:
        yield logs, stream
    finally:
        logs.stop()


def test_text_lines_are_those_of_klog() -> None:
    with logging_to() as (_, stream):
        logging.getLogger("koord.kube").info("took %d", 3)
        logging.getLogger("koord.kube").warning("hm")
        logging.getLogger("koord.kube").error("no")
    lines = stream.getvalue().splitlines()
    assert [line[0] for line in lines] == ["I", "W", "E"]
    pattern = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_logs\.py:\d+\] took 3"
    assert re.fullmatch(pattern, lines[0])


def test_json_lines_hold_the_error() -> None:
    with logging_to(format="json") as (_, stream):
        logging.getLogger("koord.kube").info("fine")
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("koord.kube").exception("failed")
    fine, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (fine["msg"], fine["v"]) == ("fine", 0)
    assert fine["caller"].startswith("telemetry/test_logs.py:")
    assert (failed["msg"], failed["err"]) == ("failed", "why")
    assert "v" not in failed


@pytest.mark.parametrize(
    ("verbosity", "modules", "shown"),
    [
        pytest.param(0, {}, [], id="quiet"),
        pytest.param(4, {}, [], id="as-the-charts-run"),
        pytest.param(5, {}, ["koord.kube.client.list_watch", "koord.scheduler"], id="debug"),
        pytest.param(0, {"koord.kube.*": 6}, ["koord.kube.client.list_watch"], id="one-module"),
        pytest.param(0, {"test_logs*": 6}, ["koord.kube.client.list_watch", "koord.scheduler"], id="by-file"),
        pytest.param(5, {"koord.kube.*": 0}, ["koord.scheduler"], id="one-module-quieter"),
    ],
)
def test_debug_lines_show_where_asked_for(verbosity: int, modules: dict[str, int], shown: list[str]) -> None:
    with logging_to(verbosity=verbosity, modules=modules) as (_, stream):
        for name in ("koord.kube.client.list_watch", "koord.scheduler", "aiohttp.client"):
            logging.getLogger(name).debug("%s", name)
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == shown


def test_verbosity_changes_at_run_time_and_ends_with_the_log() -> None:
    before = logging.getLogger("koord").level
    with logging_to() as (logs, stream):
        logs.set_verbosity(10)
        logging.getLogger("aiohttp.client").debug("loud")
        logs.set_verbosity(0)
        logging.getLogger("koord.kube").debug("silent")
    assert "loud" in stream.getvalue()
    assert "silent" not in stream.getvalue()
    assert logging.getLogger("koord").level == before
