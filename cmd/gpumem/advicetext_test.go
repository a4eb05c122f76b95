package main

import (
	"strings"
	"testing"

	"gpumem/record/advise"
	"gpumem/record/leaks"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// TestWriteAdviceOurs: where only our own pool can, its command is given and no line to
// export.
func TestWriteAdviceOurs(t *testing.T) {
	event, bytes := uint64(7), uint64(8<<30)
	jax := &advise.Candidate{Policy: "jax", Refused: 1, FirstRefused: &event, RefusedBytes: 3 * mib, HeldPeak: 6 * mib}
	ours := &advise.Candidate{Policy: "elastic", Ours: true, Run: "gpumem run --pool elastic -- COMMAND", Fits: true, HeldPeak: 8 * mib, Left: mib, SmallestDevice: &bytes, SmallestCard: &bytes, Notes: []string{"a remark"}}
	rep := &advise.Report{
		Trace: replay.TraceInfo{Source: "run.txt", Notes: []string{"read so"}}, Source: advise.Source{Name: "jax"}, DeviceBytes: 9 * mib, UsedBytes: mib,
		Candidates: []*advise.Candidate{jax, ours}, Advice: ours,
	}
	var b strings.Builder
	if err := printText(&b, func(t *text) { writeAdvice(t, rep) }); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"It does not fit with any setting of JAX (event 7, a request for 3 MiB, is refused; at most 6 MiB of 9 MiB is held). It fits with this project's pool under the unchanged program: gpumem run --pool elastic -- COMMAND",
		"during the run: a remark",
		"(run --pool elastic) yes 8 MiB 1 MiB 0 0 8 GiB 8 GiB",
		"(nothing) NO 6 MiB 0 0 none none",
		"Nothing of this leaves enough memory for a second program.",
		"No card on the market is large enough with settings of the framework. With gpumem run --pool elastic -- COMMAND a card of 8 GiB is enough.",
		"device of 9 MiB, 1 MiB of it held by others",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(got, "export") {
		t.Errorf("an export in\n%s", b.String())
	}
}

// TestAdviceVerdictGPUs: of several GPUs it says whether some fit.
func TestAdviceVerdictGPUs(t *testing.T) {
	jax := &advise.Candidate{Policy: "jax"}
	for _, tc := range []struct {
		name string
		gpus []*advise.GPU
		want string
	}{
		{"one fits", []*advise.GPU{{Advice: jax}, {}}, "It does not fit all of 2 GPUs of 9 MiB, with any setting: 10 MiB is live at the peak, and 2 MiB is needed outside the pool."},
		{"none fits", []*advise.GPU{{}, {}}, "It does not fit any of 2 GPUs of 9 MiB, with any setting: 10 MiB is live at the peak, and 2 MiB is needed outside the pool."},
		{"one GPU", nil, "It does not fit a GPU of 9 MiB, with any setting: 10 MiB is live at the peak, and 2 MiB is needed outside the pool."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rep := &advise.Report{
				Source: advise.Source{Name: "jax"}, DeviceBytes: 9 * mib, ContextBytes: 2 * mib, GPUs: tc.gpus,
				Candidates: []*advise.Candidate{jax}, Need: &advise.Need{Live: 10 * mib, Wanted: 10 * mib, Pools: 1, Processes: 1, TooMuch: true},
			}
			if got := adviceVerdict(rep, ""); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
			rep.Need.Processes = 2
			if got, want := adviceVerdict(rep, ""), strings.TrimSuffix(tc.want, ".")+" of each of 2 processes."; got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
}

// TestWriteLeaks: each verdict in words, and what does not fit on a screen.
func TestWriteLeaks(t *testing.T) {
	steps, each := uint64(50), uint64(mib)
	place := leaks.Place{Site: "keep (train.py:12)", Stack: "keep (train.py:12)\nmain (train.py:3)", BytesPerStep: &each, Bytes: 50 * mib, Blocks: 50, FirstEvent: 2, GrowsToEvent: 149}
	deep := place
	deep.Stack = strings.TrimSuffix(strings.Repeat("f (x.py:1)\n", 14), "\n")
	bigger := place
	bigger.Regrows, bigger.BytesPerStep, bigger.Pool = true, nil, "cuda:1"
	kept := place
	kept.Keeper = &trace.Keeper{Container: "list `hist`", Line: "train.py:8"}
	for _, tc := range []struct {
		name string
		rep  leaks.Report
		want []string
	}{
		{"two leaks", leaks.Report{Verdict: leaks.Leak, Steps: &steps, Leaks: []leaks.Place{place, bigger}, Grew: []leaks.Place{place}}, []string{
			"2 leaks: keep (train.py:12) keeps 1 MiB more in each step, in about 50 steps; 50 MiB at the end.",
			"? 50 MiB 50 2 keep (train.py:12) on cuda:1, each time a larger block",
			"50 MiB until event 149, then no more: keep (train.py:12)",
			"Keep loss.item() or x.detach()",
		}},
		{"with the container that keeps it", leaks.Report{Verdict: leaks.Leak, Leaks: []leaks.Place{kept}}, []string{
			"2 keep (train.py:12); kept by list `hist` (train.py:8)", "they are kept by list `hist` (train.py:8): take out what is no longer needed", "Keep loss.item() or x.detach()",
		}},
		{"a deep stack, many places", leaks.Report{Verdict: leaks.Leak, Leaks: []leaks.Place{deep, place, place, place, place, place, place, place, place, place}}, []string{
			"10 leaks: keep", "and 100 MiB in 2 places more (--json)", "and 4 frames more (--json)",
		}},
		{"perhaps one step", leaks.Report{Verdict: leaks.Growth, Steps: &steps, Leaks: []leaks.Place{place}}, []string{
			"It grows to the end: keep (train.py:12) keeps more and more; 50 MiB at the end. The recording shows no step that surely repeats", "a round",
		}},
		{"nothing to name", leaks.Report{Verdict: leaks.Growth, Unnamed: 3 * mib}, []string{
			"Live memory grows steadily, by 3 MiB from a quarter to nine tenths of the recording, but no one place keeps it",
		}},
		{"none", leaks.Report{Verdict: leaks.None}, []string{"No leak: nothing grows to the end. The recording does not show how many steps there are."}},
		{"too short", leaks.Report{Verdict: leaks.TooShort}, []string{"Too short to say"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b strings.Builder
			if err := printText(&b, func(t *text) {
				writeLeaks(t, &leaks.Answer{Trace: replay.TraceInfo{Source: "x.pickle", Format: "torch"}, Report: &tc.rep})
			}); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(strings.Fields(b.String()), " ")
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in\n%s", want, b.String())
				}
			}
			if n := strings.Count(b.String(), "\n"); n > 40 {
				t.Errorf("%d lines", n)
			}
		})
	}
}

// TestWriteLiveWithKeepers: a line of what is live has the container that keeps it.
func TestWriteLiveWithKeepers(t *testing.T) {
	var b strings.Builder
	held := []leaks.Held{{Site: "f (t.py:3)", Bytes: mib, Blocks: 2, Keeper: &trace.Keeper{Container: "list `hist`"}}, {Site: "g (t.py:4)", Bytes: 1, Blocks: 1}}
	if err := printText(&b, func(t *text) { writeLive(t, &leaks.LiveAnswer{Live: held}) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(b.String()), " "); !strings.HasSuffix(got, "1 MiB 2 f (t.py:3); kept by list `hist` 1 B 1 g (t.py:4)") {
		t.Error(got)
	}
}
