package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/report"
	"gpumem/record/replay"
)

const (
	mib  = 1 << 20
	hour = time.Hour
)

// TestWriteReplay: the whole of what people read, with one of everything.
func TestWriteReplay(t *testing.T) {
	first, smallest := uint64(1234), uint64(96*mib)
	rep := &replay.Report{
		Trace: replay.TraceInfo{
			Source: "run.pickle", Events: 123456, Allocs: 1, PeakLive: 64 * mib,
			Notes:     []string{"2 blocks older than the recording (6.84 KiB) are allocated at its start, in the order of the addresses"},
			PoolNames: []string{"cuda:0", "cuda:1"},
		},
		Results: []*replay.Result{
			{
				Policy: "jax:fraction=.9,preallocate=false,gc=true", Pool: "cuda:0", DeviceBytes: 80 << 30,
				Fits: true, HeldPeak: 64 * mib, HeldMean: 1.5 * mib, HeldIdle: 2 * mib, LowerBound: 62 * mib,
				Fragmentation: 0.125, DriverCalls: 1000, DriverSeconds: 0.00125, Smallest: &smallest,
				Notes: []string{"something happened"},
			},
			{
				Policy: "platform", Pool: "cuda:1", DeviceBytes: 80 << 30, Refused: 2, FirstRefused: &first, LowerBound: 4 * mib,
				Failure: &replay.Failure{
					Event: 1234, Bytes: 8 * mib, Stack: "forward (model.py:12)\n<module> (train.py:40)",
					Why: "Why: 8 MiB was asked for.\n  The largest hole is so small that a line about it has to be broken somewhere.\n",
				},
			},
		},
	}
	want := `run.pickle: 123,456 events, 1 allocation, at most 64 MiB live
  2 blocks older than the recording (6.84 KiB) are allocated at its start, in
    the order of the addresses
device of 80 GiB; any allocator must hold 62 MiB in cuda:0, 4 MiB in cuda:1 at the peak

policy                pool    fits  refused  held peak      mean   idle  frag  driver calls  driver time    own time  smallest device
jax:fraction=.9,      cuda:0  yes         0     64 MiB  1.50 MiB  2 MiB  0.12         1,000      1.25 ms  0 ns/event           96 MiB
  preallocate=false,
  gc=true
platform              cuda:1  NO          2        0 B       0 B    0 B  0.00             0            0  0 ns/event             none

jax:fraction=.9,preallocate=false,gc=true, pool cuda:0
  something happened

platform, pool cuda:1
  first refused: event 1,234, 8 MiB
    forward (model.py:12)
    <module> (train.py:40)
  Why: 8 MiB was asked for.
    The largest hole is so small that a line about it has to be broken
      somewhere.
`
	var b strings.Builder
	if err := printText(&b, func(t *text) { writeReplay(t, rep, true) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBreakPolicy(t *testing.T) {
	for spec, want := range map[string][]string{
		"jax":                                  {"jax"},
		"jax:preallocate=false":                {"jax:preallocate=false"},
		"bfc:limit=1GiB,gc=true,coalesce=true": {"bfc:limit=1GiB,gc=true,", "  coalesce=true"},
		"bfc:fragmentation=0.123456789012345,limit=1":      {"bfc:fragmentation=0.123456789012345,", "  limit=1"},
		"bfc:limit=1,fragmentation=0.123456789012345,gc=1": {"bfc:limit=1,", "  fragmentation=0.123456789012345,", "  gc=1"},
	} {
		got := breakPolicy(spec)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", spec, diff)
		}
		if all := strings.ReplaceAll(strings.Join(got, ""), " ", ""); all != spec {
			t.Errorf("%s became %s", spec, all)
		}
	}
}

// TestProgress: one line, after a while, that can be taken away.
func TestProgress(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b)
	if p.on {
		t.Fatal("on, and it is no terminal")
	}
	p.show("x", 0.5)
	p.clear()
	if b.Len() > 0 {
		t.Errorf("not a terminal: %q", b.String())
	}
	p.on = true
	p.show("too early", 0.5)
	p.clear()
	if b.Len() > 0 {
		t.Errorf("too early: %q", b.String())
	}
	for _, c := range []struct {
		show func()
		want string
	}{
		{func() { p.show("jax: running", 0.423) }, "jax: running  42 %"},
		{func() { p.replay(replay.Progress{Doing: "searching", Part: 0.5}) }, "searching  50 %"},
		{func() { p.replay(replay.Progress{Doing: "jax: trying", Part: 0.5, Done: 5000}) }, "5,000 events replayed, 0s: jax: trying"},
		{func() { p.replay(replay.Progress{Doing: "jax, elastic", Part: 0.25, Done: 5000, Total: 20_000}) }, " 25 %, 0s: jax, elastic"},
		{func() {
			p.replay(replay.Progress{Doing: strings.Repeat("a long policy, ", 9), Part: 0.3, Done: 6000, Total: 20_000})
		}, " 30 %, 0s: a long policy, a long poli...policy, a long policy, a long policy, "},
		{func() {
			p.since = p.since.Add(-time.Minute)
			p.replay(replay.Progress{Doing: "jax", Part: 0.5, Done: 10_000, Total: 20_000})
		}, " 50 %, 1m0s, 1m1s left: jax"},
		{func() { p.bytes("reading", 1*mib, 4*mib) }, "reading  25 %"},
		{func() { p.bytes("reading", 3*mib, 0) }, "reading 3 MiB"},
	} {
		b.Reset()
		p.start, p.last = p.start.Add(-hour), p.last.Add(-hour)
		c.show()
		c.show() // at once again: nothing new
		p.clear()
		p.clear()
		if want := "\r\x1b[K" + c.want + "\r\x1b[K"; b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}

func TestShorten(t *testing.T) {
	long := strings.Repeat("ä", 100) + ": running 42 %"
	if got := report.Shorten(long, 40); utf8.RuneCountInString(got) != 40 || !strings.HasPrefix(got, "ää") || !strings.HasSuffix(got, "...äääää: running 42 %") {
		t.Errorf("%q", got)
	}
	if got := report.Shorten("short", 40); got != "short" {
		t.Errorf("%q", got)
	}
}
