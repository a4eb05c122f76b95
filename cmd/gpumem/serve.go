package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpumem/internal/proc"
	"gpumem/serve"
)

// lastWords is how long those who watch have to go when the server ends.
const lastWords = 3 * time.Second

func serveCommand() *cobra.Command {
	var (
		words  []string
		listen string
		token  string
		every  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve GPU memory to browsers and Prometheus",
		Long: `serve shows on a page what gpumem ps shows: devices, programs, leases and who waits
for one, each second. It prints the address and runs until it is interrupted.

  /         the page
  /state    the same as JSON
  /events   the same as server-sent events
  /metrics  for Prometheus

Nothing can be changed over it. It listens on this machine only, unless --listen
says otherwise; then a token is needed, which it makes and prints if none is
given. The token is for the page's address; Prometheus sends it as a bearer token.
What programs are called is shown to all who can look. The connection is not
encrypted: beyond networks that you trust, put it behind a proxy that is, and
always give a token there (--token or $GPUMEM_TOKEN): to this server a proxy on
this machine is this machine.

A program that uses package gpumem shows its own pools so: package gpumem/serve.`,
		Example: `  gpumem serve
  gpumem serve --listen 127.0.0.1:0 --device sim@/dev/shm/gpu
  GPUMEM_TOKEN=$(cat token) gpumem serve --listen 0.0.0.0:8787`,
		Args: noWords("serve"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < topLeast || every > 24*time.Hour {
				return fmt.Errorf("--every %v: want a time from %v to 24h, such as 2s", every, topLeast)
			}
			look, err := psLooker(words)
			if err != nil {
				return err
			}
			if _, err := look(); err != nil { // what is wrong with the words shows now
				return err
			}
			token = cmp.Or(token, os.Getenv("GPUMEM_TOKEN"))
			l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen %s: %w; name another address, such as 127.0.0.1:0", listen, listenReason(err))
			}
			defer l.Close()
			at, err := netip.ParseAddrPort(l.Addr().String())
			if err != nil {
				return err
			}
			if token == "" && !at.Addr().Unmap().IsLoopback() {
				token = rand.Text()
			}
			address := "http://" + at.String() + "/"
			if at.Addr().IsUnspecified() {
				name, err := os.Hostname()
				if err != nil {
					name = "localhost"
				}
				address = fmt.Sprintf("http://%s:%d/", name, at.Port())
			}
			if token != "" {
				address += "?token=" + token
			}
			fmt.Fprintln(cmd.OutOrStdout(), address)
			host, _ := os.Hostname() // without one the page has no name
			return serveUntil(cmd.Context(), l, serve.Handler(func(context.Context) (*serve.State, error) {
				s, err := look()
				if err != nil {
					return nil, err
				}
				return serveState(s, host), nil
			}, serve.Options{Every: every, Token: token}))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&words, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
	f.StringVar(&listen, "listen", "127.0.0.1:8787", "`ADDRESS` and port; port 0 is any free one")
	f.StringVar(&token, "token", "", "`TOKEN` that all who look have to send (default $GPUMEM_TOKEN; others can see the command line)")
	f.DurationVar(&every, "every", time.Second, "look again after `TIME`")
	return cmd
}

// listenReason is the reason without the address, which is told before it.
func listenReason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

// How long a connection may take for one request, be written to, and stay idle
// between two. A stream of events sets its own times for each event.
var (
	readTime  = 10 * time.Second
	writeTime = time.Minute
	idleTime  = time.Minute
)

// mostHeader is the size of a request's header in bytes; a browser's are some
// hundreds.
const mostHeader = 64 << 10

// serveUntil serves until the context ends, which is no error.
func serveUntil(ctx context.Context, l net.Listener, h http.Handler) error {
	watch, stop := context.WithCancel(context.Background())
	defer stop()
	s := &http.Server{Handler: h, ReadHeaderTimeout: readTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: mostHeader, BaseContext: func(net.Listener) context.Context { return watch }}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop() // those who watch are let go
	last, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	if err := s.Shutdown(last); err != nil {
		return s.Close()
	}
	return nil
}

// serveState is what ps knows, for the page.
func serveState(s *psState, host string) *serve.State {
	out := &serve.State{Time: s.at, Title: host, Devices: []serve.Device{}}
	if s.driver != nil {
		out.Driver = &serve.Driver{Up: s.driver.Up, Why: s.driver.Why}
	}
	for _, n := range s.notes {
		out.Notes = append(out.Notes, oneLine(n))
	}
	for _, d := range s.devices {
		v := serve.Device{
			Device: d.Words, Name: d.Name, UUID: d.UUID, Simulated: d.Simulated, Total: d.Total, Used: d.Used, Free: d.Free, Told: d.Free > 0 || d.Used > 0,
			Leased: d.leased, Programs: []serve.Program{}, Waiting: []serve.Waiting{},
		}
		for _, n := range d.Notes {
			out.Notes = append(out.Notes, oneLine(d.Words+": "+n))
		}
		for _, p := range d.programs {
			v.Programs = append(v.Programs, serveProgram(p))
		}
		for _, l := range d.waiting {
			v.Waiting = append(v.Waiting, serve.Waiting{PID: l.PID, User: proc.UserName(l.UID), Command: oneLine(strings.Join(l.Command, " ")), Wants: l.Bytes, Since: l.Since})
		}
		out.Devices = append(out.Devices, v)
	}
	return out
}

func serveProgram(p psProgram) serve.Program {
	v := serve.Program{PID: p.PID, Name: p.Name, Used: p.Used, Told: p.Known || p.Kind == ""} // with a lease alone it holds nothing
	command := []string(nil)
	if p.lease != nil {
		v.Lease, command, v.User = p.lease.Bytes, p.lease.Command, leaseUser(p.lease)
		if p.lease.programs > 1 {
			v.Marks = append(v.Marks, fmt.Sprintf("%d programs in one lease", p.lease.programs))
		}
	}
	if p.left != nil {
		v.Marks = append(v.Marks, fmt.Sprintf("left by %d", p.left.PID))
	}
	if i := p.info; i != nil {
		command, v.User = i.Command, i.User
		if i.ParentGone {
			v.Marks = append(v.Marks, "parent gone")
		}
		if i.Container != "" {
			v.Marks = append(v.Marks, "container "+i.Container)
		}
		v.Name = cmp.Or(v.Name, i.Name)
	}
	for _, f := range p.loaded {
		v.Marks = append(v.Marks, strings.TrimSpace(f.Name+" "+f.Version))
	}
	v.Command = oneLine(strings.Join(command, " "))
	if v.Name == "" && len(command) > 0 {
		v.Name = filepath.Base(command[0])
	}
	return v
}
