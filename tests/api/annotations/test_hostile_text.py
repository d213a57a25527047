"""No text in an annotation or a label makes a codec raise: not deep nesting, not huge values, not broken Unicode."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import koord.api.annotations
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.pod_codecs import parse_soft_eviction
from koord.api.koordinator.protocol import A_SOFT_EVICTION

HOSTILE = {
    "10000-lists": "[" * 10_000 + "]" * 10_000,
    "1000000-lists": "[" * 1_000_000 + "]" * 1_000_000,
    "10000-maps": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "10000-levels-in-an-unknown-field": '{"unknown":' + "[" * 10_000 + "]" * 10_000 + "}",
    "900-levels": "[" * 900 + "]" * 900,
    "unfinished": "[" * 10_000,
    "a-huge-string": '"' + "x" * (5 << 20) + '"',
    "a-huge-text": "x" * (5 << 20),
    "a-huge-integer": "1" * 10_000,
    "a-huge-integer-inside": '{"cpu": ' + "9" * 10_000 + "}",
    "a-huge-exponent": "1e999999999",
    "the-largest-float": "1.7e308",
    "a-huge-exponent-inside": '{"cpu": "1e999999999"}',
    "duplicate-keys": '{"cpu": "1", "cpu": "2"}',
    "not-a-number": '{"cpu": NaN}',
    "infinite": "Infinity",
    "half-a-surrogate-pair": '"\\ud800"',
    "half-a-surrogate-pair-in-the-text": '{"cpu": "\ud800"}',
    "nul": "\x00",
    "null": "null",
    "empty": "",
}


class Everywhere(dict[str, str]):
    """An object's annotations, with the same text under every key."""

    def __init__(self, text: str) -> None:
        super().__init__({"any": text})
        self._text = text

    def get(self, key: str, default: Any = None) -> Any:
        return self._text

    def __getitem__(self, key: str) -> str:
        return self._text

    def __contains__(self, key: object) -> bool:
        return True


def codecs() -> Iterator[tuple[str, Callable[[Any], object]]]:
    for module in pkgutil.iter_modules(koord.api.annotations.__path__, "koord.api.annotations."):
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            parameters = list(inspect.signature(function).parameters.values())
            required = [p for p in parameters if p.default is p.empty]
            if (
                function.__module__ == module.name
                and not name.startswith("_")
                and len(required) == 1
                and str(required[0].annotation).startswith("Mapping[str, str]")
            ):
                yield name, function


CODECS = dict(codecs())


def test_the_codecs_are_found() -> None:
    assert len(CODECS) > 40


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_makes_a_codec_raise(text: str) -> None:
    for function in CODECS.values():
        function(Everywhere(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(HOSTILE["10000-maps"], "is nested too deeply: 100 levels are allowed", id="deep"),
        pytest.param(HOSTILE["a-huge-string"], "is too long: 5242882 bytes, and 4194304 are allowed", id="long"),
        pytest.param(HOSTILE["half-a-surrogate-pair-in-the-text"], "is not Unicode: surrogates not allowed", id="text"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    found = parse_soft_eviction({A_SOFT_EVICTION: text})
    assert isinstance(found, MalformedAnnotation)
    assert str(found).startswith(f"{A_SOFT_EVICTION}: {told}")
