"""Give pods the GPUs, network cards and other devices that they ask for, and keep count of who holds which."""

from koord.scheduler.plugins.device_share.plugin import DeviceShare

__all__ = ["DeviceShare"]
