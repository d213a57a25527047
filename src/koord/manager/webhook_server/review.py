"""AdmissionReview (v1 and v1beta1) and ConversionReview as bytes in and bytes out. Pure; handlers decide."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.admission import AdmissionRequest, AdmissionResponse, AdmissionReview
from koord.api.kubernetes.meta import Status
from koord.api.model import decode_text
from koord.values.json_text import MalformedText, json_limit_exceeded

REVIEW_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
REVIEW_KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

TOO_DEEP = "the object is nested too deeply: hundreds of lists or maps in each other cannot be decided on"
MAX_REVIEW_BYTES = 16 << 20  # an object as it is and as it was, and what surrounds them
_REVIEW_DECODER = msgspec.json.Decoder(AdmissionReview)


class DecodedReview(msgspec.Struct, frozen=True):
    api_version: str  # the answer is given in the version of the question
    request: AdmissionRequest


class MalformedReview(msgspec.Struct, frozen=True):
    why: str


class ReviewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to send back. `patch` leads from the object that was sent to the desired one."""

    allowed: bool = True
    code: int = 0
    message: str = ""
    patch: Sequence[dict[str, Any]] = ()
    warnings: tuple[str, ...] = ()


def decode_review(body: bytes) -> DecodedReview | MalformedReview:
    if (exceeded := json_limit_exceeded(body, max_bytes=MAX_REVIEW_BYTES)) is not None:
        return MalformedReview(f"the body {exceeded}")
    try:
        review = _REVIEW_DECODER.decode(body)
    except msgspec.DecodeError as error:  # a wrong type is a ValidationError, which is one of these
        return MalformedReview(f"the body is not an AdmissionReview: {error}")
    except UnicodeDecodeError as error:
        return MalformedReview(f"the body is not UTF-8: {error}")
    except RecursionError:
        return MalformedReview(TOO_DEEP)
    if review.kind != REVIEW_KIND or review.api_version not in REVIEW_API_VERSIONS:
        asked = f"{review.api_version or '<no apiVersion>'} {review.kind or '<no kind>'}"
        return MalformedReview(
            f"{asked} is not understood here; AdmissionReview of {' or '.join(REVIEW_API_VERSIONS)} is"
        )
    request = review.request
    if request is None:
        return MalformedReview("the AdmissionReview has no request")
    if not request.uid:
        return MalformedReview("the request has no uid")
    if request.operation not in OPERATIONS:
        return MalformedReview(f"operation {request.operation!r} is none of {', '.join(OPERATIONS)}")
    if request.operation in ("CREATE", "UPDATE") and request.object is None:
        return MalformedReview(f"a {request.operation} without an object")
    return DecodedReview(review.api_version, request)


def encode_review(review: DecodedReview, answer: ReviewAnswer) -> bytes:
    patch = base64.b64encode(msgspec.json.encode(list(answer.patch))).decode() if answer.patch else None
    status = None
    if not answer.allowed or answer.message:
        status = Status(status="" if answer.allowed else "Failure", code=answer.code, message=answer.message)
    response = AdmissionResponse(
        uid=review.request.uid,
        allowed=answer.allowed,
        status=status,
        patch=patch,
        patch_type="JSONPatch" if patch else None,
        warnings=answer.warnings,
    )
    return msgspec.json.encode(AdmissionReview(api_version=review.api_version, kind=REVIEW_KIND, response=response))


def encode_rejection(why: str) -> bytes:
    """Return the body of an HTTP 400: a denying review, for callers that show it."""
    response = AdmissionResponse(uid="", allowed=False, status=Status(status="Failure", code=400, message=why))
    return msgspec.json.encode(AdmissionReview(api_version=REVIEW_API_VERSIONS[0], kind=REVIEW_KIND, response=response))


CONVERSION_API_VERSION = "apiextensions.k8s.io/v1"


class _ConversionRequest(msgspec.Struct, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: list[dict[str, Any]] = []


class _ConversionReview(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _ConversionRequest


def convert_review(body: bytes) -> bytes | MalformedReview:
    """Answer a ConversionReview. Every kind has one version: its own comes back unchanged, any other is refused."""
    review = decode_text(body, _ConversionReview, max_bytes=MAX_REVIEW_BYTES)
    if isinstance(review, MalformedText):
        return MalformedReview(f"the body is not a ConversionReview: {review}")
    if review.kind != "ConversionReview" or review.api_version != CONVERSION_API_VERSION:
        return MalformedReview(
            f"{review.api_version} {review.kind} is not understood here; {CONVERSION_API_VERSION} is"
        )
    wanted = review.request.desired_api_version
    foreign = sorted({str(obj.get("apiVersion")) for obj in review.request.objects} - {wanted})
    response: dict[str, Any] = {"uid": review.request.uid, "convertedObjects": review.request.objects}
    response["result"] = {"status": "Success"}
    if foreign:
        message = f"there is no conversion from {', '.join(foreign)} to {wanted}"
        response = {"uid": review.request.uid, "result": {"status": "Failure", "message": message}}
    return msgspec.json.encode({"apiVersion": CONVERSION_API_VERSION, "kind": "ConversionReview", "response": response})
