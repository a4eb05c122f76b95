package fit

import (
	"os/exec"
	"syscall"
)

// group starts the program in a process group, which is killed as a whole when the context
// of the command ends. The program itself is killed if this process is.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
