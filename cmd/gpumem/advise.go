package main

// gpumem advise: with which settings a recorded run fits a card, and which card
// is the smallest.

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/replay/advise"
	"gpumem/size"
	"gpumem/trace"
)

func adviseCommand() *cobra.Command {
	var (
		device, pool, format string
		beside               string
		asJSON               bool
	)
	cmd := &cobra.Command{
		Use:   "advise TRACE",
		Short: "Find the settings with which a recording fits a GPU",
		Long: "advise replays a recorded run under one setting after the other, the cheapest first, and says\n" +
			"which is enough for the card, what it leaves for a second program, and the smallest card.\n\n" +
			"TRACE is a recording as for replay. A real GPU is only asked for its size: all replays are on\n" +
			"simulated ones. Exit status: 0 if something fits the card, 1 if nothing does, 2 on bad input.",
		Example: "  gpumem advise examples/training.txt.gz --device sim:12GiB\n  gpumem advise snapshot.pickle --json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("advise takes one TRACE, a file or - for standard input, and got %d; gpumem advise --help has examples", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := advise.Config{Pool: pool}
			var err error
			if cfg.Context, err = size.ParseFlag(beside); err != nil {
				return fmt.Errorf("--beside: %w", err)
			}
			spec, note, err := open.Choose(device, os.LookupEnv, true)
			if err != nil {
				return err
			}
			if cfg.Sim, err = simulated(spec); err != nil {
				return err
			}
			if err := advise.Check(cfg); err != nil {
				return err
			}
			line := newProgress(cmd.ErrOrStderr())
			defer line.clear()
			cfg.Progress = line.show
			t, err := trace.Open(cmd.Context(), args[0], trace.Options{
				Format: format, Progress: func(done, total int64) { line.bytes("reading", done, total) },
			})
			if err != nil {
				return err
			}
			defer t.Close()
			rep, err := advise.Run(cmd.Context(), t, cfg)
			line.clear()
			if err != nil {
				return err
			}
			if note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(rep)
			} else {
				err = writeAdvice(cmd.OutOrStdout(), rep)
			}
			if err == nil && rep.Advice == nil {
				err = errNo
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&device, "device", "", "`DEVICE`: sim:24GiB[,used=8GiB], sim@FILE or cuda:N, of which only the size is asked (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	f.StringVar(&pool, "pool", "", "only the pool `NAME` of a recording that has several")
	formatFlag(cmd, &format)
	f.StringVar(&beside, "beside", size.Format(advise.DefaultContext), "`SIZE` of what the program takes beside its pool: the CUDA context, code, libraries")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// simulated is the card that a device's words mean, simulated: with its size,
// and what others hold of it now.
func simulated(spec open.Spec) (sim.Config, error) {
	if spec.Kind == open.Private {
		return spec.Sim, nil
	}
	dev, err := spec.Device()
	if err != nil {
		return sim.Config{}, err
	}
	defer dev.Close()
	info := dev.Info()
	cfg := sim.Config{Total: info.Total, CCMajor: info.CCMajor, CCMinor: info.CCMinor, NoPages: !info.HasPages, NoPools: !info.HasPools}
	if free, total, err := gpu.Device(dev).MemInfo(); err == nil {
		cfg.Used = total - min(total, free)
	}
	return cfg, nil
}
