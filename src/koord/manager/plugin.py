"""Node resources and NodeSLO extensions of installed packages, which koord-manager computes beside its own.

One that cannot be used is named in the log and left out. One that raises leaves what it would write as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from koord.api.config.entry_point import PluginEntryPoint, load_entry_points, make_plugins
from koord.api.kubernetes.node import Node
from koord.manager.colocation.decision import ColocationNodeView
from koord.manager.colocation.device_resources import RESOURCES
from koord.values.quantity import Quantity

_LOG = logging.getLogger(__name__)

NODE_RESOURCE_GROUP = "koord.manager.controllers.noderesource"
NODE_SLO_GROUP = "koord.manager.configuration.node_slo"


@runtime_checkable
class NodeResourcePlugin(Protocol):
    """Computes extended resources of a node; `resources` are all names that it may ever write."""

    resources: tuple[str, ...]

    def decide(self, view: ColocationNodeView) -> Mapping[str, Quantity | None]:
        """Return what the node shall show; None removes a name, and a name that is not there is left alone."""


@runtime_checkable
class NodeSloExtension(Protocol):
    """Computes the entry of NodeSLOs' `extensions` that has its name."""

    def decide(self, node: Node, config: Mapping[str, str]) -> Any:
        """Return the value for a node, None for no entry. `config` is the data of slo-controller-config."""


class ManagerPlugins(msgspec.Struct, frozen=True, kw_only=True):
    """The plugins of installed packages by name, and a sentence for each that is left out."""

    node_resources: Mapping[str, NodeResourcePlugin] = {}
    node_slo: Mapping[str, NodeSloExtension] = {}
    warnings: tuple[str, ...] = ()


def load_manager_plugins(offers: Callable[[str], Iterable[PluginEntryPoint]]) -> ManagerPlugins:
    """Load the plugins of both groups. `offers` returns the entry points of a group; each loads a class."""
    resources, warnings = _load(offers(NODE_RESOURCE_GROUP), NodeResourcePlugin)
    extensions, more = _load(offers(NODE_SLO_GROUP), NodeSloExtension)
    warnings += more
    taken = dict.fromkeys(RESOURCES, "koord-manager")
    kept: dict[str, NodeResourcePlugin] = {}
    for name, plugin in resources.items():
        clash = [f"{one} is written by {taken[one]}" for one in plugin.resources if one in taken]
        if clash:
            warnings.append(f"plugin {name} is not used: {', '.join(clash)}")
            continue
        taken.update(dict.fromkeys(plugin.resources, name))
        kept[name] = plugin
    return ManagerPlugins(node_resources=kept, node_slo=extensions, warnings=tuple(warnings))


def _load(offers: Iterable[PluginEntryPoint], kind: Any) -> tuple[dict[str, Any], list[str]]:
    found = load_entry_points(offers)
    made, unused = make_plugins(found.loaded, kind, f"it is no {kind.__name__}")
    return made, [*found.warnings, *unused]


def run_node_resource_plugins(
    plugins: Mapping[str, NodeResourcePlugin], view: ColocationNodeView
) -> dict[str, Quantity | None]:
    """Return what all plugins want the node to show. What a plugin does not name as its own is left out."""
    wanted: dict[str, Quantity | None] = {}
    for name, plugin in plugins.items():
        try:
            found = plugin.decide(view)
        except Exception:  # noqa: BLE001 - a stranger's mistake about one node must not stop the lending
            _LOG.exception("plugin %s failed at node %s", name, view.node.metadata.name)
            continue
        foreign = sorted(found.keys() - set(plugin.resources))
        if foreign:
            _LOG.error("plugin %s wants to write %s, which it does not name in `resources`", name, ", ".join(foreign))
        wanted.update({key: amount for key, amount in found.items() if key in plugin.resources})
    return wanted


def run_node_slo_extensions(
    plugins: Mapping[str, NodeSloExtension], node: Node, config: Mapping[str, str], had: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the extensions with those of all plugins; the entry of one that raises stays as it was."""
    extensions = dict(had)
    for name, plugin in plugins.items():
        try:
            value = plugin.decide(node, config)
        except Exception:  # noqa: BLE001 - a stranger's mistake about one node must not stop the others
            _LOG.exception("plugin %s failed at the NodeSLO of %s", name, node.metadata.name)
            continue
        if value is None:
            extensions.pop(name, None)
        else:
            extensions[name] = value
    return extensions
