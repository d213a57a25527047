"""These tests check that every kind with every field, encoded by Kubernetes' Go types, decodes to their JSON."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.protobuf.envelope import content, open_envelope
from koord.embedded.apiserver.protobuf.message import messages
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.apiserver.schema.decoding import decode
from tests.embedded.apiserver.protobuf import filled

TYPES: dict[str, Any] = json.loads(gzip.decompress(Path(__file__).with_name("types.json.gz").read_bytes()))


@pytest.mark.parametrize("name", TYPES)
def test_reads_what_go_wrote(name: str) -> None:
    envelope = open_envelope(base64.b64decode(TYPES[name]["protobuf"]), "", "")
    group, _, version = envelope.api_version.rpartition("/")
    node = builtin().node_for(group, version, envelope.kind)
    assert node is not None
    found = decode(content(envelope), node)
    assert (found.error, found.unknown) == ("", ())
    # As text, because 1, 1.0 and True are equal otherwise.
    assert json.dumps(found.value, sort_keys=True) == json.dumps(TYPES[name]["json"], sort_keys=True)


def test_no_served_kind_is_left_out() -> None:
    kinds = {filled.name_of(*kind) for kind in filled.kinds()}
    assert {name.rpartition(" ")[0] for name in TYPES} == kinds
    for group, version, kind in filled.kinds():
        assert (builtin().definition_name(group, version, kind) or "") in messages()


def test_table_and_field_table_name_the_same_fields() -> None:
    for name in builtin().names():
        if name in messages() and messages().of(name).form is None:
            node = builtin().definition(name)
            assert _names(name) | {"kind", "apiVersion"} == set(node.fields) | {"kind", "apiVersion"}, name


def _names(definition: str) -> set[str]:
    found: set[str] = set()
    for field in messages().of(definition).fields.values():
        found |= {field.name} if field.name else _names(field.message)
    return found
