package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/policy"
	"gpumem/replay"
	"gpumem/trace"
)

// defaultPolicies are those of a replay that names none: what JAX does by
// default, its cures, and the policies that map pages or use the driver's pool
// where the device can.
func defaultPolicies(info gpu.Info) []string {
	list := []string{"jax", "jax:preallocate=false", "platform"}
	if info.HasPools {
		list = append(list, "async")
	}
	if info.HasPages {
		list = append(list, "vmm", "elastic")
	}
	return list
}

func replayCommand() *cobra.Command {
	var (
		policies []string
		device   string
		pool     string
		format   string
		save     string
		smallest bool
		asJSON   bool
		paths    bool
		page     string
		drawing  string
	)
	var kinds []string
	for _, f := range trace.Formats() {
		kinds = append(kinds, fmt.Sprintf("  %-9s %s\n", f.Name, f.What))
	}
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Run a recording under several policies and compare",
		Long: "replay runs the allocations of a recorded program under each policy, on a device of its own,\n" +
			"and says whether they fit, what was held, what the driver cost, and where it breaks.\n\n" +
			"TRACE is one of these, gzip or not; - is standard input:\n" + strings.Join(kinds, "") +
			"Exit status: 0 if every policy serves the whole recording, 1 if one refuses a request, 2 on bad input.",
		Example: "  gpumem replay examples/training.txt.gz\n" +
			"  gpumem replay run.txt --policy jax --policy jax:fraction=.9 --policy platform --device sim:24GiB\n" +
			"  gpumem replay snapshot.pickle --smallest --json\n" +
			"  gpumem replay snapshot.pickle --report memory.html",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("replay takes one TRACE, a file or - for standard input, and got %d; gpumem replay --help has examples", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkPictures(args[0], save, page, drawing); err != nil {
				return err
			}
			spec, note, err := open.Choose(device, os.LookupEnv, smallest)
			if err != nil {
				return err
			}
			if smallest && !spec.CanResize() {
				return fmt.Errorf("--smallest tries devices of other sizes, and %s has the one it has; name a simulated one, such as --device %s", spec.Text, open.Default)
			}
			info, err := spec.Info()
			if err != nil {
				return err
			}
			if len(policies) == 0 {
				policies = defaultPolicies(info)
			}
			cfg := replay.Config{Device: spec.WithTotal, Total: info.Total, Pool: pool, Smallest: smallest, Picture: page != "" || drawing != ""}
			for _, s := range policies {
				p, err := policy.Parse(s)
				if err != nil {
					return err
				}
				cfg.Policies = append(cfg.Policies, p)
			}
			// A recording may take long to read, so what can be wrong without it
			// is found first.
			if err := replay.CheckPolicies(cfg); err != nil {
				return err
			}
			if save != "" {
				if err := checkSave(save, args[0]); err != nil {
					return err
				}
			}
			line := newProgress(cmd.ErrOrStderr())
			defer line.clear()
			cfg.Progress = line.show
			t, err := trace.Open(cmd.Context(), args[0], trace.Options{
				Format: format, KeepPaths: paths,
				Progress: func(done, total int64) { line.bytes("reading", done, total) },
			})
			if err != nil {
				return err
			}
			defer t.Close()
			if save != "" {
				if err := saveRecording(cmd.Context(), save, t); err != nil {
					return err
				}
			}
			rep, err := replay.Run(cmd.Context(), t, cfg)
			line.clear()
			if err != nil {
				return err
			}
			if err := writePictures(cmd.Context(), rep, page, drawing); err != nil {
				return err
			}
			// Not earlier: with an error stderr has that one line alone.
			if note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
			}
			for _, p := range cfg.Policies {
				if note := policy.ReleaseNote(policy.Framework{Name: p.Name, Version: p.Version}); note != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
				}
			}
			if slices.Contains(policies, "env") {
				_, warnings, err := policy.FromEnv(policy.Environ(os.Environ()))
				if err != nil {
					return err
				}
				for _, w := range warnings {
					fmt.Fprintf(cmd.ErrOrStderr(), "gpumem: warning: %s: %s\n", w.Name, w.Text)
				}
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false) // stacks have <module>
				err = enc.Encode(rep)
			} else {
				err = writeReplay(cmd.OutOrStdout(), rep, smallest)
			}
			if err != nil {
				return err
			}
			for _, r := range rep.Results {
				if !r.Fits {
					return errNo
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&policies, "policy", nil, "`POLICY` to run, NAME[@VERSION][:key=value,...]; repeat for several (default jax, jax:preallocate=false, platform, and async, vmm, elastic where the device can)")
	f.StringVar(&device, "device", "", "`DEVICE`: sim:80GiB[,used=8GiB], sim@FILE or cuda:N (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	f.StringVar(&pool, "pool", "", "only the pool `NAME` of a recording that has several")
	formatFlag(cmd, &format)
	f.StringVar(&save, "save", "", "also write the recording to `FILE` in gpumem's own format, which is small and read fast")
	f.BoolVar(&smallest, "smallest", false, "also find the smallest device on which nothing is refused")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringVar(&page, "report", "", "write a page to look at to `FILE`.html: the timeline, what is alive, the pool's map, what was refused")
	f.StringVar(&drawing, "svg", "", "write the timeline to `FILE`.svg, for documents")
	f.BoolVar(&paths, "paths", false, "keep whole file paths in stacks")
	return cmd
}

// formatFlag is the one of every command that reads a recording.
func formatFlag(cmd *cobra.Command, format *string) {
	var names []string
	for _, x := range trace.Formats() {
		names = append(names, x.Name)
	}
	cmd.Flags().StringVar(format, "format", "", "`FORMAT` of the recording: "+strings.Join(names, ", ")+" (default: by its content)")
}
