"""Best-effort work gets whole cores first, spread over NUMA nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.host.hardware import MachineCpu
from koord.koordlet.strategies.cpu_suppress import select_be_cpus, select_cpus

SPLIT = [MachineCpu(cpu=cpu, core=cpu % 4, node=cpu % 4 // 2) for cpu in range(8)]  # (0,4)(1,5) | (2,6)(3,7)
NEIGHBOURS = [MachineCpu(cpu=cpu, core=cpu // 2, node=cpu // 4) for cpu in range(8)]  # (0,1)(2,3) | (4,5)(6,7)
SOCKETS = [MachineCpu(cpu=cpu, core=cpu // 2, socket=cpu // 4, node=cpu // 8) for cpu in range(16)]

UNEVEN = [  # (0,1) 2 3 | 4 5 | 6 7
    *(MachineCpu(cpu=cpu, core=core, node=0) for cpu, core in ((0, 0), (1, 0), (2, 1), (3, 2))),
    *(MachineCpu(cpu=cpu, core=cpu, node=1) for cpu in (4, 5)),
    *(MachineCpu(cpu=cpu, core=cpu, node=2) for cpu in (6, 7)),
]


@pytest.mark.parametrize(
    ("need", "processors", "taken"),
    [
        pytest.param(3, SPLIT, [0, 4, 2], id="siblings-far-apart"),
        pytest.param(3, NEIGHBOURS, [0, 1, 4], id="siblings-side-by-side"),
        pytest.param(5, SOCKETS, [0, 1, 4, 5, 8], id="four-sockets"),
        pytest.param(5, SOCKETS[::-1], [0, 1, 4, 5, 8], id="any-order"),
        pytest.param(0, [], [], id="nothing-of-nothing"),
        pytest.param(4, [], [], id="something-of-nothing"),
        pytest.param(9, NEIGHBOURS, [0, 1, 4, 5, 2, 3, 6, 7], id="more-than-there-are"),
        pytest.param(2, [MachineCpu(cpu=1, core=0), MachineCpu(cpu=3, core=1)], [1, 3], id="no-whole-core"),
        pytest.param(4, UNEVEN, [0, 1, 2, 4], id="singles-start-with-the-largest-node-once-cores-are-gone"),
    ],
)
def test_pick(need: int, processors: list[MachineCpu], taken: list[int]) -> None:
    assert select_cpus(need, processors) == taken


def test_be_leaves_cpus_of_lsr_pods_to_them_where_it_can() -> None:
    lsr = [NEIGHBOURS[0], NEIGHBOURS[6]]
    shared = [one for one in NEIGHBOURS if one.cpu not in (0, 6, 7)]
    assert str(select_be_cpus(3, lsr, shared)) == "2-4"
    assert str(select_be_cpus(4, lsr, shared)) == "0,2-4"
    assert str(select_be_cpus(2, [], [])) == ""


@settings(max_examples=80)
@given(
    need=st.integers(0, 20),
    cpus=st.sets(st.integers(0, 31), max_size=20),
    order=st.randoms(use_true_random=False),
    lsr=st.sets(st.integers(0, 31), max_size=10),
)
def test_a_choice_is_as_large_as_asked_and_does_not_depend_on_order(
    need: int, cpus: set[int], order: object, lsr: set[int]
) -> None:
    processors = [MachineCpu(cpu=cpu, core=cpu // 2, socket=cpu // 16, node=cpu // 8) for cpu in sorted(cpus)]
    shuffled = list(processors)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    taken = select_cpus(need, processors)
    assert len(taken) == len(set(taken)) == min(need, len(cpus))
    assert taken == select_cpus(need, shuffled)
    mine = [one for one in processors if one.cpu in lsr]
    rest = [one for one in processors if one.cpu not in lsr]
    assert len(select_be_cpus(need, mine, rest)) == min(need, len(cpus))
