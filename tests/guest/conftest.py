"""Tests that run inside of a guest are left alone on this machine: `test_guest` boots a guest and runs them there."""

from __future__ import annotations

import os

from tests.guest.in_guest import MARK

collect_ignore = [] if MARK in os.environ else ["inside"]
