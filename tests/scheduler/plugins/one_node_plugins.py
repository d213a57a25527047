"""The plugins of the default profile that read a single node, built for a test's cluster."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG, typed_args
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.fake_handles import StateOnlyHandle
from tests.scheduler.plugins.kube_scheduler_cases import PLUGINS, WEIGHTS

__all__ = ["PLUGINS", "WEIGHTS", "default_plugins", "made"]


def made(name: str, state: ClusterState) -> Plugin:
    return REGISTRY[name](typed_args(name, None) if name in SCHEDULER_PLUGIN_CATALOG else None, StateOnlyHandle(state))


def default_plugins(state: ClusterState) -> Sequence[Plugin]:
    return [made(name, state) for name in PLUGINS]
