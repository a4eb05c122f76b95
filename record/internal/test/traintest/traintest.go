// Package traintest makes recordings of trainings for tests.
package traintest

import (
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
)

// Record records steps of a training of a model of layers, as PyTorch's stacks show it: of each
// layer 1 MiB of activations, 512 KiB of gradients and 1 MiB of optimizer state. keep, if not
// nil, is called at the end of each step, with what allocates in the program's own line.
func Record(t testing.TB, steps, layers int, keep func(step int, alloc func(bytes uint64) (free func()))) *tape.Trace {
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
			if keep != nil {
				keep(step, func(bytes uint64) func() {
					slot := alloc(own, bytes)
					return func() { free(slot) }
				})
			}
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
