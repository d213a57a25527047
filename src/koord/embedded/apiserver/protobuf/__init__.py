"""Bodies in Kubernetes' protobuf, read into the JSON that Go would have written. Pure: bytes in, plain values out."""
