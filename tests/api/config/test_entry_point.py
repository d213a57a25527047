"""What installed packages offer is loaded, or named with what is wrong with it."""

from __future__ import annotations

from koord.api.config.entry_point import load_entry_points
from tests.plugin_page import Offer


def test_each_offer_is_loaded_or_named() -> None:
    offers = [
        Offer("Fine", dict),
        Offer("Broken", broken="no module named x"),
        Offer("BuiltIn", dict),
        Offer("Twice", dict),
        Offer("Twice", list),
        Offer("Text", "not callable"),
    ]
    found = load_entry_points(offers, built_in=["BuiltIn"])
    assert found.loaded == {"Fine": dict}
    assert found.broken == {
        "Broken": "plugin Broken of a_package:Broken cannot be used: ImportError: no module named x",
        "Twice": "plugin Twice of a_package:Twice cannot be used: two installed packages offer a plugin of this name",
        "Text": "plugin Text of a_package:Text cannot be used: it is a str, and must be a class or a function",
    }
    assert found.warnings == (
        found.broken["Broken"],
        "plugin BuiltIn of a_package:BuiltIn is not used: koord has a plugin of this name",
        found.broken["Twice"],
        found.broken["Text"],
    )


def test_a_third_offer_of_a_name_does_not_make_it_usable_again() -> None:
    assert not load_entry_points([Offer("A", dict), Offer("A", dict), Offer("A", dict)]).loaded


def test_objects_must_be_of_their_kind() -> None:
    found = load_entry_points([Offer("Number", 1), Offer("Text", "a")], kind=int)
    assert found.loaded == {"Number": 1}
    assert found.broken["Text"].endswith("it is a str, and must be a int")
