"""Labels that an operator requires of pods, by namespace: the rules' ConfigMap, and what a pod lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.koordinator.protocol import L_SKIP_ENHANCED_VALIDATION, TRUE
from koord.api.model import Model, decode


class RequiredLabelRule(Model, frozen=True, kw_only=True):
    name: str = ""
    required_labels: tuple[str, ...] = ()
    namespace_whitelist: tuple[str, ...] = ()


def parse_rules(data: Mapping[str, str]) -> tuple[RequiredLabelRule, ...]:
    """Parse the rules of the ConfigMap; none when `enable` is not true. Raise msgspec.DecodeError.

    A caller that cannot read new rules keeps the old ones.
    """
    if data.get("enable", "").strip().lower() != TRUE:
        return ()
    text = data.get("rules", "")
    return decode(text.encode(), tuple[RequiredLabelRule, ...]) if text.strip() else ()


def missing_label_error(labels: Mapping[str, str], namespace: str, demanded: Iterable[RequiredLabelRule]) -> str | None:
    if labels.get(L_SKIP_ENHANCED_VALIDATION) == TRUE:
        return None
    for rule in demanded:
        missing = [] if namespace in rule.namespace_whitelist else [k for k in rule.required_labels if k not in labels]
        if len(missing) == 1:
            return f"required label '{missing[0]}' is missing"
        if missing:
            return f"required labels are missing: [{' '.join(missing)}]"
    return None
