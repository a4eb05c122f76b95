package category

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
)

// A program makes the events of a run as PyTorch's allocator sees them, and knows what each
// block is for.
type program struct {
	t      testing.TB
	b      *tape.Builder
	p      *tape.PoolBuilder
	blind  bool   // no stacks
	made   int    // blocks
	now    uint64 // the time of the next event, 0 if there are no times
	live   map[uint32]made
	bytes  uint64
	peak   uint64
	atPeak map[Category]uint64
}

// made is a block of a program.
type made struct {
	slot  uint32
	bytes uint64
	Category
}

// Stacks as PyTorch has them.
var (
	moving    = []string{"convert (/v/site-packages/torch/nn/modules/module.py:1370)", "_apply (/v/site-packages/torch/nn/modules/module.py:965)", "to (/v/site-packages/torch/nn/modules/module.py:1384)", "main (/home/u/train.py:9)"}
	calling   = []string{"forward (/v/site-packages/torch/nn/modules/linear.py:134)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)", "forward (/home/u/model.py:20)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)", "main (/home/u/train.py:14)"}
	going     = []string{"at::native::empty_cuda(...)", "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", "torch::autograd::Engine::evaluate_function(...)"}
	computing = append([]string{"forward (/home/u/model.py:20)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)", "recompute_fn (/v/site-packages/torch/utils/checkpoint.py:1125)", "unpack_hook (/v/site-packages/torch/utils/checkpoint.py:1179)"}, "main (/home/u/train.py:15)")
	stepping  = []string{"_init_group (/v/site-packages/torch/optim/adam.py:178)", "step (/v/site-packages/torch/optim/adam.py:238)", "wrapper (/v/site-packages/torch/optim/optimizer.py:533)", "main (/home/u/train.py:16)"}
	loading   = []string{"main (/home/u/train.py:12)"}
)

func (g *program) alloc(c Category, bytes uint64, stack []string) made {
	g.t.Helper()
	g.tick()
	var site uint32
	if !g.blind {
		var frames []uint32
		for _, f := range stack {
			name, file, _ := strings.Cut(f, " (")
			file, line, _ := strings.Cut(strings.TrimSuffix(file, ")"), ":")
			var n int64
			_, _ = fmt.Sscan(line, &n)
			frames = append(frames, g.b.Frame(name, file, n))
		}
		site = g.b.Stack(frames)
	}
	slot, err := g.p.Alloc(tape.Event{Bytes: bytes, Site: site}, 0)
	return g.add(made{slot, bytes, c}, err)
}

func (g *program) tick() {
	if g.now > 0 {
		g.b.At(g.now)
		g.now += 10
	}
}

// older is a block that is older than the recording. It is told before all others.
func (g *program) older(c Category, bytes uint64, where string) made {
	g.t.Helper()
	var site uint32
	if where != "" {
		site = g.b.Site([]byte(where))
	}
	slot, err := g.p.Seed(tape.Event{Bytes: bytes, Site: site})
	return g.add(made{slot, bytes, c}, err)
}

func (g *program) add(m made, err error) made {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
	slot, bytes := m.slot, m.bytes
	g.made++
	g.live[slot] = m
	if g.bytes += bytes; g.bytes > g.peak {
		g.peak, g.atPeak = g.bytes, map[Category]uint64{}
		for _, m := range g.live {
			g.atPeak[m.Category] += m.bytes
		}
	}
	return m
}

func (g *program) free(list ...made) {
	g.t.Helper()
	for _, m := range list {
		g.tick()
		if err := g.p.Free(tape.Event{Slot: m.slot}); err != nil {
			g.t.Fatal(err)
		}
		delete(g.live, m.slot)
		g.bytes -= m.bytes
	}
}

// A training is a loop over a model of equal layers.
type training struct {
	layers, steps int
	weight, act   uint64 // bytes a layer
	adam          bool   // else plain SGD
	keepZeroed    bool   // zero_grad(set_to_none=False)
	accumulate    int    // micro-batches a step
	away          bool   // the model is moved away at the end
}

