"""This package simulates a machine: cgroup files, the CPU and memory that containers get, and what they suffer.

It models the kernel's CFS weights, quotas, cpusets, memory protection and OOM killer in steps of any length."""
