"""This module makes Hypothesis strategies for any wire model from the types of its fields."""

from __future__ import annotations

import types
from datetime import UTC, datetime
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from koord.api.model import QuantityText
from koord.api.schema import unwrap_annotated

QUANTITIES = st.sampled_from(["0", "1", "1500m", "2Gi", "1k", "100M", "0.5", "1e3", "-3"])
TEXT = st.text(max_size=8)


def model_values(tp: Any) -> st.SearchStrategy[Any]:
    if unwrap_annotated(tp)[1].quantity or tp == QuantityText:
        return QUANTITIES
    origin, args = get_origin(tp), get_args(tp)
    if origin is Annotated:
        return model_values(args[0])
    if origin in (Union, types.UnionType):
        if set(args) - {type(None)} == set(get_args(QuantityText)):
            return st.one_of(st.none(), QUANTITIES) if type(None) in args else QUANTITIES
        return st.one_of([model_values(a) for a in args])
    if tp is type(None):
        return st.none()
    if tp is str:
        return TEXT
    if tp is bool:
        return st.booleans()
    if tp is int:
        return st.integers(-(2**31), 2**31 - 1)
    if tp is float:
        return st.floats(0, 100, allow_nan=False)
    if tp is datetime:
        return st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0))
    if tp is Any:
        return st.one_of(TEXT, st.integers(-5, 5), st.booleans())
    if origin is tuple:
        return st.lists(model_values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(model_values(args[0]), model_values(args[1]), max_size=3)
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return st.builds(tp, **{f.name: model_values(f.type) for f in msgspec.structs.fields(tp)})
    raise TypeError(f"no strategy for {tp!r}")
