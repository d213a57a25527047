//go:build tools

// Package tools pins the promtool that tests/charts checks and tests alert rules, dashboards and metrics with.
package tools

import _ "github.com/prometheus/prometheus/cmd/promtool"
