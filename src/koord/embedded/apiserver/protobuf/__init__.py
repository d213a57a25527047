"""This package decodes Kubernetes protobuf bodies into the JSON that Go would write. It is pure."""
