"""ConversionReview as bytes in and bytes out. Every kind of ours has one version, so there is nothing to convert yet:
an object that is asked for in its own version comes back as it is, any other wish is refused in words."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.manager.serving.review import Malformed

API_VERSION = "apiextensions.k8s.io/v1"


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: list[dict[str, Any]] = []


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


def converted(body: bytes) -> bytes | Malformed:
    """Answer a ConversionReview. Every kind has one version: its own comes back unchanged, any other is refused."""
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Malformed(f"the body is not a ConversionReview: {error}")
    if review.kind != "ConversionReview" or review.api_version != API_VERSION:
        return Malformed(f"{review.api_version} {review.kind} is not understood here; {API_VERSION} is")
    wanted = review.request.desired_api_version
    foreign = sorted({str(obj.get("apiVersion")) for obj in review.request.objects} - {wanted})
    response: dict[str, Any] = {"uid": review.request.uid, "convertedObjects": review.request.objects}
    response["result"] = {"status": "Success"}
    if foreign:
        message = f"there is no conversion from {', '.join(foreign)} to {wanted}"
        response = {"uid": review.request.uid, "result": {"status": "Failure", "message": message}}
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "ConversionReview", "response": response})
