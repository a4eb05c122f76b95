package main

import (
	"strings"
	"testing"

	"gpumem/record/advise"
	"gpumem/record/replay"
)

// A page does not say that a program fits where its context keeps it from that, or for longer
// than it does.
func TestAdviceHeadline(t *testing.T) {
	steps := uint64(134)
	for name, c := range map[string]struct {
		change func(*advise.Report)
		want   string
	}{
		"fits": {func(r *advise.Report) { r.FitsAsItIs = true }, ""},
		"grows": {func(r *advise.Report) {
			r.FitsAsItIs = true
			r.Grows = &advise.Grows{BytesPerStep: 100 << 20, FitsSteps: &steps}
		}, "a.pickle grows by 100 MiB in each step: it fits 16 GiB for about 130 steps"},
		"grows unevenly": {func(r *advise.Report) {
			r.FitsAsItIs, r.Advice = true, &advise.Candidate{}
			r.Grows = &advise.Grows{BytesPerStep: 100 << 20}
		}, "a.pickle grows by 100 MiB in each step: for how many steps it fits 16 GiB is unknown"},
		"grows in unknown steps": {func(r *advise.Report) {
			r.FitsAsItIs, r.Advice = true, &advise.Candidate{}
			r.Grows = &advise.Grows{Grown: 100 << 20}
		}, "a.pickle grows: for how many steps it fits 16 GiB is unknown"},
		"fits with a setting":   {func(r *advise.Report) { r.Advice = &advise.Candidate{Set: []string{"A=1"}} }, "a.pickle does not fit 16 GiB as it is, and fits with A=1"},
		"fits with our pool":    {func(r *advise.Report) { r.Advice = &advise.Candidate{Run: "gpumem run"} }, "a.pickle does not fit 16 GiB as it is"},
		"fits with nothing":     {func(*advise.Report) {}, "a.pickle does not fit 16 GiB, with 1.50 GiB outside the pool"},
		"was refused something": {func(r *advise.Report) { r.Trace.Refused = 1 }, ""},
		"no framework":          {func(r *advise.Report) { r.Source.Name = "" }, ""},
	} {
		r := &advise.Report{Trace: replay.TraceInfo{Source: "/x/a.pickle"}, Source: advise.Source{Name: "pytorch"}, DeviceBytes: 16 << 30, ContextBytes: 3 << 29}
		c.change(r)
		if got := adviceHeadline(r); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAssumedOfProcesses: what lies outside the pool of one process does so for each that there is at once.
func TestAssumedOfProcesses(t *testing.T) {
	for n, want := range map[int]string{0: "1 GiB outside the pool, ", 1: "1 GiB outside the pool, ", 3: "1 GiB outside the pool of each of 3 processes, "} {
		rep := &advise.Report{ContextBytes: 1 << 30, Need: &advise.Need{Processes: n}}
		if got := assumedText(rep); !strings.Contains(got, want) {
			t.Errorf("%d: %s", n, got)
		}
	}
	if got := assumedText(&advise.Report{}); strings.Contains(got, "each") {
		t.Error(got)
	}
}
