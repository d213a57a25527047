"""koordinator.sh/oom-score-adj and its per-container form: what the koordlet writes into oom_score_adj."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.annotations.number import decimal
from koord.api.protocol import A_OOM_SCORE_ADJ, A_OOM_SCORE_ADJ_SPEC

LOWEST, HIGHEST = -1000, 1000


def parse(annotations: Mapping[str, str]) -> int | Malformed | None:
    """Parse the pod's own oom_score_adj."""
    text = annotations.get(A_OOM_SCORE_ADJ)
    if text is None:
        return None
    value = decimal(text)
    if value is None or not LOWEST <= value <= HIGHEST:
        return Malformed(A_OOM_SCORE_ADJ, f"{text!r} is not an integer from {LOWEST} to {HIGHEST}")
    return value


def dump(value: int) -> str:
    return str(value)


def parse_containers(annotations: Mapping[str, str]) -> dict[str, int] | Malformed | None:
    """Parse the values by container; each overrides the pod's."""
    return read(annotations, A_OOM_SCORE_ADJ_SPEC, dict[str, int])


def dump_containers(values: Mapping[str, int]) -> str:
    return written(values)


def for_container(annotations: Mapping[str, str], container: str) -> int | Malformed | None:
    """Return the value of one container: its own entry, else the pod's value."""
    own = parse_containers(annotations)
    if isinstance(own, Malformed):
        return own
    if own is None or container not in own:
        return parse(annotations)
    value = own[container]
    if not LOWEST <= value <= HIGHEST:
        return Malformed(A_OOM_SCORE_ADJ_SPEC, f"{container}: {value} is not from {LOWEST} to {HIGHEST}")
    return value
