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

	"gpumem/node/probe"
	"gpumem/node/serve"
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
		Args:  noWords("serve"),
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
