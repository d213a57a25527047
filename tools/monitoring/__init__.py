"""Write what monitors an installation from what the programs declare: run as `python -m tools.monitoring`.

The catalogue asks every program for its metrics. From it come docs/reference/metrics.md, and the check that alert rules
and dashboards name nothing else. Rules, their runbook and the dashboards are written from descriptions in this package.
A test writes all of it again and compares.
"""
