package leaks

import (
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// training records steps of a model of layers as PyTorch's stacks have them. keep is called at
// the end of each step, with what allocates in the program's own line.
func training(t *testing.T, steps, layers int, keep func(step int, alloc func(bytes uint64))) *trace.Trace {
	t.Helper()
	format := tape.Format{Name: "torch", Looks: func([]byte) bool { return true }, Read: func(_ *input.Reader, b *tape.Builder) error {
		p := b.Pool("cuda:0")
		module := b.Frame("_call_impl", "/v/site-packages/torch/nn/modules/module.py", 1790)
		calling := b.Stack([]uint32{b.Frame("forward", "/v/site-packages/torch/nn/modules/linear.py", 134), module, b.Frame("main", "/home/u/train.py", 14)})
		going := b.Stack([]uint32{b.Frame("torch::autograd::generated::MmBackward0::apply(x)", "", 0), b.Frame("torch::autograd::Engine::run()", "", 0)})
		stepping := b.Stack([]uint32{b.Frame("step", "/v/site-packages/torch/optim/adam.py", 238), b.Frame("wrapper", "/v/site-packages/torch/optim/optimizer.py", 533), b.Frame("main", "/home/u/train.py", 16)})
		own := b.Stack([]uint32{b.Frame("main", "/home/u/train.py", 17)})
		alloc := func(site uint32, bytes uint64) uint32 {
			slot, err := p.Alloc(tape.Event{Bytes: bytes, Site: site}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return slot
		}
		free := func(list ...uint32) {
			for _, slot := range list {
				if err := p.Free(tape.Event{Slot: slot}); err != nil {
					t.Fatal(err)
				}
			}
		}
		var grads []uint32
		for step := range steps {
			free(grads...)
			grads = nil
			var acts []uint32
			for range layers {
				acts = append(acts, alloc(calling, 1<<20))
			}
			for i := layers - 1; i >= 0; i-- {
				grads = append(grads, alloc(going, 1<<19))
				free(acts[i])
			}
			if step == 0 {
				for range 2 * layers {
					alloc(stepping, 1<<19)
				}
			}
			free(alloc(stepping, 4))
			keep(step, func(bytes uint64) { alloc(own, bytes) })
		}
		return nil
	}}
	tr, err := tape.Formats{format}.Read(t.Context(), strings.NewReader("x"), "in", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// What one step keeps, it needs: the gradients and the state of 30 equal layers are made one
// after the other and stay.
func TestOneStepIsNeverALeak(t *testing.T) {
	rep, err := Find(t.Context(), training(t, 1, 30, func(int, func(uint64)) {}), Config{})
	if err != nil || rep.Verdict != TooShort || len(rep.Leaks) > 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// A step that keeps something for each weight of a model is a leak if it is known that
// there are many, and the rate is exact.
func TestWhatEachStepKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		keep    func(step int, alloc func(uint64))
		verdict verdict
		rate    uint64
	}{
		"nothing": {func(int, func(uint64)) {}, None, 0},
		"a copy of each gradient": {func(_ int, alloc func(uint64)) {
			alloc(1 << 10)
			alloc(1 << 12)
			alloc(1 << 14)
			alloc(1 << 16)
			alloc(1 << 18)
		}, Leak, 1<<10 + 1<<12 + 1<<14 + 1<<16 + 1<<18},
		"1 KiB": {func(_ int, alloc func(uint64)) { alloc(1 << 10) }, Leak, 1 << 10},
		"what the last epoch needs": {func(step int, alloc func(uint64)) {
			if step > 30 {
				alloc(1 << 10)
			}
		}, None, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rep, err := Find(t.Context(), training(t, 40, 6, c.keep), Config{})
			if err != nil || rep.Verdict != c.verdict {
				t.Fatalf("%+v, %v, want %s", rep, err, c.verdict)
			}
			if c.verdict == Leak && (*rep.Steps != 40 || *rep.Leaks[0].BytesPerStep != c.rate) {
				t.Errorf("%d steps, %d bytes each, want 40 and %d", *rep.Steps, *rep.Leaks[0].BytesPerStep, c.rate)
			}
		})
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
