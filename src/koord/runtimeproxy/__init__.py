"""koord-runtime-proxy stands between the kubelet and the container runtime, for runtimes without NRI.

Every call passes as the bytes it came as. Six calls of CRI ask hook servers first or tell them afterwards
(`interception.py`); the server of each stage is the one that registered for it (`hook_config.py`). What pods and
containers were asked for is kept over restarts (`checkpoint.py`).
"""
