"""Kinds that are posted and acted on but never stored: Binding, Eviction, Scale, and the access and token reviews."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types


@functools.cache
def _virtual_resource(group: str, version: str, kind: str, like: str = "") -> ServedResource:
    """Describe a kind that is not stored. `like` is the version whose fields it has, when its own is not served."""
    node = builtin_types().node_for(group, like or version, kind)
    assert node is not None, f"{kind} is built in"
    return ServedResource(
        group=group,
        version=version,
        kind=kind,
        plural=f"{kind.lower()}s",
        schema_node=node,
        decode=functools.partial(decode_builtin, node=node),
    )


def binding_resources() -> tuple[ServedResource, ...]:
    return (_virtual_resource("", "v1", "Binding"),)


def eviction_resources() -> tuple[ServedResource, ...]:
    """Return the versions of Eviction. The server still takes the old one, though discovery does not list it."""
    return _virtual_resource("policy", "v1", "Eviction"), _virtual_resource("policy", "v1beta1", "Eviction", like="v1")


def scale_resource() -> ServedResource:
    return _virtual_resource("autoscaling", "v1", "Scale")


USER_GROUPS = ("system:masters", "system:authenticated")  # whoever gets in may do everything here


def user_info(user: str) -> Obj:
    return {"username": user, "uid": user, "groups": list(USER_GROUPS)}


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
            return {**obj, "status": _token_review_status(spec, tokens)}
        case "SelfSubjectRulesReview":
            return {**obj, "spec": {}, "status": _allow_all_rules()}
        case _:
            _check_access(kind, spec)
            return {**obj, "status": {"allowed": True}}


def _token_review_status(spec: Obj, tokens: Mapping[str, str]) -> Obj:
    if not spec.get("token"):
        raise api_errors.bad_request("token is required for TokenReview in authentication")
    user = tokens.get(spec["token"])
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user_info(user)}


def _allow_all_rules() -> Obj:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _check_access(kind: str, spec: Obj) -> None:
    errors: list[ApiFieldError] = []
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        errors.append(api_errors.invalid_value("spec.nonResourceAttributes", path, detail))
    if resource is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(api_errors.invalid_value("spec.resourceAttributes", None, detail))
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        detail = "at least one of user or group must be specified"
        errors.append(api_errors.invalid_value("spec.user", "", detail))
    if errors:
        raise api_errors.invalid("", "authorization.k8s.io", "", errors)
