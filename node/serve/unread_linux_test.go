package serve

import (
	"context"
	"net"
	"net/http"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnreadConnectionsEnd: the kernel ends the server's connections whose clients do not
// read, as 64 streams that are not read would shut all others out.
func TestUnreadConnectionsEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	done := make(chan error)
	go func() { done <- Run(ctx, keeping{l, accepted}, http.NotFoundHandler()) }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err != nil { // so it is being served
		t.Fatal(err)
	}
	raw, err := (<-accepted).(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ms int
	if e := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if int64(ms) != patience.Milliseconds() {
		t.Errorf("the kernel waits for %d ms, want %v", ms, patience)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// keeping is a listener that keeps what it accepts.
type keeping struct {
	net.Listener
	accepted chan net.Conn
}

func (k keeping) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if err == nil {
		k.accepted <- c
	}
	return c, err
}
