package leaks

import (
	"testing"

	"gpumem/record/internal/test/traintest"
)

// What one step keeps, it needs: the gradients and the state of 30 equal layers are made one
// after the other and stay.
func TestOneStepIsNeverALeak(t *testing.T) {
	rep, err := Find(t.Context(), traintest.Record(t, 1, 30, func(int, func(uint64) func()) {}), Config{})
	if err != nil || rep.Verdict != TooShort || len(rep.Leaks) > 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// A step that keeps something for each weight of a model is a leak if it is known that
// there are many, and the rate is exact.
func TestWhatEachStepKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		keep    func(step int, alloc func(uint64) func())
		verdict verdict
		rate    uint64
	}{
		"nothing": {func(int, func(uint64) func()) {}, None, 0},
		"a copy of each gradient": {func(_ int, alloc func(uint64) func()) {
			alloc(1 << 10)
			alloc(1 << 12)
			alloc(1 << 14)
			alloc(1 << 16)
			alloc(1 << 18)
		}, Leak, 1<<10 + 1<<12 + 1<<14 + 1<<16 + 1<<18},
		"a copy of each gradient in every third step": {func(step int, alloc func(uint64) func()) {
			if step%3 > 0 {
				return
			}
			for bytes := uint64(1 << 10); bytes <= 1<<18; bytes *= 4 {
				alloc(bytes)
			}
		}, Growth, 0},
		"more in the last steps": {func(step int, alloc func(uint64) func()) {
			alloc(1 << 10)
			if step >= 38 {
				alloc(1 << 12)
			}
		}, Leak, 1 << 10},
		"1 KiB": {func(_ int, alloc func(uint64) func()) { alloc(1 << 10) }, Leak, 1 << 10},
		"what the last epoch needs": {func(step int, alloc func(uint64) func()) {
			if step > 30 {
				alloc(1 << 10)
			}
		}, None, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rep, err := Find(t.Context(), traintest.Record(t, 40, 6, c.keep), Config{})
			if err != nil || rep.Verdict != c.verdict {
				t.Fatalf("%+v, %v, want %s", rep, err, c.verdict)
			}
			if c.verdict == Leak && (*rep.Steps != 40 || *rep.Leaks[0].BytesPerStep != c.rate) {
				t.Errorf("%d steps, %d bytes each, want 40 and %d", *rep.Steps, *rep.Leaks[0].BytesPerStep, c.rate)
			}
		})
	}
}

// A warm-up takes some steps: nothing is known of a few that keep nothing.
func TestFewStepsAreTooShort(t *testing.T) {
	for steps, want := range map[int]verdict{9: TooShort, 10: None} {
		rep, err := Find(t.Context(), traintest.Record(t, steps, 30, func(int, func(uint64) func()) {}), Config{})
		if err != nil || rep.Verdict != want {
			t.Errorf("%d steps: %+v, %v, want %s", steps, rep, err, want)
		}
	}
}

// Two updates a step are one step, and a repetition that is none of the updates is ignored.
func TestStepsAreCounted(t *testing.T) {
	s := make(steps, 60)
	for repeats, want := range map[float64]float64{0: 60, 60: 60, 30: 30, 20: 20, 59: 59, 240: 60, 41: 60} {
		if got := s.count(repeats); got != want {
			t.Errorf("%v: %v, want %v", repeats, got, want)
		}
	}
	if got := (*steps)(nil).count(7); got != 7 {
		t.Errorf("unknown: %v", got)
	}
}

// Where a step has two updates, what it keeps is not halved.
func TestWhatAStepOfTwoUpdatesKeeps(t *testing.T) {
	s := make(steps, 60)
	p, q := &place{}, &place{} // q keeps blocks of two sizes, 1001 in each update
	for i := range s {
		s[i] = uint64(10 * (i + 1))
		if i%2 == 0 {
			p.born = append(p.born, birth{event: uint64(10*i + 3), bytes: 1000})
		}
		q.born = append(q.born, birth{event: uint64(10*i + 4), bytes: 1000}, birth{event: uint64(10*i + 5), bytes: 1})
	}
	for n, want := range map[float64]uint64{60: 500, 59.8: 500, 30: 1000, 29.9: 1000} {
		if got, ok := s.rate(p, n); !ok || got < want-20 || got > want+20 || n <= 30 && got != want {
			t.Errorf("of %v steps: %d, %t, want %d", n, got, ok, want)
		}
		if got, _ := s.rate(q, n); got != 1001*want/500 {
			t.Errorf("of %v steps: %d, want %d", n, got, 1001*want/500)
		}
	}
}

// A copy of all weights every few steps is many blocks, and none is larger than the one before.
func TestWhatGrowsInBursts(t *testing.T) {
	tr := traintest.Record(t, 60, 6, func(step int, alloc func(uint64) func()) {
		if step%5 == 0 {
			for i := range uint64(24) {
				alloc(1<<10 + 1<<18*(i%2))
			}
		}
	})
	rep, err := Find(t.Context(), tr, Config{})
	const burst = 12*(1<<10) + 12*(1<<10+1<<18)
	if err != nil || len(rep.Leaks) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	p := rep.Leaks[0]
	if rate := *p.BytesPerStep; p.Regrows || p.Blocks != 12*24 || p.Bytes != 12*burst || rate < burst/5*9/10 || rate > burst/5*11/10 {
		t.Errorf("%+v, %d bytes each, want 288 blocks, %d and %d bytes", p, rate, 12*burst, burst/5)
	}
}

// What an epoch collects and then drops is no leak, however much of it the last one has.
func TestWhatAnEpochDropsIsNoLeak(t *testing.T) {
	var free []func()
	tr := traintest.Record(t, 45, 6, func(step int, alloc func(uint64) func()) {
		if step%15 == 0 { // an epoch begins
			for _, f := range free {
				f()
			}
			free = nil
		}
		free = append(free, alloc(1<<20))
	})
	rep, err := Find(t.Context(), tr, Config{})
	if err != nil || rep.Verdict != None || len(rep.Leaks) > 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}
