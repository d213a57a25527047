"""This module follows the ConfigMap that lists the GPU slice templates."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from koord.api.builtin import CONFIG_MAPS
from koord.api.config.scheduler.device_share import GPUSharedResourceTemplatesConfig
from koord.api.core import ConfigMap
from koord.policy.device.template import Templates, templates_of
from koord.scheduler.framework.handle import Handle, single

_KEY = "data.yaml"


class Slices:
    """Follows the ConfigMap of GPU templates; `changed` gets the templates in force and the error, "" if there is
    none.
    """

    def __init__(
        self, config: GPUSharedResourceTemplatesConfig, handle: Handle, changed: Callable[[Templates, str], None]
    ) -> None:
        self._matched = frozenset(config.matched_resources)
        self._namespace, self._name = config.config_map_namespace, config.config_map_name
        self._changed = changed
        changed(Templates({}, self._matched), "")
        handle.lister(single(CONFIG_MAPS, self._namespace, self._name)).on_change(self._seen)

    def _seen(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        seen = new if new is not None else old
        assert seen is not None
        if (seen.metadata.namespace, seen.metadata.name) != (self._namespace, self._name):
            return  # a handle may show more than was asked for
        found = self._read(new.data.get(_KEY, "")) if new is not None else Templates({}, self._matched)
        if isinstance(found, str):
            self._changed(Templates({}, self._matched), f"ConfigMap {self._namespace}/{self._name}: {found}")
        else:
            self._changed(found, "")

    def _read(self, text: str) -> Templates | str:
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            return f"{_KEY}: {' '.join(str(error).split())}"
        return templates_of(document, self._matched)
