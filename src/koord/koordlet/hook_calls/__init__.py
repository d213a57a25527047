"""The answers to runtimes that ask for hooks, by NRI or through the runtime proxy.

`hook_calls` makes the decision and keeps account of it, `nri_handler` turns it into either protocol's message and is
the way in for NRI, `service` has that for the runtime proxy and runs both for the agent.
"""
