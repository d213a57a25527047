"""The validating admission of pods: QoS and priority classes, parent quotas, GPU requests, required labels."""
