"""These pure functions build what the reporters write: NodeMetric, NodeResourceTopology, Device, Node conditions."""
