"""This module sets Hypothesis for all tests: no deadline, so that a property may take its time on a busy
machine.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("koord", deadline=None)
settings.load_profile("koord")
