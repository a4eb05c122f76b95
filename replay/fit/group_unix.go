//go:build unix

package fit

import (
	"os/exec"
	"syscall"
)

// group starts the program in a process group, which is killed as a whole when the context
// of the command ends.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
