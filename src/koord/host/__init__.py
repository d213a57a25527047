"""The host layer of the node agent: cgroups, procfs, sysfs, resctrl, perf events and inotify.

The agent accesses files only through this package. Readers take a `Host`, whose roots are injected, and return a value
or an `IoError`; they never raise for what a machine may do (files that vanish, knobs that a kernel lacks).
"""
