"""What runtimes are answered when they ask for hooks, by NRI or through the runtime proxy.

`answers` turns a decision into either protocol's message, `hook_calls` makes the decision and keeps account of it,
`nri_handler` and `proxy_handler` are the ways in, `service` runs both for the agent.
"""
