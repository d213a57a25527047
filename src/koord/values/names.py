"""The validation rules for names, labels and keys that every API server applies, with its messages.

Each rule takes a text and returns the reasons to refuse it; an empty list means valid. Lengths are in
bytes of UTF-8.
"""

from __future__ import annotations

import re

_DNS1123_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS1123_SUBDOMAIN = rf"{_DNS1123_LABEL}(\.{_DNS1123_LABEL})*"
_DNS1035_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"
_C_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_HTTP_HEADER = "[-A-Za-z0-9]+"

# Generated names have no vowels and no look-alikes, so that none spells a word.
SAFE_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_QUALIFIED_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def pattern_refusal(rule: str, pattern: str, *examples: str) -> str:
    """Return the sentence that names a rule, valid examples, and the expression behind the rule."""
    if not examples:
        return f"{rule} (regex used for validation is '{pattern}')"
    shown = " or ".join(f"'{example}', " for example in examples)  # the doubled separators are Kubernetes' own
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"


def dns1123_label(text: str) -> list[str]:
    reasons = _too_long(text, 63, "characters")
    if not _fits(_DNS1123_LABEL, text):
        if _fits(_DNS1123_SUBDOMAIN, text):
            reasons.append("must not contain dots")
        else:
            rule = (
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
                "and must start and end with an alphanumeric character"
            )
            reasons.append(pattern_refusal(rule, _DNS1123_LABEL, "my-name", "123-abc"))
    return reasons


def dns1123_subdomain(text: str) -> list[str]:
    return _subdomain(text, "characters")


def dns1035_label(text: str) -> list[str]:
    reasons = _too_long(text, 63, "characters")
    if not _fits(_DNS1035_LABEL, text):
        rule = (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
            "start with an alphabetic character, and end with an alphanumeric character"
        )
        reasons.append(pattern_refusal(rule, _DNS1035_LABEL, "my-name", "abc-123"))
    return reasons


def qualified_name(text: str) -> list[str]:
    """Validate a label or annotation key: a name of up to 63 bytes, with an optional DNS subdomain before a slash."""
    examples = ("MyName", "my.name", "123-abc")
    parts = text.split("/")
    if len(parts) > 2:
        rule = pattern_refusal(_QUALIFIED_RULE, _QUALIFIED, *examples)
        return [f"a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    name = parts[-1]
    reasons = []
    if len(parts) == 2:
        prefix_reasons = _subdomain(parts[0], "bytes") if parts[0] else ["must be non-empty"]
        reasons += [f"prefix part {reason}" for reason in prefix_reasons]
    name_reasons = _too_long(name, 63, "bytes") if name else ["must be non-empty"]
    if not _fits(_QUALIFIED, name):
        name_reasons.append(pattern_refusal(_QUALIFIED_RULE, _QUALIFIED, *examples))
    return reasons + [f"name part {reason}" for reason in name_reasons]


def label_value(text: str) -> list[str]:
    reasons = _too_long(text, 63, "bytes")
    if not _fits(_LABEL_VALUE, text):
        rule = f"a valid label must be an empty string or {_QUALIFIED_RULE.removeprefix('must ')}"
        reasons.append(pattern_refusal(rule, _LABEL_VALUE, "MyValue", "my_value", "12345"))
    return reasons


def c_identifier(text: str) -> list[str]:
    if _fits(_C_IDENTIFIER, text):
        return []
    rule = (
        "a valid C identifier must start with alphabetic character or '_', "
        "followed by a string of alphanumeric characters or '_'"
    )
    return [pattern_refusal(rule, _C_IDENTIFIER, "my_name", "MY_NAME", "MyName")]


def port_name(text: str) -> list[str]:
    reasons = _too_long(text, 15, "characters")
    if not _fits("[-a-z0-9]+", text):
        reasons.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", text):
        reasons.append("must contain at least one letter (a-z)")
    if "--" in text:
        reasons.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        reasons.append("must not begin or end with a hyphen")
    return reasons


def relaxed_env_var_name(text: str) -> list[str]:
    """Validate an environment variable of a container by the rule since Kubernetes 1.32."""
    reasons = [] if text else ["environment variable name must be non-empty"]
    if any(not " " <= char <= "~" or char == "=" for char in text):
        reasons.append(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
        )
    return reasons


def config_map_key(text: str) -> list[str]:
    reasons = _too_long(text, 253, "characters")
    if not _fits(_CONFIG_KEY, text):
        rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        reasons.append(pattern_refusal(rule, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    return reasons + _leaves_folder(text)


def http_header_name(text: str) -> list[str]:
    if _fits(_HTTP_HEADER, text):
        return []
    rule = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return [pattern_refusal(rule, _HTTP_HEADER, "X-Header-Name")]


def _subdomain(text: str, unit: str) -> list[str]:
    reasons = _too_long(text, 253, unit)
    if not _fits(_DNS1123_SUBDOMAIN, text):
        reasons.append(pattern_refusal(_SUBDOMAIN_RULE, _DNS1123_SUBDOMAIN, "example.com"))
    return reasons


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None  # re keeps compiled expressions itself


def _too_long(text: str, limit: int, unit: str) -> list[str]:
    size = len(text) if text.isascii() else len(text.encode())
    return [f"must be no more than {limit} {unit}"] if size > limit else []


def _leaves_folder(text: str) -> list[str]:
    if text in (".", ".."):
        return [f"must not be '{text}'"]
    return ["must not start with '..'"] if text.startswith("..") else []
