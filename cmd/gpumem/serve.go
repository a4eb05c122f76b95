package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gpumem/machine/probe"
	"gpumem/serve"
)

func serveCommand() *cobra.Command {
	var (
		o      probe.Options
		listen string
		token  string
		every  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Show GPU memory in a browser, with metrics for Prometheus",
		Long: `serve shows a page with what gpumem ps shows, updated every second: devices,
programs, leases and the programs that wait for one. It prints the address and
runs until it is interrupted.

  /         the page
  /state    the same as JSON
  /events   the same as server-sent events
  /metrics  for Prometheus

It only reads. It listens on this machine alone unless --listen names another
address; then a token is needed, and one is made and printed if none is given.
The token is part of the page's address; Prometheus sends it as a bearer token.
Everyone with access sees the names of programs. The connection is not
encrypted: outside networks that you trust, put serve behind a proxy that
encrypts, and always set a token there (--token or $GPUMEM_TOKEN), because
requests from a proxy on this machine look local.

A program that uses package gpumem can show its own pools with package
gpumem/serve.`,
		Example: `  gpumem serve
  gpumem serve --listen 127.0.0.1:0 --device sim@/dev/shm/gpu
  GPUMEM_TOKEN=$(cat token) gpumem serve --listen 0.0.0.0:8787`,
		Args: noWords("serve"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, _, err := startRounds(o, every)
			if err != nil {
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
			return serve.Run(cmd.Context(), l, serve.Handler(serve.Machine(host, p.Snapshot), serve.Options{Every: every, Token: token}))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Devices, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
	f.StringVar(&listen, "listen", "127.0.0.1:8787", "`ADDRESS` and port; port 0 is any free one")
	f.StringVar(&token, "token", "", "`TOKEN` that every request must have (default $GPUMEM_TOKEN; other users can see the command line)")
	f.DurationVar(&every, "every", time.Second, "`TIME` between updates")
	return cmd
}

// listenReason returns the reason without the address, which the message has already.
func listenReason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}
