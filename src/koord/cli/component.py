"""The programs that `koord up` can run inside its process, and how each is made from the command line's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from koord.embedded.binder import Binder
from koord.embedded.cluster import Context, Maker
from koord.embedded.kubelet import profile as node_profile
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.profile import Pool
from koord.embedded.workloads.workloads import Workloads


class Wish(msgspec.Struct, frozen=True):
    """What the command line says about the cluster's content."""

    pools: tuple[Pool, ...]


# In the order of starting. The scheduler is a placeholder that binds to the first fitting node.
COMPONENTS: dict[str, Callable[[Context, Wish], object]] = {
    "workloads": lambda c, _: Workloads(c.client, c.informers, c.clock, c.seed),
    "nodes": lambda c, wish: Fleet(c.client, c.informers, c.clock, c.seed, wish.pools),
    "scheduler": lambda c, _: Binder(c.client, c.informers, c.clock),
}


def chosen(
    text: str, *, nodes: int, profile: Path | None, settings: Mapping[str, str]
) -> list[tuple[str, Maker]] | str:
    """The makers of the components named in `text` ("all", "", "a,b"), or what is wrong with it."""
    names = list(COMPONENTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(COMPONENTS)
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        return f"--components {text}: no component {', '.join(unknown)}; there are {known}"
    if settings:  # no component has settings yet, so none may be given: ignoring one would be a silent surprise
        return f"--set {next(iter(settings))}: no component of {known} has settings yet"
    pools: tuple[Pool, ...] | node_profile.BadProfile
    pools = node_profile.load(profile) if profile is not None else node_profile.default_pools(nodes)
    if isinstance(pools, node_profile.BadProfile):
        return f"--profile {profile}: {'; '.join(pools.errors)}"
    wish = Wish(pools)
    return [(name, _maker(name, wish)) for name in COMPONENTS if name in names]


def _maker(name: str, wish: Wish) -> Maker:
    make = COMPONENTS[name]
    return lambda context: make(context, wish)  # type: ignore[return-value]
