"""This package scores and filters nodes by the resources that they have left, like kube-scheduler's noderesources."""
