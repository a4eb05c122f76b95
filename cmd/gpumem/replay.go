package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/policy"
	"gpumem/replay"
	"gpumem/report"
	"gpumem/size"
	"gpumem/trace"
)

// defaultPolicies are those of a replay that names none: what JAX does by
// itself, its growing pool, and its passthrough.
var defaultPolicies = []string{"jax", "jax:preallocate=false", "platform"}

func replayCommand() *cobra.Command {
	var (
		policies []string
		device   string
		pool     string
		format   string
		smallest bool
		asJSON   bool
		paths    bool
	)
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Run a recording under several policies and compare",
		Long: "replay runs the allocations of a recorded program under each policy, on a device of its own,\n" +
			"and says whether they fit, what was held, what the driver cost, and where it breaks.\n\n" +
			"TRACE is a text trace or a PyTorch memory snapshot, gzip or not; - is standard input.\n" +
			"Exit status: 0 if every policy serves the whole recording, 1 if one refuses a request, 2 on bad input.",
		Example: "  gpumem replay examples/training.txt.gz\n" +
			"  gpumem replay run.txt --policy jax --policy jax:fraction=.9 --policy platform --device sim:24GiB\n" +
			"  gpumem replay snapshot.pickle --smallest --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, note, err := open.Choose(device, os.LookupEnv)
			if err != nil {
				return err
			}
			if len(policies) == 0 {
				policies = defaultPolicies
			}
			cfg := replay.Config{Device: spec.WithTotal, Total: spec.Sim.Total, Pool: pool, Smallest: smallest}
			for _, s := range policies {
				p, err := policy.Parse(s)
				if err != nil {
					return err
				}
				cfg.Policies = append(cfg.Policies, p)
			}
			if err := replay.CheckPolicies(cfg); err != nil {
				return err
			}
			if note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
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
			rep, err := replay.Run(cmd.Context(), t, cfg)
			line.clear()
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(rep)
			} else {
				err = printReplay(cmd.OutOrStdout(), rep, smallest)
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
	f.StringArrayVar(&policies, "policy", nil, "policy to run, NAME[@VERSION][:key=value,...]; repeat for several")
	f.StringVar(&device, "device", "", "device, such as sim:80GiB,used=8GiB (default $GPUMEM_DEVICE, else "+open.Default+")")
	f.StringVar(&pool, "pool", "", "only this pool of a recording that has several")
	f.StringVar(&format, "format", "", "format of the recording (default: by its content)")
	f.BoolVar(&smallest, "smallest", false, "also find the smallest device on which nothing is refused")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&paths, "paths", false, "keep whole file paths in stacks")
	return cmd
}

// printReplay is the report for people: one line about the recording, the
// table, then what the policies did on the way and where they broke.
func printReplay(w io.Writer, rep *replay.Report, smallest bool) error {
	var b strings.Builder
	t := rep.Trace
	fmt.Fprintf(&b, "%s: %s events, %s allocations, at most %s live\n", t.Source,
		report.Count(t.Events), report.Count(t.Allocs), size.Format(t.PeakLive))
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	if len(rep.Results) > 0 {
		r := rep.Results[0]
		fmt.Fprintf(&b, "device of %s; any allocator must hold %s at the peak\n\n", size.Format(r.DeviceBytes), size.Format(r.LowerBound))
	}
	titles := []string{"policy"}
	several := len(t.PoolNames) > 1
	if several {
		titles = append(titles, "pool")
	}
	titles = append(titles, "fits", ">refused", ">held peak", ">mean", ">idle", ">frag", ">driver calls", ">driver time", ">own time")
	if smallest {
		titles = append(titles, ">smallest device")
	}
	tab := report.NewTable(titles...)
	for _, r := range rep.Results {
		cells := []string{r.Policy}
		if several {
			cells = append(cells, r.Pool)
		}
		fits := "yes"
		if !r.Fits {
			fits = "NO"
		}
		cells = append(cells, fits, report.Count(r.Refused), size.Format(r.HeldPeak), size.Format(uint64(r.HeldMean)), size.Format(r.HeldIdle),
			strconv.FormatFloat(r.Fragmentation, 'f', 2, 64), report.Count(r.DriverCalls), report.Seconds(r.DriverSeconds),
			fmt.Sprintf("%.0f ns/event", r.EventNanos()))
		if smallest {
			s := "none"
			if r.Smallest != nil {
				s = size.Format(*r.Smallest)
			}
			cells = append(cells, s)
		}
		tab.Row(cells...)
	}
	if _, err := tab.WriteTo(&b); err != nil {
		return err
	}
	for _, r := range rep.Results {
		if len(r.Notes) == 0 && r.Failure == nil {
			continue
		}
		name := r.Policy
		if several {
			name += " " + r.Pool
		}
		fmt.Fprintf(&b, "\n%s\n", name)
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "  %s\n", n)
		}
		if f := r.Failure; f != nil {
			fmt.Fprintf(&b, "  first refused: event %s, %s\n", report.Count(f.Event), size.Format(f.Bytes))
			if f.Stack != "" {
				fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(f.Stack, "\n"), "\n", "\n    "))
			}
			fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(strings.TrimSuffix(f.Why, "\n"), "\n", "\n  "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
