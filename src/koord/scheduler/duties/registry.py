"""Which plugins bring duties with them."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.duties.duty import Hiring
from koord.scheduler.duties.elastic_quota import quota_duties

DUTIES: Mapping[str, Hiring] = {"ElasticQuota": quota_duties}  # by the name of the plugin
