"""Load of nodes: the resources that load is measured in, and the thresholds that a node's usage is compared with."""
