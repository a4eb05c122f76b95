package replay_test

import (
	"context"
	"testing"

	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

const mib = 1 << 20

var (
	config = replaytest.Config
	text   = replaytest.Text
	file   = replaytest.File
)

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
