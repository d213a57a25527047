"""The Resctrl hook: cache ways and memory bandwidth of one pod, by its annotation, in a resctrl group of its own."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_RESCTRL
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, NodeRules, PodContext, SchemataLine
from koord.koordlet.inputs.machine import L3Cache

NAME = "Resctrl"
GROUP_PREFIX = "koordlet-"
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
_AMD_FULL, _AMD_UNIT = 2048, 160


def cat_mask(mask: int, start_percent: int, end_percent: int) -> int | None:
    """Return the mask of cache ways from one percent to another; None when the range or the cache's mask is invalid."""
    if mask <= 0 or mask & (mask + 1) or not 0 <= start_percent < end_percent <= 100:
        return None
    ways = mask.bit_length()
    first, past = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    return ((1 << past) - (1 << first)) or None


def mba_value(vendor: str, percent: int | None) -> str | None:
    """Return the MBA value of a percentage: AMD takes eighths of a GB/s, everybody else tens of percents, as Intel."""
    if percent is None or not 0 < percent <= 100:
        return None
    if vendor == AMD:
        return str(_AMD_FULL if percent == 100 else _AMD_UNIT * percent // 100)
    return str(-(-percent // 10) * 10)


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


def _asked(pod: PodContext, rules: NodeRules) -> qos_codecs.PodResctrl | str | None:
    """Return what the pod asks for; text that says why it can have no group; None when it asks for nothing."""
    found = qos_codecs.parse_resctrl(pod.annotations)
    if found is None or isinstance(found, MalformedAnnotation):
        return None if found is None else str(found)
    if not rules.cache.is_divisible:
        return f"{A_RESCTRL}: this machine cannot divide its cache"
    return found if pod.uid and "/" not in pod.uid else f"{pod.uid!r} names no resctrl group"


def _cache_ways(asked: qos_codecs.ResctrlAllocation, cache: L3Cache) -> SchemataLine | str | None:
    def value(one: qos_codecs.ResctrlSchemata | qos_codecs.ResctrlCacheSchemata) -> str | None:
        ways = cat_mask(cache.mask, *one.range) if len(one.range) == 2 else None
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


def _bandwidth(asked: qos_codecs.ResctrlAllocation, cache: L3Cache) -> SchemataLine | str | None:
    entries: list[tuple[Sequence[int], str, str | None]] = []
    if asked.schemata.percent:
        percent = asked.schemata.percent
        entries.append((cache.ids, f"{percent}%", mba_value(cache.vendor, percent)))
    entries += [
        ((one.cache_id,), f"{one.percent}%", mba_value(cache.vendor, one.percent)) for one in asked.schemata_per_cache
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