func (c training) run(g *program) {
	var params, state, grads []made
	for i := range c.layers {
		params = append(params, g.alloc(Parameters, c.weight+uint64(i)*512, moving), g.alloc(Parameters, 4096+uint64(i)*512, moving))
	}
	var old made
	for step := range c.steps {
		if step > 0 && !c.keepZeroed {
			g.free(grads...)
			grads = nil
		}
		for range max(1, c.accumulate) {
			in := g.alloc(Inputs, 3<<20, loading)
			if old.bytes > 0 {
				g.free(old)
			}
			old = in
			var acts []made
			for i := range c.layers {
				x := g.alloc(Temporaries, c.act/2, calling)
				acts = append(acts, g.alloc(Activations, c.act+uint64(i)*1024, calling))
				g.free(x)
			}
			first := len(grads) == 0
			for i := c.layers - 1; i >= 0; i-- {
				x := g.alloc(Temporaries, c.act/4, going)
				for _, p := range []made{params[2*i], params[2*i+1]} {
					if first {
						grads = append(grads, g.alloc(Gradients, p.bytes, going))
					} else { // it is added to the one that there is
						g.free(g.alloc(Temporaries, p.bytes, going))
					}
				}
				g.free(x, acts[i])
			}
			g.free(g.alloc(Temporaries, 4096, going)) // of what the first layer is made from
		}
		if c.adam && step == 0 {
			for _, p := range params {
				state = append(state, g.alloc(State, p.bytes, stepping), g.alloc(State, p.bytes, stepping))
			}
		}
		if c.adam {
			x := g.alloc(Temporaries, c.weight, stepping)
			g.free(x)
		}
	}
	if c.away {
		g.free(params...)
		g.free(state...)
	}
}

