"""The workload controllers, which turn workloads into pods and keep a cluster tidy; they know only the
Kubernetes API.
"""

from koord.embedded.workloads.workloads import Workloads

__all__ = ["Workloads"]
