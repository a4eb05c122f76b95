//go:build !linux || (!amd64 && !arm64)

package unhandled

import "syscall"

// Take does nothing on this system.
func Take() {}

// Return does nothing on this system.
func Return() {}

// Default does nothing on this system.
func Default(...syscall.Signal) {}
