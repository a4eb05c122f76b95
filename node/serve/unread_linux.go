package serve

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// closeUnread has the kernel close a connection whose client has not read for patience: what is
// written to it waits in the kernel's buffers, some megabytes, before a write would wait. (tcp(7),
// TCP_USER_TIMEOUT: data that is not acknowledged, or not sent for want of a window.)
func closeUnread(c net.Conn) {
	tcp, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	// Of a connection that is no TCP, such as a Unix socket's, it is refused.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
	})
}
