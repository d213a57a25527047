"""A small trace in the published file format, and the experiment computed the plain way."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    GpuChoice,
    NodeFreeGpus,
    choose_by_best_fit,
    typical_pods,
)
from koord.sim.openb.trace import NODES, ORDER, PODS, ArrivalOrder, OpenbTrace
from tests.scheduler.plugins.fragmentation_aware.fgd_definition import choose_by_fgd

MODELS = ("T4", "P100", "G2")


def write_trace(folder: Path, *, nodes: int = 8, pods: int = 60, seed: int = 7, models: bool = True) -> None:
    chance = random.Random(seed)
    with (folder / NODES).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        for number in range(nodes):
            model = MODELS[number % len(MODELS)]
            cards = (2, 4, 8)[number % 3]
            table.writerow((f"node-{number}", 8000 * cards, 65536 * cards, cards, model))
    with (folder / PODS.format(variant="small")).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", *(("gpu_spec",) if models else ())))
        for number in range(pods):
            count, milli = chance.choice([(0, 0), (1, 320), (1, 470), (1, 810), (1, 1000), (1, 1000), (2, 1000)])
            spec = chance.choice(["", "", "T4|G2"]) if count and models else ""
            cpu = chance.choice([1000, 4000, 8000])
            row = (f"pod-{number:03}", cpu, 4096, count, milli, *((spec,) if models else ()))
            table.writerow(row)


def write_order(folder: Path, order: ArrivalOrder) -> None:
    path = folder / ORDER.format(variant="small", seed=order.seed)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"pods": list(order.pods), "node_rank": list(order.node_rank)}))


def plain_placements(trace: OpenbTrace, order: ArrivalOrder, policy: str) -> list[str]:
    """The node of each arrival, "" for none: every node is looked at anew for each of them."""
    expected = typical_pods(pod.shape for pod in trace.pods)
    rooms = [NodeFreeGpus(node.cpu_milli, (1000,) * node.gpus, node.model) for node in trace.nodes]
    memory = [node.memory_mib for node in trace.nodes]
    found = []
    for index in order.pods:
        pod = trace.pods[index]
        best: tuple[int, int, int, GpuChoice] | None = None
        for place, room in enumerate(rooms):
            choice = (
                choose_by_best_fit(room, pod.shape) if policy == "BestFit" else choose_by_fgd(room, pod.shape, expected)
            )
            if choice is not None and pod.memory_mib <= memory[place]:
                key = (choice.score, -order.node_rank[place], place, choice)
                if best is None or key[:2] > best[:2]:
                    best = key
        if best is not None:
            _, _, place, choice = best
            rooms[place] = rooms[place].after(pod.shape, choice.cards)
            memory[place] -= pod.memory_mib
        found.append("" if best is None else trace.nodes[best[2]].name)
    return found
