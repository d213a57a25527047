"""QoS and priority classes of pods, and the NodeSLO of a node."""
