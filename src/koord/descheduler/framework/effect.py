"""The plugin interface of the descheduler: the effects that plugins propose, the plugin base class and
profiles.

Executing, counting and recording effects are the program's job.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from koord.descheduler.wire import Pod


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """An eviction that a plugin proposes. `target` is the node that the plugin counted on, if any; the scheduler
    decides.
    """

    pod: Pod
    node: str
    profile: str
    plugin: str
    reason: str
    evictor: str  # the evict plugin of the profile, which carries it out
    target: str = ""
    delete_options: dict[str, Any] | None = None
    dry_run: bool = False  # of the plugin or of the whole program: told of, not done


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    unschedulable: bool
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


class Annotate(msgspec.Struct, frozen=True, kw_only=True):
    pod: Pod
    annotations: dict[str, str]
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


Effect: TypeAlias = Evict | Cordon | Annotate
