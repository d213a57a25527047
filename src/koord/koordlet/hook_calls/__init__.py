"""The answers to runtimes that ask for hooks, by NRI or through the runtime proxy.

`answers` turns a decision into either protocol's message, `hook_calls` makes the decision and keeps account of it,
`nri_handler` is the way in for NRI, `service` has that for the runtime proxy and runs both for the agent.
"""
