"""Keep the root quota of each node pool as large as the pool: from ElasticQuotaProfile to ElasticQuota."""
