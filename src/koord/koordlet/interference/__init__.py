"""Whether a latency-sensitive pod runs worse than it used to. Pure: samples arrive with their times."""
