package timeline_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/policy"
	"gpumem/replay"
	"gpumem/trace"
)

// config is a replay of the policies on a device, both as on the command line.
func config(t testing.TB, device string, policies ...string) replay.Config {
	t.Helper()
	spec, err := open.Parse(device)
	if err != nil {
		t.Fatal(err)
	}
	cfg := replay.Config{Device: spec.WithTotal, Total: spec.Sim.Total}
	for _, s := range policies {
		p, err := policy.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Policies = append(cfg.Policies, p)
	}
	return cfg
}

// text reads a text trace.
func text(t testing.TB, events string) *trace.Trace {
	t.Helper()
	tr, err := trace.Read(context.Background(), strings.NewReader(events), "in", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// file reads a recording.
func file(t testing.TB, path ...string) *trace.Trace {
	t.Helper()
	tr, err := trace.Open(t.Context(), filepath.Join(path...), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func run(t testing.TB, tr *trace.Trace, cfg replay.Config) *replay.Report {
	t.Helper()
	rep, err := replay.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}
