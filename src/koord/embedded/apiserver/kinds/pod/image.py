"""This module fills in kube-apiserver's defaults of pods: pull policies, volumes, containers and probes."""

from __future__ import annotations

import functools
import re

MAX_IMAGE_NAME = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])"
_IMAGE = re.compile(
    rf"(?P<name>(?:{_HOST}(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)(?::(?P<tag>[\w][\w.-]{{0,127}}))?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)


@functools.lru_cache(maxsize=4096)
def pull_policy(image: str) -> str:
    """Return the default pull policy of an image.

    An image without a tag or tagged latest may change under its name and is always pulled; an image with
    another tag, a digest or an invalid name is pulled IfNotPresent.
    """
    match = _IMAGE.fullmatch(image)
    if match is None or match["digest"] or len(match["name"]) > MAX_IMAGE_NAME:
        return "IfNotPresent"
    return "Always" if match["tag"] in (None, "latest") else "IfNotPresent"
