"""Names, labels and keys are refused in the very sentences of an API server."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values import names

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
DNS1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
KEY = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
HEADER = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)
RELAXED_ENV = "a valid environment variable name must consist only of printable ASCII characters other than '='"

Rule = Callable[[str], list[str]]


@pytest.mark.parametrize(
    ("rule", "text", "reasons"),
    [
        pytest.param(names.dns1123_label, "my-name", [], id="label"),
        pytest.param(names.dns1123_label, "1", [], id="label-of-a-digit"),
        pytest.param(names.dns1123_label, "a" * 63, [], id="longest-label"),
        pytest.param(names.dns1123_label, "a" * 64, ["must be no more than 63 characters"], id="label-too-long"),
        pytest.param(names.dns1123_label, "a.b", ["must not contain dots"], id="label-with-dot"),
        pytest.param(names.dns1123_label, "", [LABEL], id="label-empty"),
        pytest.param(names.dns1123_label, "-a", [LABEL], id="label-starts-with-dash"),
        pytest.param(names.dns1123_label, "a-", [LABEL], id="label-ends-with-dash"),
        pytest.param(names.dns1123_label, "A", [LABEL], id="label-upper-case"),
        pytest.param(names.dns1123_label, "a\n", [LABEL], id="label-with-newline"),
        pytest.param(
            names.dns1123_label, "é" * 32, ["must be no more than 63 characters", LABEL], id="label-length-is-in-bytes"
        ),
        pytest.param(names.dns1123_subdomain, "a.b-c.d", [], id="subdomain"),
        pytest.param(names.dns1123_subdomain, "a..b", [SUBDOMAIN], id="subdomain-empty-label"),
        pytest.param(names.dns1123_subdomain, "a.", [SUBDOMAIN], id="subdomain-ends-with-dot"),
        pytest.param(names.dns1123_subdomain, "a_b", [SUBDOMAIN], id="subdomain-underscore"),
        pytest.param(
            names.dns1123_subdomain, "a" * 254, ["must be no more than 253 characters"], id="subdomain-too-long"
        ),
        pytest.param(names.dns1035_label, "a1", [], id="dns1035"),
        pytest.param(names.dns1035_label, "1a", [DNS1035], id="dns1035-starts-with-digit"),
        pytest.param(names.dns1035_label, "a" * 64, ["must be no more than 63 characters"], id="dns1035-too-long"),
        pytest.param(names.qualified_name, "app", [], id="key"),
        pytest.param(names.qualified_name, "Example_1.x", [], id="key-any-case"),
        pytest.param(names.qualified_name, "koordinator.sh/qosClass", [], id="key-with-prefix"),
        pytest.param(names.qualified_name, "", ["name part must be non-empty", NAME_PART], id="key-empty"),
        pytest.param(names.qualified_name, "a/", ["name part must be non-empty", NAME_PART], id="key-without-name"),
        pytest.param(names.qualified_name, "/a", ["prefix part must be non-empty"], id="key-without-prefix"),
        pytest.param(names.qualified_name, "A/a", [f"prefix part {SUBDOMAIN}"], id="key-prefix-upper-case"),
        pytest.param(names.qualified_name, "a/b/c", [KEY], id="key-two-slashes"),
        pytest.param(names.qualified_name, "-a", [NAME_PART], id="key-starts-with-dash"),
        pytest.param(names.qualified_name, "a" * 64, ["name part must be no more than 63 bytes"], id="key-too-long"),
        pytest.param(
            names.qualified_name,
            "a" * 254 + "/a",
            ["prefix part must be no more than 253 bytes"],
            id="key-prefix-too-long",
        ),
        pytest.param(names.label_value, "", [], id="value-empty"),
        pytest.param(names.label_value, "My_Value.1", [], id="value"),
        pytest.param(names.label_value, "a b", [VALUE], id="value-with-space"),
        pytest.param(names.label_value, "-", [VALUE], id="value-of-a-dash"),
        pytest.param(names.label_value, "a" * 64, ["must be no more than 63 bytes"], id="value-too-long"),
        pytest.param(names.port_name, "http-2", [], id="port"),
        pytest.param(
            names.port_name,
            "-8080--",
            [
                "must contain at least one letter (a-z)",
                "must not contain consecutive hyphens",
                "must not begin or end with a hyphen",
            ],
            id="port-all-wrong",
        ),
        pytest.param(
            names.port_name,
            "Way-Too-Long-Name",
            [
                "must be no more than 15 characters",
                "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            ],
            id="port-too-long",
        ),
        pytest.param(names.relaxed_env_var_name, "1 VAR!", [], id="relaxed-env"),
        pytest.param(names.relaxed_env_var_name, "a=b", [RELAXED_ENV], id="relaxed-env-equals"),
        pytest.param(
            names.relaxed_env_var_name, "", ["environment variable name must be non-empty"], id="relaxed-env-empty"
        ),
        pytest.param(names.config_map_key, "key.name", [], id="config-key"),
        pytest.param(names.config_map_key, "a/b", [CONFIG_KEY], id="config-key-slash"),
        pytest.param(names.config_map_key, ".", ["must not be '.'"], id="config-key-dot"),
        pytest.param(names.config_map_key, "..", ["must not be '..'"], id="config-key-dots"),
        pytest.param(names.http_header_name, "X-Header", [], id="header"),
        pytest.param(names.http_header_name, "X_Header", [HEADER], id="header-underscore"),
    ],
)
def test_rules(rule: Rule, text: str, reasons: list[str]) -> None:
    assert rule(text) == reasons


texts = st.text(st.sampled_from("ab09-._/AZé\n"), max_size=70)


@given(texts)
def test_every_refusal_quotes_an_expression_that_truly_refuses(text: str) -> None:
    for rule in (names.dns1123_subdomain, names.dns1035_label, names.label_value, names.config_map_key):
        for reason in rule(text):
            if quoted := re.search(r"regex used for validation is '(.*)'\)", reason):
                assert not re.fullmatch(quoted[1], text)


@given(texts)
def test_rules_nest(text: str) -> None:
    """Every DNS-1035 label is a DNS-1123 label, which is a subdomain, a label value and a label key."""
    if not names.dns1035_label(text):
        assert names.dns1123_label(text) == []
    if not names.dns1123_label(text):
        assert names.dns1123_subdomain(text) == names.label_value(text) == names.qualified_name(text) == []
