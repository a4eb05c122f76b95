//go:build linux && (amd64 || arm64)

package guest

import "testing"

// TestGrow: a frame that large fits. What else this package does is tested in lib.
func TestGrow(t *testing.T) { Grow() }
