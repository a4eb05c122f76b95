package serve

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestRunClosesIdleConnections: connections that ask nothing, and those that stay
// open after a request, are closed; a stream of events lives on.
func TestRunClosesIdleConnections(t *testing.T) {
	defer func(a, b, c time.Duration) { readTime, writeTime, idleTime = a, b, c }(readTime, writeTime, idleTime)
	readTime, writeTime, idleTime = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, l, Handler(func(context.Context) (*State, error) { return &State{}, nil }, Options{}))
	}()
	dial := func(ask string) net.Conn {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, ask); err != nil {
			t.Fatal(err)
		}
		return c
	}
	stream := dial("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	defer stream.Close()
	events := bufio.NewReader(stream)
	silent, asked := dial(""), dial("GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
	for _, c := range []net.Conn{silent, asked} {
		if _, err := io.ReadAll(c); err != nil { // it ends when the server closes it
			t.Error(err)
		}
		c.Close()
	}
	for n := 0; n < 3; { // events come a second apart
		line, err := events.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended after %d events: %v", n, err)
		}
		if strings.HasPrefix(line, "event: state") {
			n++
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
