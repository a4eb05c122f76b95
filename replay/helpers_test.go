package replay_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/policy/frameworks"
	"gpumem/replay"
	"gpumem/trace"
	"gpumem/trace/formats"
)

const mib = 1 << 20

// config is a replay of the policies on a device, both as on the command line.
func config(t testing.TB, device string, policies ...string) replay.Config {
	t.Helper()
	spec, err := open.Parse(device)
	if err != nil {
		t.Fatal(err)
	}
	cfg := replay.Config{Device: spec.WithTotal, Total: spec.Sim.Total}
	for _, s := range policies {
		p, err := frameworks.Parse(s)
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
	tr, err := formats.Read(context.Background(), strings.NewReader(events), "in", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// file reads a recording.
func file(t testing.TB, path ...string) *trace.Trace {
	t.Helper()
	tr, err := formats.Open(t.Context(), filepath.Join(path...), trace.Options{})
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

// one runs one policy over a text trace.
func one(t testing.TB, events, device, policy string) *replay.Result {
	t.Helper()
	return run(t, text(t, events), config(t, device, policy)).Results[0]
}
