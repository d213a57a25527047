"""These tests check that every kind with every field, encoded by Kubernetes' Go types, decodes to their JSON."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.protobuf.messages import decode_envelope, message_table, open_envelope
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from tests.embedded.apiserver.protobuf import filled_objects

TYPES: dict[str, Any] = json.loads(gzip.decompress(Path(__file__).with_name("types.json.gz").read_bytes()))


@pytest.mark.parametrize("name", TYPES)
def test_reads_what_go_wrote(name: str) -> None:
    envelope = open_envelope(base64.b64decode(TYPES[name]["protobuf"]), "", "")
    group, _, version = envelope.api_version.rpartition("/")
    node = builtin_types().node_for(group, version, envelope.kind)
    assert node is not None
    found = decode_builtin(decode_envelope(envelope), node)
    assert (found.error, found.unknown) == ("", ())
    # As text, because 1, 1.0 and True are equal otherwise.
    assert json.dumps(found.value, sort_keys=True) == json.dumps(TYPES[name]["json"], sort_keys=True)


def test_no_served_kind_is_left_out() -> None:
    kinds = {filled_objects.name_of(*kind) for kind in filled_objects.kinds()}
    assert {name.rpartition(" ")[0] for name in TYPES} == kinds
    for group, version, kind in filled_objects.kinds():
        assert (builtin_types().definition_name(group, version, kind) or "") in message_table()


def test_table_and_field_table_name_the_same_fields() -> None:
    for name in builtin_types().definition_names():
        if name in message_table() and message_table().message_type(name).form is None:
            node = builtin_types().definition_node(name)
            assert _names(name) | {"kind", "apiVersion"} == set(node.fields) | {"kind", "apiVersion"}, name


def _names(definition: str) -> set[str]:
    found: set[str] = set()
    for field in message_table().message_type(definition).fields.values():
        found |= {field.name} if field.name else _names(field.message)
    return found
