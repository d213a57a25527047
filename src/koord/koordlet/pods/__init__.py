"""The pods of this node, as the kubelet tells them or the API server does, and where their cgroups are."""
