"""Profiles of one process share what plugins know of gangs, quotas and reservations (R5)."""

from __future__ import annotations

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.model import convert
from koord.scheduler.configuration.completed_config import CompletedConfig, ValidationHandle
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin


def test_two_profiles_read_one_cache_of_each_feature() -> None:
    enabled = [{"name": name} for name in ("Coscheduling", "ElasticQuota", "Reservation")]
    profiles = [{"schedulerName": name, "plugins": {"multiPoint": {"enabled": enabled}}} for name in ("one", "two")]
    completed = CompletedConfig.complete(convert({"profiles": profiles}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(completed, CompletedConfig), completed
    made = completed.make_profiles(ValidationHandle())
    plugins = [plugin for profile in made for plugin in profile.plugins()]
    assert len({id(plugin.cache) for plugin in plugins if isinstance(plugin, ReservationPlugin)}) == 1
    assert len({id(plugin.quota_cache) for plugin in plugins if isinstance(plugin, ElasticQuotaPlugin)}) == 1
    assert len({id(plugin.gang_manager) for plugin in plugins if isinstance(plugin, Coscheduling)}) == 1
    assert sum(isinstance(plugin, ReservationPlugin) for plugin in plugins) == 2
