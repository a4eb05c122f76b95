//go:build !linux

package fit

import "os/exec"

// group does nothing: the simulated driver is for Linux.
func group(*exec.Cmd) {}
