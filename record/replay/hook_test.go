package replay_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// hooked replays a small recording under platform with a hook, and counts its passes.
func hooked(t *testing.T, make func(*replay.Pass) replay.Hook) (passes int, err error) {
	cfg := config(t, "sim:8MiB", "platform")
	cfg.Smallest = true
	cfg.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook { passes++; return make(p) }}
	_, err = replay.Run(context.Background(), text(t, "a 1 4194304\na 2 6291456\nf 2\nf 1\na 3 0\n"), cfg)
	return passes, err
}

// TestHookSeesEveryEvent: with the figures after it, in one pass and not in those that
// are timed or search for a device.
func TestHookSeesEveryEvent(t *testing.T) {
	type seen struct {
		event, used, held, refused, calls uint64
		blocks                            int
		called                            bool
	}
	var got []seen
	var refused, ended uint64
	passes, err := hooked(t, func(p *replay.Pass) replay.Hook {
		return replay.Hook{
			Event: func(_ *trace.Event, b alloc.Block) error {
				got = append(got, seen{p.Event, p.Used, p.Held, p.Refused, p.Calls, p.Blocks, p.Called})
				return nil
			},
			Refused: func(e *trace.Event) error { refused = p.Event; return nil },
			End:     func() error { ended = p.Event; return nil },
		}
	})
	want := []seen{
		{1, 4 * mib, 4 * mib, 0, 1, 1, true},
		{2, 4 * mib, 4 * mib, 1, 1, 1, false}, // more than the device has left
		{3, 4 * mib, 4 * mib, 1, 1, 1, false},
		{4, 0, 0, 1, 2, 0, true},
		{5, 0, 0, 1, 2, 0, false}, // of 0 bytes
	}
	if err != nil || passes != 1 || refused != 2 || ended != 5 || len(got) != len(want) {
		t.Fatalf("%v; %d passes, refused %d, ended %d: %+v", err, passes, refused, ended, got)
	}
	for k := range want {
		if got[k] != want[k] {
			t.Errorf("%+v, want %+v", got[k], want[k])
		}
	}
}

// TestHookEndsReplay: an error of each function ends the replay with that error.
func TestHookEndsReplay(t *testing.T) {
	stop := errors.New("stop")
	for where, h := range map[string]replay.Hook{
		"event 1: ":  {Event: func(*trace.Event, alloc.Block) error { return stop }},
		"event 2: ":  {Refused: func(*trace.Event) error { return stop }},
		"platform: ": {End: func() error { return stop }},
	} {
		passes, err := hooked(t, func(*replay.Pass) replay.Hook { return h })
		if !errors.Is(err, stop) || passes != 1 || !strings.HasSuffix(err.Error(), where+"stop") {
			t.Errorf("%s%v after %d passes", where, err, passes)
		}
	}
}
