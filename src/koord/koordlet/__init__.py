"""koordlet is the node agent: it measures the node, decides about its pods and writes cgroups.

The root modules compose the agent (`agent.py` runs it). Imports between the sub-packages go one way: cgroup_writer <-
inputs <- eviction <- strategies <- reporters, and series <- collect <- reporters; nri imports none of them.
"""
