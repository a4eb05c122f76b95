// Package examples_test holds the shipped traces to what README.md says about
// them: each claim of the page that a trace shows, and every figure.
package examples_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device/open"
	"gpumem/internal/report"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

var update = flag.Bool("update", false, "write the figures of README.md anew")

const gib = 1 << 30

// defaults are the policies that replay runs when none is named.
var defaults = []string{"jax", "jax:preallocate=false", "platform"}

// run replays a shipped trace on a device, as the command would, and returns a
// result for each policy.
func run(t *testing.T, name, device string, smallest bool, policies ...string) *replay.Report {
	t.Helper()
	spec, err := open.Parse(device)
	if err != nil {
		t.Fatal(err)
	}
	cfg := replay.Config{Device: spec.WithTotal, Total: spec.Sim.Total, Smallest: smallest}
	for _, s := range policies {
		p, err := frameworks.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Policies = append(cfg.Policies, p)
	}
	tr, err := formats.Open(t.Context(), name+".txt.gz", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rep, err := replay.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestTraining(t *testing.T) {
	for _, device := range []string{"sim:24GiB", "sim:80GiB"} {
		rep := run(t, "training", device, false, defaults...)
		if n := rep.Trace.Events; n < 20_000 || n > 60_000 {
			t.Errorf("the trace has %d events, want 20,000 to 60,000", n)
		}
		for _, r := range rep.Results {
			if !r.Fits {
				t.Errorf("%s on %s refuses %d requests", r.Policy, device, r.Refused)
			}
		}
		platformIsLeastAndSlowest(t, rep, 1, 0.5)
	}
}

// P4: a growing pool fails where a preallocated one passes, for lack of a hole
// and not of memory, and not by a hair.
func TestFragmentation(t *testing.T) {
	devices := []uint64{16 * gib, 16 * gib / 100 * 97, 16 * gib / 100 * 103}
	for n := uint64(14); n <= 19; n++ {
		devices = append(devices, n*gib)
	}
	for _, total := range devices {
		rep := run(t, "fragmentation", fmt.Sprintf("sim:%d", total), false, defaults...)
		jax, growth, platform := rep.Results[0], rep.Results[1], rep.Results[2]
		if !jax.Fits || !platform.Fits {
			t.Errorf("on %s jax refuses %d requests and platform %d, want 0 and 0", size.Format(total), jax.Refused, platform.Refused)
		}
		if growth.Fits {
			t.Errorf("on %s growth refuses nothing", size.Format(total))
			continue
		}
		if c := growth.Failure.Cause; c.Limit-c.Live < c.Rounded || c.Hole >= c.Rounded {
			t.Errorf("on %s growth refuses %s with %s of its limit not live and a hole of %s; want room, but no hole",
				size.Format(total), size.Format(c.Rounded), size.Format(c.Limit-c.Live), size.Format(c.Hole))
		}
		if need := float64(rep.Trace.PeakLive) / float64(jax.Stats.BytesLimit); total == 16*gib && need < 0.8 {
			t.Errorf("the program needs %.0f %% of the limit, want most of it", 100*need)
		}
	}
}

// P6: platform holds least and pays the driver most.
func TestPlatform(t *testing.T) {
	platformIsLeastAndSlowest(t, run(t, "platform", "sim:80GiB", false, defaults...), 0.7, 0.25)
}

// platformIsLeastAndSlowest checks that the last result, platform's, has at
// most the given parts of every other's peak and mean, and at least 1000 times
// the driver calls and 30 times the driver's time. Measured are 140 times and
// more; but what the driver costs is a model, which may be bettered.
func platformIsLeastAndSlowest(t *testing.T, rep *replay.Report, peak, mean float64) {
	t.Helper()
	pools, platform := rep.Results[:len(rep.Results)-1], rep.Results[len(rep.Results)-1]
	if platform.DriverCalls != rep.Trace.Events {
		t.Errorf("platform calls the driver %d times for %d events", platform.DriverCalls, rep.Trace.Events)
	}
	for _, r := range pools {
		if float64(platform.HeldPeak) > peak*float64(r.HeldPeak) || platform.HeldMean > mean*r.HeldMean {
			t.Errorf("platform holds %s at its peak and %s in the mean, %s %s and %s; want at most %g and %g of that",
				size.Format(platform.HeldPeak), size.Format(uint64(platform.HeldMean)), r.Policy,
				size.Format(r.HeldPeak), size.Format(uint64(r.HeldMean)), peak, mean)
		}
		if platform.DriverCalls < 1000*r.DriverCalls || platform.DriverSeconds < 30*r.DriverSeconds {
			t.Errorf("platform calls the driver %d times for %.3g s, %s %d times for %.3g s; want far more",
				platform.DriverCalls, platform.DriverSeconds, r.Policy, r.DriverCalls, r.DriverSeconds)
		}
	}
}

const shared = "sim:24GiB,used=7372MiB"

// P3: a preallocation that is refused backs off and says so. P5: a lower
// fraction is not refused.
func TestSharedGPU(t *testing.T) {
	rep := run(t, "shared_gpu", shared, false, "jax", "jax:fraction=.5")
	jax, half := rep.Results[0], rep.Results[1]
	if need := float64(rep.Trace.PeakLive) / (24 * gib); need < 0.38 || need > 0.42 {
		t.Errorf("the job needs %.1f %% of the card, want about 40 %%", 100*need)
	}
	if !jax.Fits || !half.Fits {
		t.Errorf("jax refuses %d requests and half %d, want 0 and 0", jax.Refused, half.Refused)
	}
	notes := strings.Join(jax.Notes, "\n")
	if jax.HeldPeak >= jax.Stats.BytesLimit || !strings.Contains(notes, "the device refused") || !strings.Contains(notes, "took 16.20GiB") {
		t.Errorf("jax holds %s of its %s and notes %q; want it to back off and to say so",
			size.Format(jax.HeldPeak), size.Format(jax.Stats.BytesLimit), notes)
	}
	if half.HeldPeak != 12*gib || half.DriverCalls != 1 || len(half.Notes) != 0 {
		t.Errorf("with fraction .5 the pool holds %s after %d driver calls and notes %q; want 12 GiB at once, and nothing to note",
			size.Format(half.HeldPeak), half.DriverCalls, half.Notes)
	}
}

// The figures of README.md are those of the commands above them.
func TestReadme(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, c := range []struct {
		name, device string
		policies     []string // nil: the default ones, not named in the command
	}{
		{"training", "sim:24GiB", nil},
		{"fragmentation", "sim:16GiB", nil},
		{"platform", "sim:80GiB", nil},
		{"shared_gpu", shared, []string{"jax", "jax:fraction=.5"}},
	} {
		policies, command := c.policies, "gpumem replay examples/"+c.name+".txt.gz --device "+c.device
		if policies == nil {
			policies = byDefault
		}
		for _, p := range c.policies {
			command += " --policy " + p
		}
		want := "```\n$ " + command + " --smallest\n" + figures(t, run(t, c.name, c.device, true, policies...)) + "```\n"
		begin, end := "<!-- figures of "+c.name+" -->\n", "<!-- end -->\n"
		head, rest, ok := strings.Cut(text, begin)
		got, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("README.md has no figures of %s: want a line %q and one %q", c.name, begin, end)
		}
		if *update {
			text = head + begin + want + end + tail
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("README.md is not what is measured; go test ./examples -update writes the figures anew (-want +got):\n%s", diff)
		}
	}
	if *update && text != string(data) {
		if err := os.WriteFile("README.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// figures are those columns of the command's table that are the same on every
// machine, and the notes.
func figures(t *testing.T, rep *replay.Report) string {
	t.Helper()
	tab := report.NewTable("policy", "fits", ">refused", ">held peak", ">mean", ">driver calls", ">driver time", ">smallest device")
	notes := ""
	for _, r := range rep.Results {
		fits := "yes"
		if !r.Fits {
			fits = "NO"
		}
		tab.Row(r.Policy, fits, fmt.Sprint(r.Refused), size.Format(r.HeldPeak), size.Format(uint64(r.HeldMean)),
			fmt.Sprint(r.DriverCalls), seconds(r.DriverSeconds), size.Format(*r.Smallest))
		for _, n := range r.Notes {
			notes += "  " + r.Policy + ": " + n + "\n"
		}
		if f := r.Failure; f != nil {
			notes += fmt.Sprintf("  %s: first refused: event %d, %s", r.Policy, f.Event, size.Format(f.Bytes))
			if f.Hole > 0 { // where a policy has any
				notes += "; largest hole " + size.Format(f.Hole)
			}
			notes += "\n"
		}
	}
	var b strings.Builder
	if _, err := tab.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String() + notes
}

// seconds is a time with three digits, as the command prints it.
func seconds(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.3g s", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g us", s*1e6)
}

// README.md names every example.
func TestReadmeIsComplete(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	traces, err := filepath.Glob("*.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("*/main.go")
	if err != nil || len(traces) == 0 || len(programs) == 0 {
		t.Fatalf("%d traces, %d programs (%v)", len(traces), len(programs), err)
	}
	for _, name := range traces {
		if !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("README.md does not name %s", name)
		}
	}
	for _, p := range programs {
		if command := "go run ./examples/" + filepath.Dir(p); !strings.Contains(string(data), command) {
			t.Errorf("README.md does not say %s", command)
		}
	}
}
