"""ElasticQuota admits pods only within their quota, and lets pods of one quota preempt each other."""

from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin

__all__ = ["ElasticQuotaPlugin"]
