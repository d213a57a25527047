"""The dashboards: one for each reader, ordered by that reader's first questions."""

from __future__ import annotations

from tools.monitoring.dashboards.capacity import CAPACITY
from tools.monitoring.dashboards.gpu import GPU
from tools.monitoring.dashboards.health import HEALTH
from tools.monitoring.dashboards.scheduler import SCHEDULER
from tools.monitoring.dashboards.workload import WORKLOAD

DASHBOARDS = (HEALTH, WORKLOAD, CAPACITY, GPU, SCHEDULER)
