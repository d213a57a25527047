"""Moving one pod safely: who may be moved, in which order jobs run, and each job step by step. All of it pure."""
