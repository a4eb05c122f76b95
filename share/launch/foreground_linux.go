package launch

import (
	"os"
	"syscall"
	"unsafe"
)

// inForeground says whether our process group is the one that the terminal's
// signals go to.
func inForeground() bool {
	tty, err := os.Open("/dev/tty") // the controlling terminal, if there is one
	if err != nil {
		return false
	}
	defer tty.Close()
	var group int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0 && int(group) == syscall.Getpgrp()
}
