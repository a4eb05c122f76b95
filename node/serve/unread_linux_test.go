package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnreadConnectionsEnd: the kernel ends the server's connections whose clients do not
// read, as 64 streams that are not read would shut all others out. The handler sets no deadline
// of its own, so without that its write waits for as long as the client likes.
func TestUnreadConnectionsEnd(t *testing.T) {
	defer func(old time.Duration) { patience = old }(patience)
	patience = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for text := make([]byte, 1<<20); ; {
			if _, err := w.Write(text); err != nil {
				ended <- err
				return
			}
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, l, handler) }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		// The server's own read may have taken the first of the two errors.
		if !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.EPIPE) {
			t.Errorf("the connection ended with %v, want %v or, after it, %v", err, unix.ETIMEDOUT, unix.EPIPE)
		}
	case <-time.After(time.Minute):
		t.Error("the connection of a client that does not read stays")
		client.Close()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
