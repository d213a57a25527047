"""Kubernetes' libraries of CEL have the values here that a real kube-apiserver gives them.

One policy holds all expressions, each compared with the value that koord.cel gives. Its binding warns: every expression
that is false or fails is a warning of one request.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp

from tests.cel.test_libraries import VALUES
from tools.controlplane import ControlPlane

GROUP = "/apis/admissionregistration.k8s.io/v1"
SENTINEL = "the policy is in force"
_NAMES = (("m", r"(?=[.\[])", "dyn({'a': {'b': 1}})"), ("l", r"(?=\.)", "[3, 1, 2]"))


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def without_variables(text: str) -> str:
    """Return the expression with the values of the variables in their places: a policy has none of these names."""
    for name, follows, value in _NAMES:
        text = value.join(re.split(rf"(?<![\w.']){name}{follows}", text))
    return text


async def test_libraries_have_equal_values(plane: ControlPlane) -> None:
    rules = [
        {"expression": f"dyn({without_variables(text)}) == dyn({literal(expected)})", "message": f"differs: {text}"}
        for text, expected in VALUES
    ]
    every = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    policy = {
        "metadata": {"name": "cel-libraries"},
        "spec": {
            "matchConstraints": {"resourceRules": [every]},
            "validations": [*rules, {"expression": "false", "message": SENTINEL}],
        },
    }
    binding = {
        "metadata": {"name": "cel-libraries"},
        "spec": {"policyName": "cel-libraries", "validationActions": ["Warn"]},
    }
    headers = {"Authorization": f"Bearer {plane.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=plane.ssl())) as session:

        async def post(path: str, body: Any) -> tuple[int, Any, list[str]]:
            async with session.post(plane.url + path, json=body) as answer:
                return answer.status, await answer.json(), list(answer.headers.getall("Warning", ()))

        try:
            for path, body in (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)):
                status, answer, _ = await post(f"{GROUP}/{path}", body)
                assert status == 201, answer["message"]
            told: list[str] = []
            for _ in range(120):
                _, _, told = await post("/api/v1/namespaces/default/configmaps?dryRun=All", {"metadata": {"name": "x"}})
                if told:
                    break
                await asyncio.sleep(0.5)  # the real server follows its own policies with a delay
            assert [text for text in told if SENTINEL not in text] == []
            assert told
        finally:
            for path in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
                await session.delete(f"{plane.url}{GROUP}/{path}/cel-libraries")
