"""This package connects koordlet to the container runtime by NRI, so that containers start with what koordlet decides.

`plugin` keeps one connection alive, `session` is one connection from registration to its end, `connection` carries
calls both ways over the socket. What is decided about pods and containers is the handler's, which the agent gives.
"""
