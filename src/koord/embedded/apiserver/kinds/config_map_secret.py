"""This module holds the strategies of ConfigMap and Secret."""

from __future__ import annotations

import base64
import json

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required, too_long
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.kinds.validators import IMMUTABLE
from koord.values import names
from koord.values.go_format import quoted

MAX_DATA_BYTES = 1 << 20
_IMMUTABLE_DATA = "field is immutable when `immutable` is set"
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
_SSH = "kubernetes.io/ssh-auth"
# Type of secret -> keys that it must hold; for one type a single one of them is enough.
_REQUIRED_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    _SSH: ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}
_BASIC = "kubernetes.io/basic-auth"
_TOKEN = "kubernetes.io/service-account-token"
_JSON_TYPES = ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson")


def _key_errors(found: Obj, path: str) -> list[ApiFieldError]:
    return [
        invalid_value(f"{path}[{key}]", key, reason) for key in sorted(found) for reason in names.config_map_key(key)
    ]


def _immutable_errors(new: Obj, old: Obj, keys: tuple[str, ...]) -> list[ApiFieldError]:
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden_field("immutable", _IMMUTABLE_DATA)]
    return errors + [
        forbidden_field(key, _IMMUTABLE_DATA) for key in keys if (new.get(key) or {}) != (old.get(key) or {})
    ]


# ConfigMap ---------------------------------------------------------------------------------------------------------


def _config_map_errors(obj: Obj) -> list[ApiFieldError]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    errors: list[ApiFieldError] = []
    for key in sorted(data):
        errors += _key_errors({key: 0}, "data")
        if key in binary:
            errors.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
    errors += _key_errors(binary, "binaryData")
    size = sum(len(value.encode()) for value in data.values()) + sum(_decoded_size(value) for value in binary.values())
    if size > MAX_DATA_BYTES:
        errors.append(too_long("", MAX_DATA_BYTES))
    return errors


def _decoded_size(text: str) -> int:
    return len(text) * 3 // 4 - text.count("=")


CONFIG_MAP = KindStrategy(
    validate_create=_config_map_errors,
    validate_update=lambda new, old: _immutable_errors(new, old, ("data", "binaryData")) + _config_map_errors(new),
)


# Secret ------------------------------------------------------------------------------------------------------------


def _default_secret(obj: Obj) -> None:
    """Move stringData, which is write-only, into data, and default the type."""
    if not obj.get("type"):
        obj["type"] = "Opaque"
    text = obj.pop("stringData", None)
    if text:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _secret_errors(obj: Obj) -> list[ApiFieldError]:
    data, kind = obj.get("data") or {}, obj.get("type", "")
    errors = _key_errors(data, "data")
    if sum(_decoded_size(value or "") for value in data.values()) > MAX_DATA_BYTES:
        errors.append(too_long("data", MAX_DATA_BYTES))
    errors += [required(f"data[{key}]") for key in _REQUIRED_SECRET_KEYS.get(kind, ()) if key not in data]
    if kind == _SSH and data.get("ssh-privatekey") == "":
        errors.append(required("data[ssh-privatekey]"))
    if kind == _BASIC and not ("username" in data or "password" in data):
        errors += [required("data[username]"), required("data[password]")]
    if kind == _TOKEN and not (obj["metadata"].get("annotations") or {}).get(SERVICE_ACCOUNT_ANNOTATION):
        errors.append(required(f"metadata.annotations[{SERVICE_ACCOUNT_ANNOTATION}]"))
    if kind in _JSON_TYPES and _REQUIRED_SECRET_KEYS[kind][0] in data:
        errors += _docker_config_errors(data[_REQUIRED_SECRET_KEYS[kind][0]], f"data[{_REQUIRED_SECRET_KEYS[kind][0]}]")
    return errors


def _docker_config_errors(encoded: str, path: str) -> list[ApiFieldError]:
    raw = base64.b64decode(encoded or "")
    try:
        found = json.loads(raw)
    except ValueError:
        reason = _go_json_error(raw.decode(errors="replace"))
        return [invalid_value(path, "<secret contents redacted>", reason)]
    if isinstance(found, dict) or found is None:
        return []
    word = {list: "array", str: "string", bool: "bool"}.get(type(found), "number")
    detail = f"json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
    return [invalid_value(path, "<secret contents redacted>", detail)]


def _go_json_error(text: str) -> str:
    try:
        json.JSONDecoder().decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "unexpected end of JSON input"
        char = quoted(text[error.pos]).strip('"')
        return f"invalid character '{char}' looking for beginning of value"
    return "unexpected end of JSON input"


def _secret_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    if new.get("type") != old.get("type"):
        errors.append(invalid_value("type", new.get("type", ""), IMMUTABLE))
    return errors + _immutable_errors(new, old, ("data",)) + _secret_errors(new)


SECRET = KindStrategy(
    default=_default_secret,
    validate_create=_secret_errors,
    validate_update=_secret_update_errors,
    selectable_fields={"type": lambda obj: str(obj.get("type", ""))},
)
