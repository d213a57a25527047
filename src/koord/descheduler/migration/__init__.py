"""Moving one pod safely: which pods may be moved, in which order jobs run, and how each job reaches its end.

Pure modules: plugin, protection, limits, job, arbitration, step, reservation_fit, reservation_template.
Modules with I/O: arbiter, controller, evictor, writer.
"""
