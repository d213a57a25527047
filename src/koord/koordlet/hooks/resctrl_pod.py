"""The Resctrl hook: cache ways and memory bandwidth of one pod, by its annotation, in a resctrl group of its own."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.qos_codecs import (
    PodResctrl,
    ResctrlAllocation,
    ResctrlCacheSchemata,
    ResctrlSchemata,
    parse_resctrl,
)
from koord.api.koordinator.protocol import A_RESCTRL
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, NodeRules, PodContext, SchemataLine
from koord.koordlet.inputs.machine import L3Cache
from koord.koordlet.resctrl_share import cat_mask, mba_value

NAME = "Resctrl"
GROUP_PREFIX = "koordlet-"


def group_name(uid: str) -> str:
    """Return the resctrl group of a pod. It is removed with the pod, of which the runtime then tells the uid alone."""
    return f"{GROUP_PREFIX}{uid}"


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Decide the group and its schemata. A line that would miss a cache is left out, and the problem says so."""
    asked = _asked(pod, rules)
    if asked is None:
        return NOTHING
    if isinstance(asked, str):
        return HookPlan(problem=asked)
    lines: list[SchemataLine] = []
    problems: list[str] = []
    for line in (_cache_ways(asked.llc, rules.cache), _bandwidth(asked.mb, rules.cache)):
        if isinstance(line, str):
            problems.append(line)
        elif line is not None:
            lines.append(line)
    return HookPlan(
        resctrl_group=group_name(pod.uid),
        schemata=tuple(lines),
        problem=f"{A_RESCTRL}: {'; '.join(problems)}" if problems else "",
    )


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    """Decide the group that a container starts in."""
    asked = None if container.is_sandbox else _asked(container.pod, rules)
    if asked is None or isinstance(asked, str):
        return NOTHING  # the decision for the pod says what is wrong
    return HookPlan(resctrl_group=group_name(container.pod.uid))


def _asked(pod: PodContext, rules: NodeRules) -> PodResctrl | str | None:
    """Return what the pod asks for; text that says why it can have no group; None when it asks for nothing."""
    found = parse_resctrl(pod.annotations)
    if found is None or isinstance(found, MalformedAnnotation):
        return None if found is None else str(found)
    if not rules.cache.is_divisible:
        return f"{A_RESCTRL}: this machine cannot divide its cache"
    return found if pod.uid and "/" not in pod.uid else f"{pod.uid!r} names no resctrl group"


def _cache_ways(asked: ResctrlAllocation, cache: L3Cache) -> SchemataLine | str | None:
    def value(one: ResctrlSchemata | ResctrlCacheSchemata) -> str | None:
        ways = cat_mask(cache.mask, *one.range, cache.limits) if len(one.range) == 2 else None
        return None if ways is None else f"{ways:x}"

    entries: list[tuple[Sequence[int], str, str | None]] = []
    if asked.schemata.range:
        entries.append((cache.ids, _range_text(asked.schemata.range), value(asked.schemata)))
    entries += [((one.cache_id,), _range_text(one.range), value(one)) for one in asked.schemata_per_cache]
    by_cache = _by_cache("llc", entries, cache)
    if by_cache is None or isinstance(by_cache, str):
        return by_cache
    why = f"{A_RESCTRL} llc {', '.join(text for _, text, _ in entries)} of {cache.mask:x}"
    return SchemataLine(resource="L3", by_cache=by_cache, why=why)


def _bandwidth(asked: ResctrlAllocation, cache: L3Cache) -> SchemataLine | str | None:
    entries: list[tuple[Sequence[int], str, str | None]] = []
    if asked.schemata.percent:
        percent = asked.schemata.percent
        entries.append((cache.ids, f"{percent}%", mba_value(cache.vendor, percent, cache.limits)))
    entries += [
        ((one.cache_id,), f"{one.percent}%", mba_value(cache.vendor, one.percent, cache.limits))
        for one in asked.schemata_per_cache
    ]
    by_cache = _by_cache("mb", entries, cache)
    if by_cache is None or isinstance(by_cache, str):
        return by_cache
    why = f"{A_RESCTRL} mb {', '.join(text for _, text, _ in entries)} on {cache.vendor}"
    return SchemataLine(resource="MB", by_cache=by_cache, why=why)


def _by_cache(
    kind: str, entries: Sequence[tuple[Sequence[int], str, str | None]], cache: L3Cache
) -> tuple[tuple[int, str], ...] | str | None:
    """Return the value of each cache; text that says what is wrong; None where nothing is asked for.

    An entry is the caches it is for, what was asked for, and its value; later entries count more.
    """
    values: dict[int, str] = {}
    for ids, text, value in entries:
        if value is None:
            return f"{kind}: {text} is no share"
        unknown = [one for one in ids if one not in cache.ids]
        if unknown:
            return f"{kind}: there is no cache {unknown[0]}"
        values.update(dict.fromkeys(ids, value))
    missing = [str(one) for one in sorted(cache.ids) if one not in values]
    if not values:
        return None
    return f"{kind}: cache {', '.join(missing)} has no share" if missing else tuple(sorted(values.items()))


def _range_text(bounds: Sequence[int]) -> str:
    return f"{'-'.join(map(str, bounds)) or 'none'}%"
