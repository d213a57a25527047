"""Secrets do not survive redaction, wherever they stand; everything else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cli.commands.support_bundle.collection import REDACTED, redact_object, redact_text

SECRET = "s3cr3tS4uce0123456789"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----"
JWT = f"eyJhbGciOiJSUzI1NiJ9.{SECRET}.{SECRET}"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        KEY.removesuffix("-----END RSA PRIVATE KEY-----"),
        JWT,
        f"Authorization: Bearer {SECRET}",
        f"authorization=Basic {SECRET}",
        f"https://admin:{SECRET}@registry.example.org/v2",
        f"--token={SECRET} --v=4",
        f"--bearer-token {SECRET}",
        f'{{"client_secret": "{SECRET}", "a": 1}}',
        f"password: {SECRET}",
        f'body="{{\\"token\\":\\"{SECRET}\\"}}"',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"GET /x?access_token={SECRET}&y=1",
        f"my_passwd = '{SECRET}'",
    ],
)
def test_a_secret_in_a_text_is_replaced(text: str) -> None:
    done = redact_text(f"before {text} after")
    assert SECRET not in done
    assert REDACTED in done
    assert done.startswith("before ")
    assert redact_text(done) == done


@pytest.mark.parametrize(
    "text",
    [
        "pod koordlet-x is not ready: secretName web-certs",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "cpu.max 100000 100000",
        "https://10.0.0.1:6443/api/v1",
        "key value pairs, tokens of a lexer",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redact_text(text) == text


def test_variables_keep_their_names_and_sources() -> None:
    env = [
        {"name": "MODE", "value": SECRET},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        SECRET,
    ]
    found = redact_object({"spec": {"containers": [{"name": "c", "env": env, "args": ["--v=4", "--token", SECRET]}]}})
    assert found["spec"]["containers"][0] == {
        "name": "c",
        "env": [{"name": "MODE", "value": REDACTED}, env[1], REDACTED],
        "args": ["--v=4", "--token", REDACTED],
    }


def test_copies_of_objects_in_annotations_are_dropped() -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "a": "b"}
    found = redact_object({"metadata": {"name": "x", "annotations": last, "managedFields": [SECRET]}})
    assert found == {"metadata": {"name": "x", "annotations": {"a": "b"}}}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="abc xyz", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list("abcdef")), inner, max_size=3),
    max_leaves=10,
)
hiding = st.sampled_from(
    [
        {"env": [{"name": "X", "value": SECRET}]},
        {"token": SECRET},
        {"data": {"tls.key": SECRET}},
        {"data": {"config": json.dumps({"spec": {"env": [{"name": "X", "value": SECRET}]}})}},
        {"data": {"kubeconfig": f"users:\n- user: {{token: {SECRET}}}"}},
        {"stringData": {"anything": SECRET}},
        {"args": [f"--password={SECRET}"]},
        {"command": ["--api-key", SECRET]},
        {"message": f"dial https://u:{SECRET}@host failed"},
        {"text": KEY},
        [JWT],
    ]
)


def planted(value: Any, secret: Any, path: list[int]) -> Any:
    """Put the secret somewhere into the value."""
    if path and isinstance(value, dict) and value:
        key = sorted(value)[path[0] % len(value)]
        return {**value, key: planted(value[key], secret, path[1:])}
    if path and isinstance(value, list) and value:
        at = path[0] % len(value)
        return [*value[:at], planted(value[at], secret, path[1:]), *value[at + 1 :]]
    return {"was": value, "here": secret}


@settings(max_examples=200, deadline=None)
@given(plain, hiding, st.lists(st.integers(0, 9), max_size=5))
def test_no_secret_survives_anywhere(value: Any, secret: Any, path: list[int]) -> None:
    found = redact_object(planted(value, secret, path))
    assert SECRET not in json.dumps(found)
    assert redact_object(found) == found


@settings(max_examples=100, deadline=None)
@given(plain)
def test_what_holds_no_secret_stays_as_it_is(value: Any) -> None:
    assert redact_object(value) == value


def test_nesting_without_end_is_cut() -> None:
    deep: Any = SECRET
    for _ in range(300):
        deep = [deep]
    assert SECRET not in json.dumps(redact_object(deep))
