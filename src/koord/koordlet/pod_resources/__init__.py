"""The PodResources proxy: the kubelet's pod resources with the devices that the scheduler gave to pods.

Exporters and network plugins that read the kubelet's socket are given this one instead. What a pod has is decided in
`service.py`, which serves the socket; answers are changed by `koord.wire.pod_resources`.
"""
