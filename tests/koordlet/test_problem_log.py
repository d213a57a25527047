"""A problem is logged when it begins, changes its kind or ends, and not each time it is seen."""

from __future__ import annotations

import logging

import pytest

from koord.koordlet.problem_log import ProblemLog

_LOG = logging.getLogger("koord.test")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="koord.test")


def test_a_problem_that_stays_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ProblemLog(_LOG, "the disk is not known", "the disk is known again")
    log.works()
    for why in ("EIO of sda", "EIO of sdb"):
        log.fails(why)
    assert log.problem == "EIO of sdb"
    log.works()
    assert log.problem == ""
    assert caplog.messages == ["the disk is not known: EIO of sda", "the disk is known again"]


def test_another_kind_of_problem_is_news(caplog: pytest.LogCaptureFixture) -> None:
    log = ProblemLog(_LOG, "it cannot be written")
    for why, kind in (("no room", "ENOSPC"), ("no room at all", "ENOSPC"), ("not allowed", "EACCES")):
        log.fails(why, kind)
    log.works()
    assert caplog.messages == ["it cannot be written: no room", "it cannot be written: not allowed"]


def test_the_first_success_is_news_where_nothing_is_known_before(caplog: pytest.LogCaptureFixture) -> None:
    log = ProblemLog(_LOG, "it is not kept", "it is kept", begins_unknown=True)
    log.works()
    log.works()
    assert caplog.messages == ["it is kept"]
