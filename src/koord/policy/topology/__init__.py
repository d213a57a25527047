"""Which CPUs and which NUMA nodes a pod gets: pure decisions over the allocations of one node.

`node` and `cpu_topology` read what the machine is, `ledger` who holds what, `binding` what a pod asks; `allocation`
gives CPUs (`accumulator`) and NUMA amounts (`distribution`); `hint`, `hint_source` and `admission` choose NUMA nodes.
"""
