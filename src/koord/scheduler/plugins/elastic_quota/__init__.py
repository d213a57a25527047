"""Let pods start only within their quota, and let pods of one quota make room for each other."""

from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuota

__all__ = ["ElasticQuota"]
