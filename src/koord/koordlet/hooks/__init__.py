"""Runtime hooks: what pods and containers start with, by the annotations of the scheduler and the rules of the node."""
