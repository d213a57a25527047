"""Scenarios of the simulator: the workloads of a co-location day and the submitter of its batch jobs."""
