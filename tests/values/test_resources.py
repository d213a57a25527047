"""Resource vectors treat absent names and zeros as specified."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values import resources
from koord.values.quantity import Format, Quantity, QuantityError

vectors = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "example.com/gpu"]),
    st.one_of(
        st.integers(-5000, 5000).map(Quantity.from_milli),
        st.integers(-5, 5).map(lambda n: Quantity.from_value(n << 20, Format.BINARY_SI)),
    ),
)


def wire(**amounts: str) -> dict[str, Quantity]:
    return resources.parse(amounts)


def test_wire_form() -> None:
    parsed = resources.parse({"cpu": 2, "memory": "1024Mi", "example.com/x": 0.5})
    assert resources.to_wire(parsed) == {"cpu": "2", "memory": "1Gi", "example.com/x": "500m"}


def test_bad_amount_is_refused() -> None:
    with pytest.raises(QuantityError):
        resources.parse({"cpu": "two"})


def test_add_is_over_all_names() -> None:
    total = resources.add(wire(cpu="1", memory="1Gi"), wire(cpu="500m", pods="3"))
    assert resources.to_wire(total) == {"cpu": "1500m", "memory": "1Gi", "pods": "3"}


def test_subtract_goes_below_zero() -> None:
    rest = resources.subtract(wire(cpu="1", memory="1Gi"), wire(cpu="1500m", pods="3"))
    assert resources.to_wire(rest) == {"cpu": "-500m", "memory": "1Gi", "pods": "-3"}


def test_mask_keeps_listed_names() -> None:
    assert resources.to_wire(resources.mask(wire(cpu="1", memory="1Gi"), {"cpu", "pods"})) == {"cpu": "1"}


def test_maximum_takes_the_format_of_the_second_on_a_tie() -> None:
    larger = resources.maximum(wire(cpu="1", memory="1Ki", pods="1"), wire(cpu="2", memory="1024"))
    assert resources.to_wire(larger) == {"cpu": "2", "memory": "1024", "pods": "1"}


def test_equals_tells_absent_from_zero() -> None:
    assert resources.equals(wire(cpu="1000m"), wire(cpu="1"))
    assert not resources.equals(wire(cpu="0"), {})
    assert not resources.equals(wire(cpu="0"), wire(memory="0"))


def test_zeros() -> None:
    mixed = wire(cpu="0", memory="1", pods="-1")
    assert resources.is_zero({})
    assert resources.is_zero(wire(cpu="0m"))
    assert not resources.is_zero(mixed)
    assert resources.to_wire(resources.remove_zeros(mixed)) == {"memory": "1", "pods": "-1"}
    assert resources.negative_names(mixed) == ["pods"]


@given(vectors, vectors)
def test_subtract_undoes_add(a: dict[str, Quantity], b: dict[str, Quantity]) -> None:
    back = resources.subtract(resources.add(a, b), b)
    assert resources.equals(resources.mask(back, set(a)), a)
    assert resources.is_zero(resources.mask(back, set(b) - set(a)))


@given(vectors, vectors)
def test_both_fit_in_their_maximum(a: dict[str, Quantity], b: dict[str, Quantity]) -> None:
    larger = resources.maximum(a, b)
    assert set(larger) == set(a) | set(b)
    assert all(larger[name] >= amount for one in (a, b) for name, amount in one.items())
    assert all(amount in (a.get(name), b.get(name)) for name, amount in larger.items())


@given(vectors, vectors)
def test_inputs_stay_as_they_were(a: dict[str, Quantity], b: dict[str, Quantity]) -> None:
    before = resources.to_wire(a), resources.to_wire(b)
    for operation in (resources.add, resources.subtract, resources.maximum):
        operation(a, b)
    assert (resources.to_wire(a), resources.to_wire(b)) == before


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        pytest.param("cpu", "1500m", 1500, id="cpu-in-milli"),
        pytest.param("cpu", "1u", 1, id="cpu-rounds-up"),
        pytest.param("memory", "1Gi", 1 << 30, id="memory-in-bytes"),
        pytest.param("memory", "100m", 1, id="a-fraction-of-a-byte-is-a-byte"),
        pytest.param("kubernetes.io/batch-cpu", "1k", 1000, id="batch-cpu-is-a-plain-count"),
    ],
)
def test_units(name: str, text: str, count: int) -> None:
    assert resources.units(name, Quantity.parse(text)) == count


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("memory", 1 << 30, "1Gi"),
        ("ephemeral-storage", 1 << 20, "1Mi"),
        ("requests.storage", 1 << 20, "1Mi"),
        ("limits.memory", 1 << 20, "1Mi"),
        ("hugepages-2Mi", 1 << 21, "2Mi"),
        ("kubernetes.io/batch-memory", 1 << 30, "1Gi"),
        ("koordinator.sh/gpu-memory", 1 << 30, "1Gi"),
        ("koordinator.sh/gpu-memory-ratio", 1024, "1024"),
        ("kubernetes.io/batch-cpu", 2000, "2k"),
        ("pods", 110, "110"),
    ],
)
def test_counts_are_written_in_the_format_of_the_resource(name: str, count: int, text: str) -> None:
    assert str(resources.from_units(name, count)) == text


@given(st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), st.integers(-(10**15), 10**15)))
def test_counts_survive_being_made_a_vector(counts: dict[str, int]) -> None:
    assert resources.to_units(resources.materialise(counts)) == counts


@pytest.mark.parametrize("amount", ["250m", "1", 1, 1.5, "2Gi", "1e3"])
def test_units_of_an_amount_as_it_stands_in_json_are_those_of_its_quantity(amount: str | float) -> None:
    for name in ("cpu", "memory", "example.com/card"):
        for _ in range(2):  # the second answer is a kept one
            assert resources.parse_units(name, amount) == resources.units(name, Quantity.parse(amount))
