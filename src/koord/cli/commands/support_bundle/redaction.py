"""This module removes what must not leave a cluster from objects and logs: tokens, passwords, private keys and values
of environment variables. Pure.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

REDACTED = "REDACTED"

# Copies of whole objects as text, with everything that is removed elsewhere.
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
_MAX_DEPTH = 100  # deeper values are replaced as a whole

_WORD = r"(?:token|password|passwd|secret|credential|api[-_]?key|access[-_]?key|private[-_]?key|authorization|bearer)"
_SECRET_NAME = re.compile(rf"{_WORD}s?$|[-_.](?:key|pem)$|^(?:key|tls\.key)$", re.IGNORECASE)
# Repetitions have a limit, or start at a mark that is rare: a log may hold one word of many megabytes.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_JSON_WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?")
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,20})[\w.~+/=-]{6,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,500}(@)")
# A name that ends like a secret's, then = or :, then the value: flags, assignments, YAML, JSON, query strings, and JSON
# inside of a quoted text.
_ASSIGNMENT = re.compile(
    rf"""({_WORD}s?(?:\\{{0,8}}["'])?\s{{0,20}}[=:]\s{{0,20}})"""
    r"""(\\{1,8}["'][^"'\\]*(?:\\{1,8}["'])?|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&,;}\]]+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"""(?<![\w-])(--[\w-]{{0,60}}?{_WORD}s?\s{{1,20}})([^\s-]\S*)""", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return the text with secrets replaced. Redacting again changes nothing."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _JSON_WEB_TOKEN.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _URL_PASSWORD.sub(rf"\1{REDACTED}\2", text)
    text = _ASSIGNMENT.sub(_replace_value, text)
    return _FLAG.sub(rf"\1{REDACTED}", text)


def _replace_value(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    quote = value[0] if value[0] in "\"'" else ""
    # Authorization names the scheme first; the value that follows it is replaced as a bearer's.
    if value.lower() in ("bearer", "basic"):
        return found[0]
    return f"{name}{quote}{REDACTED}{quote}"


def redact_object(obj: Any) -> Any:
    """Return a copy of an object as of JSON without secrets, with the same fields."""
    return _redact(obj, depth=0)


def _redact(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {
            redact_text(str(key)): _redact_field(str(key), inner, depth + 1)
            for key, inner in value.items()
            if key not in _DROPPED_ANNOTATIONS and key != "managedFields"
        }
    if isinstance(value, list | tuple):
        return _redact_list(list(value), depth)
    return _redact_string(value, depth) if isinstance(value, str) else value


def _redact_list(values: list[Any], depth: int) -> list[Any]:
    """Redact a list; a flag whose value is the next item of a command line hides that."""
    made, hides = [], False
    for one in values:
        if hides and isinstance(one, str) and not one.startswith("-"):
            made.append(REDACTED)
            hides = False
            continue
        hides = isinstance(one, str) and one.startswith("-") and "=" not in one and _is_secret_name(one)
        made.append(_redact(one, depth + 1))
    return made


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if name == "env" and isinstance(value, list):
        return [_redact_variable(one, depth) for one in value]
    if name in ("stringData", "binaryData"):
        return {redact_text(str(key)): REDACTED for key in value} if isinstance(value, dict) else REDACTED
    if _is_secret_name(name) and isinstance(value, str | int | float) and not isinstance(value, bool) and value:
        return REDACTED
    return _redact(value, depth)


def _redact_variable(variable: Any, depth: int) -> Any:
    """Redact the value of an environment variable, whatever its name says; where it comes from stays."""
    if not isinstance(variable, dict):
        return REDACTED
    return {
        redact_text(str(key)): REDACTED if key == "value" else _redact(inner, depth + 1)
        for key, inner in variable.items()
        if key != "managedFields"
    }


def _redact_string(text: str, depth: int) -> str:
    """Redact a text; one that holds JSON as JSON, so that fields count as fields."""
    if text[:1] in ("{", "[") and depth < _MAX_DEPTH // 2:
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return redact_text(text)
        return redact_text(msgspec.json.encode(_redact(inner, depth + 1)).decode())
    return redact_text(text)


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None
