"""koord-device-daemon describes the accelerators of a node that are not NVIDIA's, for koordlet to report.

A round finds vendors by their PCI ids, asks each vendor's tool (`vendor_probe.py` reads the answers), and writes one
file of devices (`program.py`). koordlet reads all files of that folder into the Device. The daemon talks to no API
server.
"""
