"""List the controller factories by the name of their plugin."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.controllers.controller import ControllerFactory
from koord.scheduler.plugins.coscheduling.controller import gang_controllers
from koord.scheduler.plugins.device_share.controller import device_controllers
from koord.scheduler.plugins.elastic_quota.controller import quota_controllers
from koord.scheduler.plugins.reservation.controller import reservation_controllers

CONTROLLER_FACTORIES: Mapping[str, ControllerFactory] = {
    "Coscheduling": gang_controllers,
    "DeviceShare": device_controllers,
    "ElasticQuota": quota_controllers,
    "Reservation": reservation_controllers,
}  # by the name of the plugin
