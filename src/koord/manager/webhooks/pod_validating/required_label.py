"""Labels that an operator requires of pods, by namespace: the rules' ConfigMap, and what a pod lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.model import Model, decode
from koord.api.protocol import L_SKIP_ENHANCED_VALIDATION, TRUE


class Rule(Model, frozen=True, kw_only=True):
    name: str = ""
    required_labels: tuple[str, ...] = ()
    namespace_whitelist: tuple[str, ...] = ()


def rules(data: Mapping[str, str]) -> tuple[Rule, ...]:
    """Parse the rules of the ConfigMap; none when `enable` is not true. Raise msgspec.DecodeError.

    A caller that cannot read new rules keeps the old ones.
    """
    if data.get("enable", "").strip().lower() != TRUE:
        return ()
    text = data.get("rules", "")
    return decode(text.encode(), tuple[Rule, ...]) if text.strip() else ()


def complaint(labels: Mapping[str, str], namespace: str, demanded: Iterable[Rule]) -> str | None:
    if labels.get(L_SKIP_ENHANCED_VALIDATION) == TRUE:
        return None
    for rule in demanded:
        missing = [] if namespace in rule.namespace_whitelist else [k for k in rule.required_labels if k not in labels]
        if len(missing) == 1:
            return f"required label '{missing[0]}' is missing"
        if missing:
            return f"required labels are missing: [{' '.join(missing)}]"
    return None
