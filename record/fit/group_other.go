//go:build !linux

package fit

import (
	"os"
	"os/exec"
)

// group, sweep and guard do nothing: the simulated driver is for Linux.
func group(*exec.Cmd, string)    {}
func sweep(string)               {}
func guard(string) (done func()) { return func() {} }

func terminal(*os.File) bool { return false }
