"""These functions validate the names of a CRD: DNS labels for paths, and kinds."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.refusal import FieldError, invalid_value, required
from koord.values.names import dns1035_label

Obj = dict[str, Any]


def name_errors(names: Obj) -> list[FieldError]:
    at = "spec.names"
    errors = [*_word(f"{at}.plural", names.get("plural", "")), *_word(f"{at}.singular", names.get("singular", ""))]
    errors += _kind(f"{at}.kind", names.get("kind", "")) + _kind(f"{at}.listKind", names.get("listKind", ""))
    for field in ("shortNames", "categories"):
        for index, word in enumerate(names.get(field) or ()):
            errors += [invalid_value(f"{at}.{field}[{index}]", word, reason) for reason in dns1035_label(word)]
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(invalid_value(f"{at}.listKind", names["listKind"], "kind and listKind may not be the same"))
    return errors


def _word(field: str, word: str) -> list[FieldError]:
    if not word:
        return [required(field)]
    return [invalid_value(field, word, reason) for reason in dns1035_label(word)]


def _kind(field: str, kind: str) -> list[FieldError]:
    if not kind:
        return [required(field)]
    wrong = dns1035_label(kind.lower())
    return [invalid_value(field, kind, f"may have mixed case, but should otherwise match: {r}") for r in wrong]
