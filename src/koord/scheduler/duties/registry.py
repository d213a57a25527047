"""Which plugins bring duties with them."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.duties.duty import Hiring

DUTIES: Mapping[str, Hiring] = {}  # by the name of the plugin
