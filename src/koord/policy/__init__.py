"""Pure decisions that two or more programs share: co-location, QoS classes, prediction, the quota tree, node
matching and load thresholds.
"""
