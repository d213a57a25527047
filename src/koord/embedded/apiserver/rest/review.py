"""Answer reviews, which are posted like objects. Whoever has a token may do everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.refusal import FieldError

Obj = dict[str, Any]
GROUPS = ("system:masters", "system:authenticated")


def user_info(user: str) -> Obj:
    return {"username": user, "uid": user, "groups": list(GROUPS)}


def answer_review(kind: str, obj: Obj, user: str, tokens: Mapping[str, str], now: str) -> Obj:
    """Return the posted review with its status. `tokens` maps bearer tokens to users."""
    spec = obj.get("spec") or {}
    match kind:
        case "SelfSubjectReview":
            return {
                "kind": kind,
                "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"creationTimestamp": now},
                "status": {"userInfo": user_info(user)},
            }
        case "TokenReview":
            return {**obj, "status": _token_status(spec, tokens)}
        case "SelfSubjectRulesReview":
            return {**obj, "spec": {}, "status": _every_rule()}
        case _:
            _check_access(kind, spec)
            return {**obj, "status": {"allowed": True}}


def _token_status(spec: Obj, tokens: Mapping[str, str]) -> Obj:
    if not spec.get("token"):
        raise refusal.bad_request("token is required for TokenReview in authentication")
    user = tokens.get(spec["token"])
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user_info(user)}


def _every_rule() -> Obj:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _check_access(kind: str, spec: Obj) -> None:
    errors: list[FieldError] = []
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        errors.append(refusal.invalid_value("spec.nonResourceAttributes", path, detail))
    if resource is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(refusal.invalid_value("spec.resourceAttributes", None, detail))
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        detail = "at least one of user or group must be specified"
        errors.append(refusal.invalid_value("spec.user", "", detail))
    if errors:
        raise refusal.invalid("", "authorization.k8s.io", "", errors)
