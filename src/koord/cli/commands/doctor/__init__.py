"""`koord doctor`: what is wrong with an installation, why that matters and which command repairs it.

`gather` reads a cluster into frozen facts; each check is a pure function from facts to findings; `registry` lists the
checks. Repairs are left to people: nothing here writes to a cluster.
"""
