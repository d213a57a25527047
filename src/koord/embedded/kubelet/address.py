"""IP addresses of simulated nodes and their pods. The networks are private to this cluster; nothing is
ever reachable.
"""

from __future__ import annotations

import ipaddress
from collections import deque

POD_NETWORK = ipaddress.IPv4Network("10.0.0.0/8")
NODE_NETWORK = ipaddress.IPv4Network("172.16.0.0/12")


class NetworkFull(Exception):
    """Raised when the private networks have no room for another node."""


class PodBlock:
    """Allocates the addresses of one podCIDR. A released address is reused only after all others had their
    turn.
    """

    __slots__ = ("_end", "_freed", "_next", "cidr")

    def __init__(self, cidr: str) -> None:
        network = ipaddress.IPv4Network(cidr)
        self.cidr = cidr
        self._next = int(network.network_address) + 2  # .0 is the network, .1 the bridge
        self._end = int(network.broadcast_address)
        self._freed: deque[str] = deque()

    def take(self) -> str | None:
        """Allocate an address; return None when every address is in use."""
        if self._next < self._end:
            self._next += 1
            return str(ipaddress.IPv4Address(self._next - 1))
        return self._freed.popleft() if self._freed else None

    def free(self, address: str) -> None:
        self._freed.append(address)

    def claim(self, address: str) -> None:
        """Reserve the address of a pod that ran before this process did."""
        number = int(ipaddress.IPv4Address(address))
        if number >= self._next:
            self._freed.extend(str(ipaddress.IPv4Address(n)) for n in range(self._next, number))
            self._next = number + 1
        elif address in self._freed:
            self._freed.remove(address)


class Addresses:
    """Allocates node addresses and podCIDRs in order, so that one profile gets the same ones in every run."""

    def __init__(self) -> None:
        self._nodes = 0
        self._next_block = int(POD_NETWORK.network_address)

    def node(self) -> str:
        self._nodes += 1
        if self._nodes >= NODE_NETWORK.num_addresses - 1:
            raise NetworkFull(f"no address left in {NODE_NETWORK} for another node")
        return str(NODE_NETWORK[self._nodes])

    def block(self, pods: int) -> str:
        """Allocate a podCIDR with twice as many addresses as pods, so that an address rests before its next use."""
        bits = max(4, (2 * pods - 1).bit_length())
        size = 1 << bits
        start = -(-self._next_block // size) * size
        if start + size > int(POD_NETWORK.broadcast_address) + 1:
            raise NetworkFull(f"no block of {size} addresses left in {POD_NETWORK}")
        self._next_block = start + size
        return f"{ipaddress.IPv4Address(start)}/{32 - bits}"
