package fit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// group has all processes of the program killed when the context of the command ends, and
// the program itself if this process is killed. Without a terminal it has a process group.
// With one it stays in the group that may read the terminal, and that Ctrl-C ends.
func group(c *exec.Cmd, mark string) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: !terminal(os.Stdin), Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error {
		to := c.Process.Pid
		if c.SysProcAttr.Setpgid {
			to = -to
		}
		err := syscall.Kill(to, syscall.SIGKILL)
		sweep(mark)
		return err
	}
}

// guardian waits until its standard input ends, as it does with this process, however that ends. Then it
// kills what has a variable of the runs of folder $0, and removes the folder.
const guardian = `trap '' HUP INT TERM
read -r end
for i in 1 2 3; do
  for e in /proc/[0-9]*/environ; do
    grep -qF "GPUMEM_FIT=$0/" "$e" || continue
    e=${e%/environ}
    kill -9 "${e#/proc/}"
  done
  rm -rf -- "$0" && break
done`

// guard has all processes of runs in a folder, which is an absolute path, killed, and the folder
// removed, if this process is killed before it calls done. Without a shell it does nothing.
func guard(folder string) (done func()) {
	c := exec.Command("sh", "-c", guardian, folder)
	c.Dir, c.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for it
	in, err := c.StdinPipe()
	if err != nil || c.Start() != nil {
		return func() {}
	}
	return func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = in.Close()
	}
}

// terminal reports whether a file is a terminal.
func terminal(f *os.File) bool {
	var group int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0
}

// sweep kills the processes that have a line in their environment, which the program left:
// workers of a data loader, a logger. It waits a moment for their ends, so that the folder
// of the run can be removed.
func sweep(line string) {
	for range 50 {
		left := 0
		list, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range list {
			env, err := os.ReadFile(path) // of others it cannot be read
			if err != nil || !bytes.HasPrefix(env, []byte(line+"\x00")) && !bytes.Contains(env, []byte("\x00"+line+"\x00")) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				left++
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
