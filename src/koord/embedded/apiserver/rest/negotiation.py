"""Negotiate the format of a response: JSON or YAML, the object itself, its metadata, or a Table."""

from __future__ import annotations

import functools
from typing import Literal

import msgspec

from koord.embedded.apiserver.refusal import Refusal

Shape = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
_SHAPES: tuple[Shape, ...] = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_META_GROUP = "meta.k8s.io"
DISCOVERY_GROUP = "apidiscovery.k8s.io"
_AVAILABLE = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
_STREAMS = ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"


class Form(msgspec.Struct, frozen=True):
    yaml: bool = False
    shape: Shape = ""
    version: str = "v1"  # of meta.k8s.io, for a shape


PLAIN = Form()


class _Wish(msgspec.Struct, frozen=True):
    type: str
    params: dict[str, str]
    weight: float


@functools.lru_cache(maxsize=512)
def wishes(accept: str) -> tuple[_Wish, ...]:
    """Parse an Accept header into media ranges, best first; equal weights keep their order."""
    found: list[_Wish] = []
    for entry in accept.split(","):
        kind, *rest = (part.strip() for part in entry.split(";"))
        params = dict(part.partition("=")[::2] for part in rest if part)
        try:
            weight = float(params.pop("q", "1"))
        except ValueError:
            weight = 1.0
        if kind:
            found.append(_Wish(kind.lower(), params, weight))
    found.sort(key=lambda wish: -wish.weight)
    return tuple(found)


@functools.lru_cache(maxsize=512)
def negotiate(accept: str, *, streams: bool = False) -> Form:
    """Return the first media range that can be served. Raises 406 when there is none. `streams`: the path can
    be watched.
    """
    if not accept:
        return PLAIN
    refused_shape = False
    for wish in wishes(accept):
        if wish.type in ("application/json", "*/*", "application/*"):
            yaml = False
        elif wish.type == "application/yaml":
            yaml = True
        else:
            continue
        shape = wish.params.get("as", "")
        if not shape:
            return Form(yaml=yaml)
        version = wish.params.get("v", "")
        if wish.params.get("g") == _META_GROUP and version in ("v1", "v1beta1"):
            for known in _SHAPES:
                if shape == known:
                    return Form(yaml=yaml, shape=known, version=version)
        refused_shape = True
    if refused_shape:
        raise Refusal(
            406,
            "NotAcceptable",
            "only the following media types are accepted: "
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    offered = _AVAILABLE + _STREAMS if streams else _AVAILABLE
    raise Refusal(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {offered}", details={})


@functools.lru_cache(maxsize=512)
def aggregated_discovery(accept: str) -> str:
    """Return the version of aggregated discovery that is asked for and served ("v2"), or an empty string."""
    for wish in wishes(accept):
        if wish.type == "application/json":
            if wish.params.get("as") == "APIGroupDiscoveryList" and wish.params.get("g") == DISCOVERY_GROUP:
                if wish.params.get("v") in ("v2", "v2beta1"):
                    return wish.params["v"]
            elif "as" not in wish.params:
                return ""
    return ""
