"""ValidatingAdmissionPolicies are enforced where they are bound, and refused where they cannot be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.embedded.apiserver.admission.admitted_objects import CONFIG_MAPS, PODS, config_map, pod
from tests.embedded.apiserver.rest_harness import Api, started

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
Obj = dict[str, Any]
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = await started(seed=5)
    yield made
    await made.server.close()


def policy(*expressions: str | Obj, **spec: Any) -> Obj:
    validations = [{"expression": one} if isinstance(one, str) else one for one in expressions]
    wanted = {"matchConstraints": {"resourceRules": [RULE]}, "validations": validations}
    return {"metadata": {"name": "p"}, "spec": {**wanted, **spec}}


async def bind(api: Api, made: Obj, **binding: Any) -> None:
    status, body = await api.post(POLICIES, made)
    assert status == 201, body
    spec = {"policyName": "p", "validationActions": ["Deny"], **binding}
    status, body = await api.post(BINDINGS, {"metadata": {"name": "b"}, "spec": spec})
    assert status == 201, body


async def test_a_request_that_fails_an_expression_is_denied_in_its_words(api: Api) -> None:
    await bind(api, policy({"expression": "object.data.k != 'v'", "messageExpression": "'k is ' + object.data.k"}))
    status, body = await api.post(CONFIG_MAPS, config_map())
    said = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: k is v"
    assert (status, body["reason"]) == (422, "Invalid")
    assert body["message"] == f'configmaps "x" is forbidden: {said}'
    assert body["details"]["causes"] == [{"message": said}]
    assert (await api.post(CONFIG_MAPS, {"metadata": {"name": "y"}, "data": {"k": "w"}}))[0] == 201
    assert (await api.post(PODS, pod()))[0] == 201  # which the rules do not name


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ({"expression": "false", "message": "never"}, "never"),
        ({"expression": "false"}, "failed expression: false"),
        ({"expression": "false", "message": "plain", "messageExpression": "'x' + 1"}, "plain"),
        (
            {"expression": "object.data.nothing == 'a'"},
            "expression 'object.data.nothing == 'a'' resulted in error: no such key: nothing",
        ),
    ],
)
async def test_messages(api: Api, validation: Obj, message: str) -> None:
    await bind(api, policy(validation))
    _, body = await api.post(CONFIG_MAPS, config_map())
    assert body["message"].endswith(f"denied request: {message}")


async def test_reason_decides_the_code(api: Api) -> None:
    await bind(api, policy({"expression": "false", "reason": "Forbidden"}))
    status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["reason"]) == (403, "Forbidden")


async def test_variables_and_match_conditions(api: Api) -> None:
    await bind(
        api,
        policy(
            "variables.long",
            variables=[
                {"name": "length", "expression": "size(object.data.k)"},
                {"name": "long", "expression": "variables.length > 3"},
            ],
            matchConditions=[{"name": "named", "expression": "object.metadata.name.startsWith('checked')"}],
        ),
    )
    assert (await api.post(CONFIG_MAPS, config_map("free")))[0] == 201
    assert (await api.post(CONFIG_MAPS, config_map("checked")))[0] == 422
    assert (await api.post(CONFIG_MAPS, {"metadata": {"name": "checked"}, "data": {"k": "long"}}))[0] == 201


async def test_old_object_request_and_namespace(api: Api) -> None:
    await bind(
        api,
        policy(
            "request.operation == 'CREATE' || oldObject.data.k == object.data.k",
            "namespaceObject.metadata.name == 'default' && request.namespace == 'default'",
        ),
    )
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201
    assert (await api.patch(f"{CONFIG_MAPS}/x", {"data": {"more": "1"}}))[0] == 200
    assert (await api.patch(f"{CONFIG_MAPS}/x", {"data": {"k": "other"}}))[0] == 422


async def test_failures_may_be_ignored_and_told_as_warnings(api: Api) -> None:
    await bind(api, policy("object.data.nothing == 'a'", failurePolicy="Ignore"))
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201
    await api.patch(f"{POLICIES}/p", {"spec": {"validations": [{"expression": "false", "message": "bad"}]}})
    await api.patch(f"{BINDINGS}/b", {"spec": {"validationActions": ["Warn", "Audit"]}})
    assert (await api.post(CONFIG_MAPS, config_map("y")))[0] == 201
    assert "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': bad" in api.warning


async def test_a_binding_narrows_its_policy(api: Api) -> None:
    match = {"objectSelector": {"matchLabels": {"checked": "yes"}}}
    await bind(api, policy("false"), matchResources=match)
    assert (await api.post(CONFIG_MAPS, config_map("a")))[0] == 201
    assert (await api.post(CONFIG_MAPS, config_map("b", {"checked": "yes"})))[0] == 422
    excluded = {"excludeResourceRules": [{**RULE, "resourceNames": ["c"]}], **match}
    await api.patch(f"{BINDINGS}/b", {"spec": {"matchResources": excluded}})
    assert (await api.post(CONFIG_MAPS, config_map("c", {"checked": "yes"})))[0] == 201
    assert (await api.post(CONFIG_MAPS, config_map("d", {"checked": "yes"})))[0] == 422


async def test_parameters(api: Api) -> None:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    made = policy("!has(object.data.n) || int(object.data.n) <= int(params.data.most)", paramKind=kind)
    await api.post(CONFIG_MAPS, {"metadata": {"name": "limits"}, "data": {"most": "5"}})
    await bind(api, made, paramRef={"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"})
    assert (await api.post(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"n": "5"}}))[0] == 201
    assert (await api.post(CONFIG_MAPS, {"metadata": {"name": "b"}, "data": {"n": "6"}}))[0] == 422
    assert (await api.delete(f"{CONFIG_MAPS}/limits"))[0] == 200
    status, body = await api.post(CONFIG_MAPS, {"metadata": {"name": "c"}})
    assert status == 422
    assert "no params found" in body["message"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (policy("objct.a"), "compilation failed: undeclared reference to 'objct' (in container '')"),
        (policy("1 +"), "compilation failed: Syntax error"),
        (policy("authorizer.path('/x')"), "cannot ask for authorization here"),
        (policy(), "validations or auditAnnotations must contain at least one item"),
        (policy("true", matchConstraints=None), "spec.matchConstraints: Required value"),
    ],
)
async def test_what_cannot_be_enforced_is_refused(api: Api, made: Obj, why: str) -> None:
    status, body = await api.post(POLICIES, made)
    assert status == 422
    assert why in body["message"]
