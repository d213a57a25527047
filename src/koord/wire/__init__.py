"""This package encodes and decodes the protocols of container runtimes: protobuf, ttrpc, NRI. It is pure."""
