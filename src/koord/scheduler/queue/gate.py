"""Run the PreEnqueue plugins of a pod's profile."""

from __future__ import annotations

from collections.abc import Sequence

from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.queue.entry import QueuedPod


class Gates:
    """Run the PreEnqueue plugins of all profiles."""
    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._plugins = {profile.scheduler_name: profile.at("pre_enqueue") for profile in profiles}

    def guards(self, scheduler: str) -> bool:
        return scheduler in self._plugins

    def holding(self, queued: QueuedPod) -> tuple[str, Reject] | None:
        """Return the first plugin that gates the pod; the one that did so last is asked first, as most likely it still
        does.
        """
        plugins: Sequence[Plugin] = self._plugins[queued.pod.scheduler]
        if queued.gate:
            plugins = sorted(plugins, key=lambda plugin: plugin.name != queued.gate)
        for plugin in plugins:
            verdict = plugin.pre_enqueue(queued.pod)
            if verdict is not None:
                return plugin.name, verdict
        return None