// recorded returns the recording of a program, and what it says that its peak is made of.
func recorded(t testing.TB, blind bool, run func(*program)) (*tape.Trace, *program) {
	t.Helper()
	g := &program{t: t, blind: blind, live: map[uint32]made{}}
	format := tape.Format{Name: "torch", Looks: func([]byte) bool { return true }, Read: func(_ *input.Reader, b *tape.Builder) error {
		g.b, g.p = b, b.Pool("cuda:0")
		run(g)
		return nil
	}}
	tr, err := tape.Formats{format}.Read(t.Context(), strings.NewReader("x"), "in", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr, g
}

func partsOf(t testing.TB, tr *tape.Trace) (all, sure map[Category]uint64) {
	t.Helper()
	p, err := Of(context.Background(), tr, tr.Pools[0])
	if err != nil {
		t.Fatal(err)
	}
	all, sure = map[Category]uint64{}, map[Category]uint64{}
	sum := uint64(0)
	for _, part := range p.Parts {
		all[part.Category], sure[part.Category] = part.Bytes, part.Sure
		sum += part.Bytes
		if part.Sure > part.Bytes {
			t.Errorf("of %s %d bytes are sure and %d all", part.Category, part.Sure, part.Bytes)
		}
	}
	if sum != p.Bytes {
		t.Errorf("the parts are %d bytes, the peak %d", sum, p.Bytes)
	}
	return all, sure
}

var trainings = map[string]training{
	"Adam":                         {layers: 12, steps: 6, weight: 16 << 20, act: 8 << 20, adam: true},
	"Adam, the peak in the update": {layers: 12, steps: 6, weight: 64 << 20, act: 1 << 20, adam: true},
	"SGD without state":            {layers: 12, steps: 6, weight: 16 << 20, act: 8 << 20},
	"gradients are zeroed":         {layers: 12, steps: 6, weight: 16 << 20, act: 8 << 20, adam: true, keepZeroed: true},
	"three micro-batches":          {layers: 12, steps: 4, weight: 16 << 20, act: 8 << 20, adam: true, accumulate: 3},
	"the model is moved away":      {layers: 12, steps: 6, weight: 16 << 20, act: 8 << 20, away: true},
	"one step":                     {layers: 12, steps: 1, weight: 16 << 20, act: 8 << 20, adam: true},
	"two large layers":             {layers: 2, steps: 5, weight: 256 << 20, act: 512 << 20, adam: true},
}

// With stacks every byte has its category, and nothing that is sure is wrong.
func TestTraining(t *testing.T) {
	for name, c := range trainings {
		t.Run(name, func(t *testing.T) {
			tr, g := recorded(t, false, c.run)
			got, sure := partsOf(t, tr)
			if !maps.Equal(got, g.atPeak) {
				t.Errorf("%v, want %v", got, g.atPeak)
			}
			for k, n := range sure {
				if oneUpdate := name == "one step" && k == Temporaries; k != Inputs && !oneUpdate && n != got[k] {
					t.Errorf("of %d bytes of %s only %d are sure", got[k], k, n)
				}
			}
		})
	}
}

// Without stacks most bytes have it, by lifetimes, and none is sure.
func TestTrainingWithoutStacks(t *testing.T) {
	for name, c := range trainings {
		t.Run(name, func(t *testing.T) {
			tr, g := recorded(t, true, c.run)
			got, sure := partsOf(t, tr)
			var right, all uint64
			for k, n := range g.atPeak {
				right += min(n, got[k])
				all += n
			}
			for k, n := range sure {
				if n > 0 {
					t.Errorf("%d bytes of %s are sure", n, k)
				}
			}
			if got[Unknown] == all { // two layers show no teeth, and it is said
				return
			}
			if right*100 < 90*all {
				t.Errorf("%d of %d bytes are right: %v, want %v", right, all, got, g.atPeak)
			}
		})
	}
}

// A model that only runs has parameters, what comes and goes, and a cache that grows by a token.
func TestGeneration(t *testing.T) {
	const layers = 8
	tr, g := recorded(t, false, func(g *program) {
		for range layers {
			g.alloc(Parameters, 16<<20, moving)
		}
		in := g.alloc(Inputs, 1<<20, loading)
		cache := make([]made, 2*layers)
		for token := range uint64(20) {
			for i := range cache {
				x := g.alloc(Temporaries, 2<<20, calling)
				grown := g.alloc(KVCache, (32+token)<<16, calling)
				if token > 0 {
					g.free(cache[i])
				}
				cache[i] = grown
				g.free(x)
			}
			next := g.alloc(Temporaries, 4096, loading)
			g.free(next)
		}
		_ = in
	})
	if got, _ := partsOf(t, tr); !maps.Equal(got, g.atPeak) {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
}

// A model without modules goes forward in the program's own lines, and most of it has its category.
func TestFunctionalModel(t *testing.T) {
	functional := func(stack []string) []string {
		return []string{"linear (/v/site-packages/torch/nn/functional.py:2125)", "net (/home/u/model.py:20)", stack[len(stack)-1]}
	}
	saved := calling
	defer func() { calling = saved }()
	calling = functional(calling)
	tr, g := recorded(t, false, trainings["Adam"].run)
	got, sure := partsOf(t, tr)
	if got[Activations] != g.atPeak[Activations] || got[State] != g.atPeak[State] || got[Gradients] != g.atPeak[Gradients] {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
	for k, n := range sure {
		if n > g.atPeak[k] {
			t.Errorf("%d bytes of %s are sure, and there are %d", n, k, g.atPeak[k])
		}
	}
}

// What is kept for a backward pass that is not the next one is an activation: a generator's, while
// the discriminator goes back first. An output that a variable holds is none.
func TestKeptForALaterPass(t *testing.T) {
	tr, g := recorded(t, false, func(g *program) {
		param := g.alloc(Parameters, 5<<20, moving)
		var out made
		for range 4 {
			kept := g.alloc(Activations, 64<<20, calling)
			x := g.alloc(Activations, 8<<20, calling)
			held := g.alloc(Temporaries, 3<<20, calling)
			if out.bytes > 0 {
				g.free(out)
			}
			out = held
			first := g.alloc(Temporaries, 1<<20, going)
			g.free(x, first)
			y := g.alloc(Activations, 8<<20, calling)
			grad := g.alloc(Gradients, param.bytes, going)
			g.free(y, kept)
			g.free(g.alloc(Temporaries, 1<<10, going))
			tmp := g.alloc(Temporaries, 1<<10, stepping)
			g.free(tmp, grad)
		}
	})
	got, sure := partsOf(t, tr)
	if !maps.Equal(got, g.atPeak) {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
	if sure[Activations] != got[Activations] {
		t.Errorf("of %d bytes of activations %d are sure", got[Activations], sure[Activations])
	}
}

// Master weights are an optimizer's, also where they are made before the first step; state that
// each update makes anew is, too; and buckets of gradients are gradients. None of this is sure.
func TestWhatHasTheSizesOfParameters(t *testing.T) {
	joining := []string{"_pre_forward (/v/site-packages/torch/nn/parallel/distributed.py:1584)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)", "main (/home/u/train.py:14)"}
	making := []string{"__init__ (/home/u/master.py:8)", "main (/home/u/train.py:9)"}
	tr, g := recorded(t, false, func(g *program) {
		var params, state []made
		for i := range uint64(8) {
			params = append(params, g.alloc(Parameters, 4<<20+i<<10, moving))
		}
		for _, p := range params {
			g.alloc(State, 2*p.bytes, making)
		}
		for step := range 4 {
			x := g.alloc(Activations, 9<<20, calling)
			if step == 0 {
				g.alloc(Gradients, 30<<20, joining)
			}
			var grads []made
			for _, p := range slices.Backward(params) {
				grads = append(grads, g.alloc(Gradients, p.bytes, going))
			}
			g.free(x)
			var next []made
			for i, p := range params {
				next = append(next, g.alloc(State, p.bytes/4, stepping))
				if step > 0 {
					g.free(state[i])
				}
			}
			state = next
			g.free(grads...)
		}
	})
	got, sure := partsOf(t, tr)
	if got[State] != g.atPeak[State] || got[Parameters] != g.atPeak[Parameters] {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
	if sure[Parameters] > g.atPeak[Parameters] || sure[State] > g.atPeak[State] {
		t.Errorf("%v are sure of %v", sure, g.atPeak)
	}
}

// What no rule knows is unknown: a recording that is not of PyTorch and has no passes, one
// of an instant, and none at all.
func TestUnknown(t *testing.T) {
	tr, _ := recorded(t, true, func(g *program) {
		for i := range uint64(200) {
			a := g.alloc(Unknown, i<<10, nil)
			if i%3 > 0 {
				g.free(a)
			}
		}
	})
	tr.Format = "text"
	if got, sure := partsOf(t, tr); len(got) != 1 || got[Unknown] == 0 || sure[Unknown] != 0 {
		t.Errorf("%v", got)
	}
	instant, _ := recorded(t, true, func(g *program) {
		for i := range uint64(200) {
			g.alloc(Unknown, (i+1)<<10, nil)
		}
	})
	if got, _ := partsOf(t, instant); len(got) != 1 || got[Unknown] == 0 {
		t.Errorf("of an instant: %v", got)
	}
	empty, _ := recorded(t, true, func(g *program) { g.alloc(Unknown, 0, nil) })
	if p, err := Of(t.Context(), empty, empty.Pools[0]); p != nil || err != nil {
		t.Errorf("of nothing: %v, %v", p, err)
	}
}

// A long recording is read around its peak, and what lives there before keeps its bytes.
func TestLongRecording(t *testing.T) {
	defer func(n uint64) { mostEvents = n }(mostEvents)
	c := trainings["Adam"]
	c.steps = 40
	tr, g := recorded(t, false, c.run)
	whole, _ := partsOf(t, tr)
	if !maps.Equal(whole, g.atPeak) {
		t.Fatalf("%v, want %v", whole, g.atPeak)
	}
	for _, n := range []uint64{10, 100, 500} {
		mostEvents = n
		again, _ := recorded(t, false, c.run) // what is known of tr is kept
		got, _ := partsOf(t, again)           // it checks the sum
		if n == 500 && got[Activations] != whole[Activations] {
			t.Errorf("of %d events: %v, want %v", n, got, whole)
		}
	}
}

// The passes of each of several processes are its own, however they are interleaved.
func TestSeveralProcesses(t *testing.T) {
	labelsOf := func(tr *tape.Trace, of func(*block) bool) (list []label) {
		r, err := Read(t.Context(), tr, tr.Pools[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.span.blocks {
			if of(&r.span.blocks[i]) {
				list = append(list, r.labels[i])
			}
		}
		return list
	}
	for _, apart := range []uint64{5, 125, 605, 2005} {
		var members []tape.Member
		for i, name := range []string{"Adam", "SGD without state"} {
			tr, _ := recorded(t, false, func(g *program) {
				g.now = 1000 + uint64(i)*apart
				trainings[name].run(g)
			})
			members = append(members, tape.Member{Name: name, Trace: tr, GPUs: []tape.MemberGPU{{Pool: "cuda:0", Joint: "cuda:0"}}})
		}
		both, err := tape.Join(t.Context(), "both", members, tape.Options{KeepPaths: true})
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range tape.Parts(both.Pools[0]) {
			alone := labelsOf(members[i].Trace, func(*block) bool { return true })
			if got := labelsOf(both, func(b *block) bool { return b.stream-p.Stream < p.Streams }); !slices.Equal(got, alone) {
				t.Errorf("%d apart: the labels of %s are not those that it has alone", apart, p.Name)
			}
		}
		if r, _ := Read(t.Context(), both, both.Pools[0]); r != nil {
			if _, trains := r.Steps(); trains {
				t.Error("steps of several processes")
			}
		}
		_ = both.Close()
	}
}

// A pool is read once, and a failure is not kept.
func TestAPoolIsReadOnce(t *testing.T) {
	tr, _ := recorded(t, false, trainings["Adam"].run)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(gone, tr, tr.Pools[0]); err == nil {
		t.Error("a reading that was stopped has no error")
	}
	one, err := Read(t.Context(), tr, tr.Pools[0])
	two, err2 := Read(t.Context(), tr, tr.Pools[0])
	if err != nil || err2 != nil || one == nil || one != two {
		t.Errorf("%p and %p, %v, %v", one, two, err, err2)
	}
}

// The words have the largest parts with their lines, and say what is not sure.
func TestText(t *testing.T) {
	p := &Peak{Bytes: 100 << 20, Parts: []Part{
		{Category: Activations, Bytes: 70 << 20, Sure: 70 << 20, Blocks: 12, Lines: []Line{{"forward (block.py:39)", 40 << 20, 4}, {"AddmmBackward0", 20 << 20, 1}, {"f (x.py:1)", 1 << 20, 1}}},
		{Category: State, Bytes: 20 << 20, Sure: 1 << 20, Blocks: 8, Lines: []Line{{blocksOf + "2.50 MiB", 20 << 20, 8}}},
		{Category: Unknown, Bytes: 19<<19 + 1},
		{Category: KVCache, Bytes: 1 << 19},
	}}
	const want = "activations 70 MiB (70 %; block.py:39 40 MiB, AddmmBackward0 20 MiB, and 10 MiB in 7 others), probably optimizer state 20 MiB (20 %; 8 blocks of 2.50 MiB), unknown 9.50 MiB (10 %), others 512 KiB"
	if got := p.Text(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	alone := &Peak{Bytes: 1 << 20, Parts: []Part{{Category: Unknown, Bytes: 1 << 20, Lines: []Line{{blocksOf + "512 KiB", 1 << 20, 2}}}}}
	if got := alone.Text(); got != "2 blocks of 512 KiB" {
		t.Errorf("%s", got)
	}
}

// A role is decided by the innermost frame that says one.
func TestRoles(t *testing.T) {
	for name, c := range map[string]struct {
		stack []string
		role
	}{
		"a module moved":                     {moving, load},
		"a module called":                    {calling, forward},
		"the engine's thread":                {going, backward},
		"a checkpoint computed again":        {computing, again},
		"an optimizer's step":                {stepping, update},
		"the program's own":                  {loading, plain},
		"nothing":                            {nil, unsaid},
		"another thread":                     {[]string{"nccl::run()"}, unsaid},
		"a closure of an optimizer":          {slices.Concat([]string{"closure (/home/u/train.py:30)"}, stepping), plain},
		"a module in a closure":              {slices.Concat(calling[:2], []string{"closure (/home/u/train.py:30)"}, stepping), forward},
		"an optimizer of one's own":          {[]string{"step (/home/u/lion.py:12)", "wrapper (/v/site-packages/torch/optim/optimizer.py:533)"}, update},
		"an optimizer stepped by the engine": {slices.Concat(stepping, []string{"_engine_run_backward (/v/torch/autograd/graph.py:869)"}), update},
		"a function of one's own goes back":  {[]string{"backward (/home/u/fused.py:30)", "apply (/v/site-packages/torch/autograd/function.py:307)"}, backward},
		"it goes forward": {[]string{
			"forward (/home/u/fused.py:20)", "apply (/v/site-packages/torch/autograd/function.py:575)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)",
		}, forward},
		"a method named backward":           {[]string{"mix (/home/u/gan.py:9)", "backward (/home/u/gan.py:30)", "main (/home/u/gan.py:50)"}, plain},
		"a program in a folder named optim": {[]string{"main (/home/u/optim/train.py:9)"}, plain},
		"a program named after FSDP":        {[]string{"main (/home/u/train_fsdp.py:9)"}, plain},
		"a program in a folder named fsdp":  {[]string{"main (/home/u/fsdp/train.py:9)"}, plain},
		"an optimizer of a package":         {[]string{"update_step (/v/site-packages/bitsandbytes/optim/adamw.py:9)", "main (/home/u/train.py:9)"}, update},
		"a bucket of gradients":             {[]string{"_pre_forward (/v/torch/nn/parallel/distributed.py:1584)", "_call_impl (/v/torch/nn/modules/module.py:1790)"}, bucket},
		"a module's parameters made":        {[]string{"__init__ (/v/torch/nn/modules/linear.py:106)", "__init__ (/home/u/model.py:9)"}, load},
		"an object of the program made":     {[]string{"__init__ (/home/u/master.py:9)"}, plain},
		"the profiler's span of the engine": {[]string{"aten::mm", "MmBackward0", "autograd::engine::evaluate_function: MmBackward0"}, backward},
		"and of the forward pass behind it": {slices.Concat([]string{"aten::mm", "autograd::engine::evaluate_function: MmBackward0", "in the backward pass of"}, calling), backward},
		"a shard made whole":                {[]string{"alloc_storage (/v/torch/distributed/fsdp/_fully_shard/_fsdp_param.py:931)", "forward (/home/u/x.py:3)"}, gather},
	} {
		if got := roleOf(strings.Join(c.stack, "\n")); got != c.role {
			t.Errorf("%s: %d, want %d", name, got, c.role)
		}
	}
}

// Where one line of the program calls a trainer that makes everything, the layers of the library of
// models are named; where the program's own lines say enough, they are.
func TestLayersBelowATrainer(t *testing.T) {
	named := func(own ...string) string {
		tr, _ := recorded(t, false, func(g *program) {
			for i, layer := range []string{"modeling_llama.py:155", "modeling_llama.py:89"} {
				g.alloc(Unknown, uint64(2-i)<<20, []string{
					"forward (/v/site-packages/torch/nn/modules/linear.py:134)", "forward (/v/site-packages/transformers/" + layer + ")", own[i%len(own)],
				})
			}
		})
		p, err := Of(t.Context(), tr, tr.Pools[0])
		if err != nil {
			t.Fatal(err)
		}
		return p.Text()
	}
	if got := named("main (/home/u/train.py:3)"); got != "modeling_llama.py:155 2 MiB, modeling_llama.py:89 1 MiB" {
		t.Errorf("%s", got)
	}
	if got := named("main (/home/u/train.py:3)", "main (/home/u/train.py:4)"); got != "modeling_llama.py:155 2 MiB, modeling_llama.py:89 1 MiB" && got != "train.py:3 2 MiB, train.py:4 1 MiB" {
		t.Errorf("%s", got)
	}
}

// A long recording takes time in proportion: of many thousand steps, and of many thousand calls of
// a model after a training.
func TestManyPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: some hundred thousand events")
	}
	const steps = 20_000
	for name, blind := range map[string]bool{"with stacks": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			tr, _ := recorded(t, blind, func(g *program) {
				c := trainings["SGD without state"]
				c.layers, c.steps = 6, 20
				c.run(g)
				for range steps {
					g.free(g.alloc(Temporaries, 1<<20, calling), g.alloc(Temporaries, 3<<10, loading))
				}
				c.steps = steps / 4
				c.run(g)
			})
			if got, _ := partsOf(t, tr); len(got) == 0 {
				t.Error("nothing")
			}
		})
	}
}
