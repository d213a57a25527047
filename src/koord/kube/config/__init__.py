"""Connection settings of an API server: kubeconfig files, service accounts, proxies."""
