"""The workload controllers, which turn workloads into pods and keep a cluster tidy; they know only the
Kubernetes API.
"""

from koord.embedded.workloads.controller_manager import ControllerManager

__all__ = ["ControllerManager"]
