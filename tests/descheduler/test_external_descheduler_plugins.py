"""A descheduler plugin of another package is found, reacts to events, and is refused by name where it is broken."""

from __future__ import annotations

from typing import Any

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.kubernetes.builtin_kinds import NODES
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.plugins.registry import REGISTRY, load_registry
from koord.kube.transport.api_error import unwrap
from tests.descheduler.descheduler_harness import DeschedulerHarness, Replica, run_in_harness
from tests.plugin_page import Offer, example


def setup_with(*offers: Offer, interval: str = "1h") -> Any:
    config = load_config(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": interval,
            "profiles": [
                {
                    "name": "p",
                    "plugins": {
                        "deschedule": {"enabled": [{"name": offer.name} for offer in offers]},
                        "evict": {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]},
                        "filter": {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]},
                    },
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    return build_setup(config, load_registry(offers).factories)


def test_the_plugin_of_the_page_acts_on_an_event_long_before_the_next_interval() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        await harness.add_pod("a", "n1")
        await harness.add_pod("b", "n2")
        made = setup_with(Offer("DrainMarked", example("descheduler")["DrainMarked"]))
        assert isinstance(made, DeschedulerSetup), made
        replica = Replica(harness, "one", made)
        harness.replicas.append(replica)
        await harness.settle(60)
        assert replica.evictions() == []
        labels = {"metadata": {"labels": {"example.com/maintenance": "tonight"}}}
        unwrap(await harness.client.patch(NODES, "n1", labels, kind="merge"))
        await harness.settle(30)
        assert set(replica.evictions()) == {"a"}

    run_in_harness(story)


def test_one_that_cannot_be_loaded_is_refused_only_where_it_is_enabled() -> None:
    broken = Offer("Broken", broken="gone")
    words = "plugin Broken of a_package:Broken cannot be used: ImportError: gone"
    assert load_registry([broken]).warnings == (words,)
    errors = setup_with(broken)
    assert isinstance(errors, list)
    assert any(words in str(error) for error in errors)
    assert isinstance(setup_with(), DeschedulerSetup)


def test_a_built_in_plugin_cannot_be_replaced() -> None:
    found = load_registry([Offer("LowNodeLoad", dict)])
    assert found.factories["LowNodeLoad"] is REGISTRY["LowNodeLoad"]
    assert found.warnings == (
        "plugin LowNodeLoad of a_package:LowNodeLoad is not used: koord has a plugin of this name",
    )
