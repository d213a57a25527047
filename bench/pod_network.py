"""A node with a network of pods, made of namespaces: pods at a bridge, a wire with a known rate, a server behind it.

    pods -- veth -- bridge -- (this process: the node) eth0 -- router -- wire of so many bits a second -- server

This process becomes the node: it and what it starts have the node's network from then on. All is gone when it ends.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from bench.namespace import enter_new_network, in_network_of, in_new_network

SERVER = "10.90.2.2"
WIRE_QUEUE_S = 0.02  # that the wire's queue takes to empty, as in a switch
_SEARCHED = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
_FORWARD = ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
_HOLD = ("sh", "-c", "echo ready; exec sleep infinity")


class NetworkRefused(Exception):
    """The machine cannot make such a network."""


class PodNetwork:
    def __init__(self, wire_bits: int, pods: Sequence[str]) -> None:
        self.wire_bits = wire_bits
        self.address = {name: f"10.90.1.{number + 2}" for number, name in enumerate(pods)}
        self._holders: dict[str, subprocess.Popen[str]] = {}  # a process keeps each namespace

    def load(self, where: str, *words: str) -> subprocess.Popen[str]:
        """Start `bench.network_load` in the network of a pod or of the server."""
        command = [*in_network_of(self._holders[where].pid), sys.executable, "-m", "bench.network_load", *words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Raises NetworkRefused."""
        for program in ("ip", "tc"):
            if shutil.which(program) is None and shutil.which(program, path=_SEARCHED) is None:
                raise NetworkRefused(f"no {program} on this machine: install iproute2")
        try:
            enter_new_network()
        except OSError as error:
            raise NetworkRefused(f"no network namespace can be made here: {error}") from error
        try:
            for name in ("router", "server", *self.address):
                command = [*in_new_network(), *_HOLD]
                self._holders[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            for one in self._holders.values():
                assert one.stdout is not None
                if one.stdout.readline() != "ready\n":
                    raise NetworkRefused("a network namespace cannot be made here; the error is above")
            self._lay()
            yield
        finally:
            for one in self._holders.values():
                one.kill()
                one.wait(timeout=10)

    def qdiscs(self) -> str:
        """What tc shows of the node's device."""
        return self._run("", "tc", "qdisc", "show", "dev", "eth0")

    def filters(self) -> str:
        return self._run("", "tc", "filter", "show", "dev", "eth0")

    def _lay(self) -> None:
        pid = {name: one.pid for name, one in self._holders.items()}
        node = ["link set lo up", f"link add eth0 type veth peer name up0 netns {pid['router']}"]
        node += ["address add 10.90.0.2/24 dev eth0", "link set eth0 up", "route add default via 10.90.0.1"]
        node += ["link add br0 type bridge", "address add 10.90.1.1/24 dev br0", "link set br0 up"]
        for number, name in enumerate(self.address):
            node += [f"link add pod{number} type veth peer name eth0 netns {pid[name]}"]
            node += [f"link set pod{number} master br0 up"]
        router = [f"link add out0 type veth peer name eth0 netns {pid['server']}", "address add 10.90.0.1/24 dev up0"]
        router += ["address add 10.90.2.1/24 dev out0", "link set up0 up", "link set out0 up"]
        router += ["route add 10.90.1.0/24 via 10.90.0.2"]
        outside = [f"address add {SERVER}/24 dev eth0", "link set eth0 up", "route add default via 10.90.2.1"]
        for where, lines in (("", node), ("router", router), ("server", outside)):
            self._run(where, "ip", "-batch", "-", text="\n".join(lines))
        for name, address in self.address.items():
            lines = [f"address add {address}/24 dev eth0", "link set eth0 up", "route add default via 10.90.1.1"]
            self._run(name, "ip", "-batch", "-", text="\n".join(lines))
        for where in ("", "router"):
            self._run(where, *_FORWARD)
        limit = int(self.wire_bits / 8 * WIRE_QUEUE_S)
        wire = f"tc qdisc add dev out0 root tbf rate {self.wire_bits}bit burst 64kb limit {limit}"
        self._run("router", *wire.split())

    def _run(self, where: str, *words: str, text: str = "") -> str:
        name, *rest = words
        program = shutil.which(name) or shutil.which(name, path=_SEARCHED) or name
        command = [*(in_network_of(self._holders[where].pid) if where else ()), program, *rest]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NetworkRefused(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
