"""This module lists the names by which Kubernetes objects and Hadoop YARN refer to each other, in upstream's spelling,
and parses a NodeManager's identity.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# Pods of NodeManagers
L_COMPONENT = "app.kubernetes.io/component"
COMPONENT_NODE_MANAGER = "node-manager"
A_NODE_ID = "yarn.hadoop.apache.org/node-id"  # host:port, as the NodeManager registered with its ResourceManager
A_CLUSTER_ID = "yarn.hadoop.apache.org/cluster-id"
DEFAULT_CLUSTER_ID = "__default_yarn_cluster__"

# What YARN holds of a node: the name of its entry in node.koordinator.sh/thirdPartyAllocations
ALLOCATION_NAME = "hadoop-yarn"

# YARN's tasks on a node: the host application of slo-controller-config, and the cgroup below which they run
HOST_APPLICATION = "yarn-task"
TASKS_RELATIVE_PATH = "hadoop-yarn"  # below the best-effort pods of the node
CONTAINER_PREFIX = "container_"  # of a YARN container's ID and of its cgroup

# Programs and their objects
OPERATOR_PROGRAM = "koord-yarn-operator"
OPERATOR_LEASE = "koordinator-yarn-operator"
COPILOT_PROGRAM = "koord-yarn-copilot"
HADOOP_CONF_DIR = "HADOOP_CONF_DIR"
NODE_MANAGER_WEB_PORT = 8042

MIB = 1 << 20  # what YARN calls MB
MILLI_PER_VCORE = 1000


class YarnNodeId(msgspec.Struct, frozen=True, order=True):
    """YarnNodeId is the address under which a NodeManager is registered; it is no address to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class MalformedNodeId(msgspec.Struct, frozen=True):
    """MalformedNodeId stands for a node-id annotation that is missing or cannot be read."""

    text: str | None

    def __str__(self) -> str:
        if self.text is None:
            return f"the annotation {A_NODE_ID} is missing"
        return f'the annotation {A_NODE_ID} is "{self.text}" and not host:port'


def parse_node_id(annotations: Mapping[str, str]) -> YarnNodeId | MalformedNodeId:
    """Parse the node-id annotation of a NodeManager's pod. The port follows the last colon, so IPv6 addresses are
    possible, which upstream cannot read.
    """
    text = annotations.get(A_NODE_ID)
    if text is None:
        return MalformedNodeId(None)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        return MalformedNodeId(text)
    return YarnNodeId(host, int(port))


def cluster_id(annotations: Mapping[str, str]) -> str:
    """Return the YARN cluster of a NodeManager's pod."""
    return annotations.get(A_CLUSTER_ID) or DEFAULT_CLUSTER_ID


def is_node_manager(labels: Mapping[str, str]) -> bool:
    return labels.get(L_COMPONENT) == COMPONENT_NODE_MANAGER
