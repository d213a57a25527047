"""Shares of GPUs: which limits a share has, how they are enforced, and whether they hold.

`isolation` is pure: a share, the providers that enforce it, and the limits that a process finds in its environment.
`driver` calls the CUDA driver, `probe` measures with it and compares. `mps` speaks with CUDA's MPS control
daemons, `hami_region` reads what HAMi-core keeps of a container. Which container gets what is decided by
`koord.koordlet.hooks.gpu_env`; where pods go by `koord.scheduler.plugins.device_share`.
"""
