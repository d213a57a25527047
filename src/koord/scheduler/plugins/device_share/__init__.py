"""DeviceShare gives pods the GPUs, network cards and other devices that they request, and tracks who holds which."""

from koord.scheduler.plugins.device_share.plugin import DeviceShare

__all__ = ["DeviceShare"]
