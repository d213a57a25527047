"""This package encodes and decodes protocols of container runtimes: NRI, CRI, hooks of the proxy. It is pure."""
