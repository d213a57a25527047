"""The validation rules of pods: QoS and priority classes, GPU requests and quotas, in Kubernetes' field error
texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from koord.values.quotation import quoted


def invalid(path: str, value: str, why: str) -> str:
    return f"{path}: Invalid value: {quoted(value)}: {why}"


def required(path: str, why: str) -> str:
    return f"{path}: Required value: {why}"


def forbidden(path: str, why: str) -> str:
    return f"{path}: Forbidden: {why}"


def joined(complaints: Iterable[str]) -> str:
    """Join the errors: a single one stands for itself, several stand in brackets, each once."""
    distinct = list(dict.fromkeys(complaints))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
