"""koord-yarn-copilot: an agent beside a NodeManager that tells koordlet of YARN's containers on the node and kills
those that must leave. It decides nothing: which container has to leave is koordlet's choice.
"""
