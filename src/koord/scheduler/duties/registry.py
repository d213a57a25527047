"""List the controller factories by the name of their plugin."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.duties.device_herald import device_duties
from koord.scheduler.duties.duty import Hiring
from koord.scheduler.duties.elastic_quota import quota_duties
from koord.scheduler.duties.pod_group import gang_duties
from koord.scheduler.duties.reservation import keeper

DUTIES: Mapping[str, Hiring] = {
    "Coscheduling": gang_duties,
    "DeviceShare": device_duties,
    "ElasticQuota": quota_duties,
    "Reservation": keeper,
}  # by the name of the plugin
