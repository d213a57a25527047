"""Find which pods must leave which node so that an unschedulable pod fits. Pure: the evictor carries it out."""
