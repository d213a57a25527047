"""This package encodes and decodes the protocols of container runtimes (NRI, CRI, hooks of the proxy) and Hadoop's RPC.
It is pure.
"""
