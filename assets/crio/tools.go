//go:build tools

// Package tools pins the second container runtime that the NRI tests of tests/real run with, and its program for images.
package tools

import (
	_ "github.com/cri-o/cri-o/cmd/crio"
	_ "github.com/cri-o/cri-o/test/copyimg"
)
