package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gpumem/node/probe"
	"gpumem/node/serve"
)

type serveOptions struct {
	snapshotOptions
	listen, token string
	every         time.Duration
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Show GPU memory in a browser, with metrics for Prometheus",
		Args:  noWords,
		RunE:  runner(&o, runServe),
	}
	o.addDevices(cmd)
	fs := cmd.Flags()
	fs.StringVar(&o.listen, "listen", "127.0.0.1:8787", "`ADDRESS` and port; port 0 is any free one")
	fs.StringVar(&o.token, "token", "", "`TOKEN` that every request must have (default $GPUMEM_TOKEN; other users can see the command line)")
	fs.DurationVar(&o.every, "every", time.Second, "`TIME` between updates")
	return cmd
}

func runServe(ctx context.Context, o *serveOptions) error {
	if err := probe.CheckEvery(o.every); err != nil {
		return err
	}
	p, _, err := startProbe(o.probe)
	if err != nil {
		return err
	}

	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w; name another address, such as 127.0.0.1:0", o.listen, listenReason(err))
	}
	defer l.Close()
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return err
	}

	token := cmp.Or(o.token, os.Getenv("GPUMEM_TOKEN"))
	if token == "" && !at.Addr().Unmap().IsLoopback() {
		token = rand.Text()
	}
	host, noName := os.Hostname() // without one the page has no name
	address := "http://" + at.String() + "/"
	if at.Addr().IsUnspecified() {
		name := host
		if noName != nil {
			name = "localhost"
		}
		address = fmt.Sprintf("http://%s:%d/", name, at.Port())
	}
	if token != "" {
		address += "?token=" + token
	}
	fmt.Fprintln(o.out, address)
	return serve.Run(ctx, l, serve.Handler(serve.Machine(host, p.Snapshot), serve.Options{Every: o.every, Token: token}))
}

// listenReason returns the reason without the address, which the message has already.
func listenReason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}
