"""Rules that every wire model keeps, and that msgspec does not enforce by itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import koord.api
from koord.api.kubernetes.admission import AdmissionResponse
from koord.api.model import Model


def every_model() -> list[type[Model]]:
    for module in pkgutil.walk_packages(koord.api.__path__, "koord.api."):
        importlib.import_module(module.name)
    found: list[type[Model]] = []
    pending: list[type[Model]] = [Model]
    while pending:
        for child in pending.pop().__subclasses__():
            found.append(child)
            pending.append(child)
    return [m for m in found if m.__module__.startswith("koord.api.")]


def test_every_model_is_frozen() -> None:
    assert [m for m in every_model() if not m.__struct_config__.frozen] == []


def test_every_field_of_every_model_is_keyword_only() -> None:
    positional = [
        f"{m.__module__}.{m.__name__}.{p.name}"
        for m in every_model()
        for p in inspect.signature(m).parameters.values()
        if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert positional == []


def test_every_model_can_be_made_from_nothing_that_a_server_may_leave_out() -> None:
    """Go servers omit zero values, so a field without a default would make the whole object unreadable."""
    strict = [
        f"{m.__name__}.{p.name}"
        for m in every_model()
        if m is not AdmissionResponse  # written by us, never read
        for p in inspect.signature(m).parameters.values()
        if p.default is inspect.Parameter.empty
    ]
    assert strict == ["LabelSelectorRequirement.key", "LabelSelectorRequirement.operator"]
