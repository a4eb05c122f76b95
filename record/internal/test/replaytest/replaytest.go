// Package replaytest reads recordings and command-line words for tests of replays.
package replaytest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/internal/tape"
	"gpumem/record/replay"
)

// Config returns a replay of the policies on a device, both as on the command line.
func Config(t testing.TB, device string, policies ...string) replay.Config {
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

// Text reads a text trace.
func Text(t testing.TB, events string) *tape.Trace {
	t.Helper()
	tr, err := formats.Read(context.Background(), strings.NewReader(events), "in", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// File reads a recording.
func File(t testing.TB, path ...string) *tape.Trace {
	t.Helper()
	tr, err := formats.Open(t.Context(), filepath.Join(path...), tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}
