"""GPU shared resource templates: the fixed slices that some vendors cut a card into."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koord.policy.device.holding import Amounts
from koord.policy.device.refusal import NO_TEMPLATE, Refusal, unresolvable
from koord.policy.device.request import GpuNeed
from koord.values import resources as vector
from koord.values.quantity import QuantityError

Candidates = Mapping[str, tuple[str, ...]]  # "<vendor>-<model>" -> names of the templates that match


class Templates(msgspec.Struct, frozen=True):
    """The configured templates. A request that names a resource in `matched` must equal a template exactly."""

    by_model: Mapping[str, Mapping[str, Amounts]] = {}
    matched: frozenset[str] = frozenset()


def templates_of(document: object, matched: Collection[str]) -> Templates | str:
    """Parse the decoded `data.yaml` of the ConfigMap; a returned text says what is wrong with it."""
    if document is None:
        return Templates({}, frozenset(matched))
    try:
        listed = msgspec.convert(document, dict[str, dict[str, dict[str, str | int | float]]])
        by_model = {
            key: {name: vector.to_units(vector.parse(resources)) for name, resources in templates.items()}
            for key, templates in listed.items()
        }
    except (msgspec.ValidationError, QuantityError) as error:
        return f"data.yaml: {error}"
    return Templates(by_model, frozenset(matched))


def model_key(vendor: str, model: str) -> str:
    return f"{vendor}-{model}"


def candidates(templates: Templates, need: GpuNeed) -> Candidates | Refusal | None:
    """Return the templates that match the request by model, a refusal when none does, None when templates do not
    apply.
    """
    if not need.shared or templates.matched.isdisjoint(need.each):
        return None
    found = {
        key: names
        for key, listed in templates.by_model.items()
        if (names := tuple(sorted(name for name, amounts in listed.items() if amounts == need.each)))
    }
    return found or unresolvable(NO_TEMPLATE)
