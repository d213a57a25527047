"""Koordinator's custom resources: nothing of a whole object is lost on the way through the models."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.koordinator.scheduling import DeviceInfo
from koord.api.koordinator.slo import NodeMetric, NodeSLO, NUMAUsage, SystemStrategy
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import PodTemplateSpec
from koord.api.kubernetes.resource import Resource
from koord.api.model import decode, encode, to_dict
from koord.api.schema import KUBERNETES_SCHEMAS, unwrap_annotated
from tests.api.koordinator.custom_resource_samples import INVALID_OBJECTS, VALID_OBJECTS


def model_of(obj: dict[str, Any]) -> type[Object]:
    found: type[Object] = next(
        r.model for r in CUSTOM_KINDS if (r.api_version, r.kind) == (obj["apiVersion"], obj["kind"])
    )
    return found


def without_nulls_and_zeros(value: Any) -> Any:
    """What is left when absent and zero are one, as they are in Go: the comparison that matters on the wire."""
    if isinstance(value, dict):
        kept = {k: without_nulls_and_zeros(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in (None, "", 0, False, [], {}, "0")}
    if isinstance(value, list):
        return [without_nulls_and_zeros(v) for v in value]
    return value


# Inside templates the model is a view: what it does not know is dropped.
VIEWS = {"reservation": [("spec", "template", "spec", "anything")], "schedule-explanation": []}


@pytest.mark.parametrize("name", list(VALID_OBJECTS))
def test_every_known_field_survives_a_round_trip(name: str) -> None:
    sample = copy.deepcopy(VALID_OBJECTS[name])
    for *parents, last in VIEWS.get(name, []):
        at: Any = sample
        for step in parents:
            at = at[step]
        del at[last]
    if name == "schedule-explanation":
        del sample["spec"]["questionObjectTemplate"]
    seen = to_dict(decode(json.dumps(sample).encode(), model_of(sample)))
    assert without_nulls_and_zeros(seen) == without_nulls_and_zeros(sample)


@pytest.mark.parametrize(
    "name", [n for n in INVALID_OBJECTS if not n.endswith(("-as-text", "-as-number", "-as-object"))]
)
def test_a_value_that_only_admission_refuses_does_not_stop_a_reader(name: str) -> None:
    sample, _ = INVALID_OBJECTS[name]
    assert decode(json.dumps(sample).encode(), model_of(sample)).metadata.name == sample["metadata"]["name"]


def test_nulls_of_go_servers_read_as_empty() -> None:
    raw = b'{"metadata":{"name":"n"},"spec":null,"status":{"podsMetric":null,"nodeMetric":{"nodeUsage":null}}}'
    metric = decode(raw, NodeMetric)
    assert (metric.status.pods_metric, metric.spec.metric_collect_policy) == ((), None)


def test_extensions_keep_their_capital_wrapper() -> None:
    slo = decode(b'{"spec":{"extensions":{"Object":{"vendor":1}}}}', NodeSLO)
    assert slo.spec.extensions is not None
    assert slo.spec.extensions.object == {"vendor": 1}
    assert to_dict(slo)["spec"]["extensions"] == {"Object": {"vendor": 1}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(DeviceInfo(), b'{"health":false}', id="device-health"),
        pytest.param(SystemStrategy(), b'{"totalNetworkBandwidth":"0"}', id="network-bandwidth"),
        pytest.param(NUMAUsage(), b'{"numaNodeID":0}', id="numa-node"),
    ],
)
def test_fields_that_go_never_omits_are_written_when_zero(value: Any, text: bytes) -> None:
    assert encode(value) == text


def models_below(tp: Any) -> Iterator[type[msgspec.Struct]]:
    """Our own models that make up a value of this type."""
    plain, _ = unwrap_annotated(tp)
    if plain in (ObjectMeta, PodTemplateSpec, *KUBERNETES_SCHEMAS):
        return
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        yield plain
        for described in msgspec.structs.fields(plain):
            yield from models_below(described.type)
    for inner in get_args(plain):
        yield from models_below(inner)


@pytest.mark.parametrize("resource", CUSTOM_KINDS, ids=lambda r: f"{r.kind}-{r.version}")
def test_what_the_schema_requires_is_written_even_when_zero(resource: Resource[Any]) -> None:
    """Otherwise a server would refuse what a program of ours wrote. Objects that must be given have no zero."""
    for model in set(models_below(resource.model)):
        written = to_dict(model())
        for described in msgspec.structs.fields(model):
            if unwrap_annotated(described.type)[1].required and described.default is not None:
                assert described.encode_name in written, f"{model.__name__}.{described.name}"
