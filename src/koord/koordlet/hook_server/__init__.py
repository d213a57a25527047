"""The gRPC server of koordlet's runtime hooks, for nodes whose kubelet talks to koord-runtime-proxy.

`server.py` needs gRPC and is imported only where the server is switched on; a node agent without it pays nothing.
"""
