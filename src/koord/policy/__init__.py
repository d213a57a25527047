"""Pure decisions that two or more programs share: QoS classes, matching pods with nodes, which quota a pod belongs to,
and decaying histograms of usage. What has one user lives with that user.
"""
