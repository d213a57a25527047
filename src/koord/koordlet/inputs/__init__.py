"""This package gathers what the agent knows of its node: Node, NodeSLO, pods, kubelet and the machine itself."""
