"""These ConfigMaps in protobuf are rejected by every server, with kube-apiserver's message for each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embedded.apiserver.protobuf.wire_builders import MAGIC, envelope, named, number, varint

UNRECOGNIZED = "the object provided is unrecognized (must be of type ConfigMap): "
PREFIX = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
SCHEME = 'in scheme "pkg/runtime/scheme.go:111"'

REFUSED: list[Any] = [
    pytest.param(b"", UNRECOGNIZED + "empty data (<empty>)", id="empty"),
    pytest.param(b'{"a":1}', UNRECOGNIZED + PREFIX + ' ({"a":1})', id="json"),
    pytest.param(MAGIC, UNRECOGNIZED + "empty body (6b387300)", id="nothing-after-the-prefix"),
    pytest.param(MAGIC + b"\x0a\xff", UNRECOGNIZED + "unexpected EOF (6b3873000aff)", id="cut"),
    pytest.param(
        MAGIC + b"\x08\x01",
        UNRECOGNIZED + "proto: wrong wireType = 0 for field TypeMeta (6b3873000801)",
        id="envelope-of-numbers",
    ),
    pytest.param(
        MAGIC + b"\x00\x01",
        UNRECOGNIZED + "proto: Unknown: illegal tag 0 (wire type 0) (6b3873000001)",
        id="envelope-field-zero",
    ),
    pytest.param(
        MAGIC + varint(9 << 3 | 6), UNRECOGNIZED + "proto: illegal wireType 6 (6b3873004e)", id="envelope-wire-type"
    ),
    pytest.param(
        envelope("v1", "ConfigMap", number(1, 1)),
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: proto: wrong wireType = 0 for field ObjectMeta',
        id="content-of-numbers",
    ),
    pytest.param(
        envelope("v1", "Secret", named("x")),
        'Secret in version "v1" cannot be handled as a ConfigMap: '
        "converting (v1.Secret) to (core.ConfigMap): unknown conversion",
        id="other-kind",
    ),
    pytest.param(
        envelope("apps/v1", "Deployment", named("x")),
        'Deployment in version "v1" cannot be handled as a ConfigMap: '
        "converting (v1.Deployment) to (core.ConfigMap): unknown conversion",
        id="other-group",
    ),
    pytest.param(
        envelope("v1", "Nothing", named("x")),
        'Nothing in version "v1" cannot be handled as a ConfigMap: '
        f'no kind "Nothing" is registered for version "v1" {SCHEME}',
        id="no-such-kind",
    ),
    pytest.param(
        envelope("v7", "ConfigMap", named("x")),
        'ConfigMap in version "v7" cannot be handled as a ConfigMap: '
        f'no kind "ConfigMap" is registered for version "v7" {SCHEME}',
        id="no-such-version",
    ),
]
