//go:build !linux

package fit

import (
	"os"
	"os/exec"
)

// group and sweep do nothing: the simulated driver is for Linux.
func group(*exec.Cmd, string) {}
func sweep(string)            {}

func terminal(*os.File) bool { return false }
