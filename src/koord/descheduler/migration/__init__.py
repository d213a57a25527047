"""Moving one pod safely: which pods may be moved, in which order jobs run, and how each job reaches its end.

Pure modules: plugin, job, arbitration, step, reservation_fit.
Modules with I/O: arbiter, controller, writer.
"""
