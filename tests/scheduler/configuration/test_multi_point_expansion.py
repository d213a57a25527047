"""Expanding multiPoint neither loses nor doubles a plugin, and never breaks the order that was asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.component import ALL_PLUGINS, PluginEntry, PluginSet, expand_multi_point, merge_plugin_sets

NAMES = "abcdefgh"


def lists(names: str = NAMES) -> st.SearchStrategy[tuple[PluginEntry, ...]]:
    return st.lists(st.sampled_from(names), unique=True).map(lambda chosen: tuple(PluginEntry(name=n) for n in chosen))


sets = st.builds(PluginSet, enabled=lists(), disabled=lists(NAMES + ALL_PLUGINS))


@given(everywhere=sets, here=sets, having=st.frozensets(st.sampled_from(NAMES)))
def test_expanding(everywhere: PluginSet, here: PluginSet, having: frozenset[str]) -> None:
    found = [plugin.name for plugin in expand_multi_point(everywhere, here, having.__contains__)]
    named = [plugin.name for plugin in here.enabled]
    spread = [p.name for p in everywhere.enabled if p.name in having and not here.disables(p.name)]
    assert len(found) == len(set(found))
    assert set(found) == set(named) | set(spread)
    alone = [name for name in found if name in spread and name not in named]
    assert alone == [name for name in spread if name not in named]
    both, own = ([n for n in named if (n in spread) is shared] for shared in (True, False))
    assert found == [*both, *alone, *own]


@given(defaults=lists(), custom=sets)
def test_merging(defaults: tuple[PluginEntry, ...], custom: PluginSet) -> None:
    found = [plugin.name for plugin in merge_plugin_sets(PluginSet(enabled=defaults), custom).enabled]
    kept = [plugin.name for plugin in defaults if not custom.disables(plugin.name)]
    assert len(found) == len(set(found))
    assert found[: len(kept)] == kept
    assert set(found) == {*kept, *(plugin.name for plugin in custom.enabled)}


@given(defaults=lists(), custom=sets)
def test_merging_twice_changes_nothing(defaults: tuple[PluginEntry, ...], custom: PluginSet) -> None:
    once = merge_plugin_sets(PluginSet(enabled=defaults), custom)
    assert merge_plugin_sets(PluginSet(enabled=defaults), once) == once


@given(given_twice=st.sampled_from(NAMES), defaults=lists())
def test_a_name_given_twice_stays_to_be_refused(given_twice: str, defaults: tuple[PluginEntry, ...]) -> None:
    custom = PluginSet(enabled=(PluginEntry(name=given_twice), PluginEntry(name=given_twice)))
    found = [plugin.name for plugin in merge_plugin_sets(PluginSet(enabled=defaults), custom).enabled]
    assert found.count(given_twice) == 2
