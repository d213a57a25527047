"""Moving one pod safely: which pods may be moved, in which order jobs run, and how each job reaches its end.

Pure modules: plugin, protection, in_flight, rate_limiter, job, arbitration, step, reservation_template. Modules with
I/O: arbiter, controller, evictor, garbage_collector, writer.
"""
