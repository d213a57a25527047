//go:build tools

// Package tools pins Kubernetes' own end-to-end suite, which `make test-e2e` runs against `koord up`.
package tools

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
)
