"""These functions open the envelope of a Kubernetes protobuf body: the prefix, the type, and the message."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver.protobuf.decoding import decode
from koord.embedded.apiserver.protobuf.form import UNKNOWN
from koord.embedded.apiserver.protobuf.message import messages
from koord.embedded.apiserver.protobuf.wire import Malformed
from koord.embedded.apiserver.schema.builtin import META, builtin

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
# Clients that are older than policy/v1 evict with it still; its fields are the same.
_UNSERVED = {("policy", "v1beta1", "Eviction"): "io.k8s.api.policy.v1beta1.Eviction"}


class Envelope(msgspec.Struct, frozen=True):
    """An Envelope is the decoded runtime.Unknown of a body: its type and its raw message."""
    api_version: str
    kind: str
    raw: bytes

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


def open_envelope(body: bytes, api_version: str, kind: str) -> Envelope:
    """Open a body; `api_version` and `kind` apply where it does not say its own. Raises MalformedProtobuf."""
    if not body:
        raise Malformed("empty data")
    if not body.startswith(MAGIC):
        raise Malformed(
            f"provided data does not appear to be a protobuf message, expected prefix [{' '.join(map(str, MAGIC))}]"
        )
    if len(body) == len(MAGIC):
        raise Malformed("empty body")
    found = decode(UNKNOWN, body[len(MAGIC) :])
    type_meta = found.get("typeMeta", {})
    said = type_meta.get("apiVersion", "")
    if not said or said.count("/") > 1 or said.endswith("/"):
        said = api_version
    return Envelope(said, type_meta.get("kind") or kind, found.get("raw", b""))


def content(envelope: Envelope) -> dict[str, Any]:
    """Decode the object inside as Go would write it to JSON; raises MalformedProtobuf.

    A kind without a message comes back as its type alone: the caller that expects another kind reports it.
    """
    group, _, version = envelope.api_version.rpartition("/")
    definition = _definition(group, version, envelope.kind)
    named = {"kind": envelope.kind, "apiVersion": envelope.api_version}
    if definition is None or definition not in messages():
        return named
    return {**named, **decode(definition, envelope.raw)}


def _definition(group: str, version: str, kind: str) -> str | None:
    if kind == "DeleteOptions":  # one type, known in every group, even in those that nobody serves
        return META + kind
    return builtin().definition_name(group, version, kind) or _UNSERVED.get((group, version, kind))
