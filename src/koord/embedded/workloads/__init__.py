"""The workload controllers, which turn workloads into pods and keep a cluster tidy through the Kubernetes API alone."""

from koord.embedded.workloads.controller_manager import ControllerManager

__all__ = ["ControllerManager"]
