"""Each strategy observes a frozen view and decides a plan of effects from it. Pure: no I/O, no clock.

A strategy is one module with `observe_*` and `decide_*` and one row in `registry.py`; `runner.py` runs them.
"""
