"""Which profiles an object gets, and which of those are left to chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koord.manager.webhooks.profile.compiled import ALWAYS, Profile

Labels = Mapping[str, str]


def matching(
    profiles: Iterable[Profile], labels: Labels, namespace: str, namespace_labels: Callable[[str], Labels | None]
) -> list[Profile]:
    """Return the matching profiles in order. An unknown namespace counts as a match: it may be newer than the
    cache.
    """
    found: list[Profile] = []
    around: Labels | None = None
    asked = False
    for profile in profiles:
        if not profile.pods.matches(labels):
            continue
        if not profile.namespaces.is_everything():
            if not asked:
                around, asked = namespace_labels(namespace), True
            if around is not None and not profile.namespaces.matches(around):
                continue
        found.append(profile)
    return found


def is_left_out(profile: Profile, draw: Callable[[], int]) -> bool:
    """Return whether the probability skips the object. A draw that equals the percentage applies, so 50 means 51
    of 100.
    """
    if profile.percent == 0:
        return True
    return profile.percent != ALWAYS and draw() > profile.percent
