"""The machine under a node agent: cgroups, procfs, sysfs, resctrl, perf events and inotify.

The agent touches files only through here. Readers take a `Host`, whose roots are injected, and answer with a value or
with a `Fault`; they never raise for what a machine may do (files that vanish, knobs that a kernel lacks).
"""
