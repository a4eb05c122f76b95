package category

// The rules one by one: small programs, and what of each category is known and sure at the peak.

import (
	"maps"
	"slices"
	"testing"

	"gpumem/record/internal/tape"
)

// Stacks of lines of the program's own.
var (
	keeping = []string{"forward (/home/u/model.py:31)", "_call_impl (/v/site-packages/torch/nn/modules/module.py:1790)", "main (/home/u/train.py:14)"}
	hooked  = []string{"log (/home/u/train.py:40)", "wrapper (/v/site-packages/torch/optim/optimizer.py:533)", "main (/home/u/train.py:16)"}
	asking  = slices.Concat([]string{"at::cuda::getCurrentCUDABlasHandle()"}, calling)
)

const mib = 1 << 20

// doubtful is what is never sure of the trainings: their batch.
var doubtful = map[Category]uint64{Inputs: 3 * mib}

// A stepper makes training steps of one layer, with what a test adds.
type stepper struct {
	*program
	weight uint64
	saved  []made // for the backward pass of the step
	behind made   // freed behind the last step
}

func (g *program) stepper() *stepper {
	const weight = 5 * mib
	g.alloc(Parameters, weight, moving)
	return &stepper{program: g, weight: weight}
}

// step makes a step of SGD. during is called in the forward pass, after its first product was made.
func (s *stepper) step(during func()) {
	x := s.alloc(Activations, 9*mib, calling)
	if during != nil {
		during()
	}
	grad := s.alloc(Gradients, s.weight, going)
	s.free(append(s.saved, x)...)
	s.saved = nil
	s.free(s.alloc(Temporaries, 4096, going))
	s.free(s.alloc(Temporaries, 2048, stepping), grad)
}

// check compares the parts of a program's peak with what it made: all of them are sure but for doubts.
func check(t *testing.T, run func(*program), doubts map[Category]uint64) {
	t.Helper()
	tr, g := recorded(t, false, run)
	got, sure := partsOf(t, tr)
	if !maps.Equal(got, g.atPeak) {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
	for c, n := range g.atPeak {
		if got[c] == n && n-sure[c] != doubts[c] {
			t.Errorf("of %d bytes of %s %d are doubtful, want %d", n, c, n-sure[c], doubts[c])
		}
	}
}

// A workspace of cuBLAS is known by its native frame, else by its size beside a product's result. What
// else has such a size is none.
func TestWorkspaces(t *testing.T) {
	const old, hopper, lt = 8519680, 32 * mib, mib
	for name, c := range map[string]struct {
		doubts map[Category]uint64
		run    func(*program)
	}{
		"beside the first product": {nil, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, hopper, calling)
						g.alloc(Workspace, lt, calling)
					}
				})
			}
		}},
		"of an older card": {nil, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, old, calling)
					}
				})
			}
		}},
		"a tensor of the other card's size": {map[Category]uint64{Kept: 3*mib + hopper}, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, old, calling)
						g.alloc(Kept, 3*mib, keeping)
						g.alloc(Kept, hopper, keeping)
					}
				})
			}
		}},
		"of the engine's thread": {nil, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(nil)
				if i == 0 {
					x := g.alloc(Activations, 2*mib, calling)
					g.free(g.alloc(Temporaries, mib/2, going))
					g.alloc(Workspace, hopper, going)
					g.free(x)
					g.free(g.alloc(Temporaries, mib/2, going))
				}
			}
		}},
		"a leak of that size": {map[Category]uint64{Kept: 14 * lt}, func(g *program) {
			s := g.stepper()
			for i := range 20 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, hopper, calling)
					}
					if c := Kept; i < 14 {
						g.alloc(c, lt, keeping)
					}
				})
			}
		}},
		"a leak behind a workspace of that size": {map[Category]uint64{Workspace: lt, Kept: 14 * lt}, func(g *program) {
			s := g.stepper()
			for i := range 20 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, lt, calling)
					}
					if i < 14 {
						g.alloc(Kept, lt, keeping)
					}
				})
			}
		}},
		"a native frame among equal ones": {map[Category]uint64{Kept: hopper + mib/2}, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, hopper, asking)
						g.alloc(Kept, mib/2, calling)
						g.alloc(Kept, hopper, calling)
					}
				})
			}
		}},
		"a parameter's gradient has that size": {nil, func(g *program) {
			g.alloc(Parameters, hopper, moving)
			s := g.stepper()
			s.weight = hopper
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, hopper, calling)
					}
				})
			}
		}},
		"a cache made in the first call": {map[Category]uint64{KVCache: 12 * hopper}, func(g *program) {
			g.alloc(Parameters, 5*mib, moving)
			for i := range 20 {
				for range 6 {
					if i == 0 {
						g.alloc(KVCache, hopper, keeping)
						g.alloc(KVCache, hopper, keeping)
					}
					g.free(g.alloc(Temporaries, mib/2, calling))
				}
				g.free(g.alloc(Temporaries, 4096, loading))
			}
		}},
		"older than the recording": {map[Category]uint64{Workspace: hopper}, func(g *program) {
			g.older(Parameters, 5*mib, "")
			g.older(Workspace, hopper, "")
			s := &stepper{program: g, weight: 5 * mib}
			for range 8 {
				s.step(nil)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.run, c.doubts) })
	}
}

// What an optimizer of PyTorch keeps is its state, for sure; what a program's own code keeps in its
// step may be; what it keeps step after step is none.
func TestKeptInUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		doubts map[Category]uint64
		run    func(s *stepper, i int)
	}{
		"an optimizer's": {nil, func(s *stepper, i int) {
			if i == 0 {
				s.alloc(State, s.weight, stepping)
			}
		}},
		"a new piece with every step": {nil, func(s *stepper, i int) { s.alloc(State, mib, stepping) }}, // L-BFGS
		"one's own optimizer's": {map[Category]uint64{State: 5 * mib}, func(s *stepper, i int) {
			if i == 0 {
				s.alloc(State, s.weight, hooked)
			}
		}},
		"those of two models": {map[Category]uint64{State: 10 * mib}, func(s *stepper, i int) {
			if i < 2 {
				s.alloc(State, s.weight, hooked)
			}
		}},
		"an optimizer's that goes as the program ends": {nil, func(s *stepper, i int) {
			if i == 0 {
				s.behind = s.alloc(State, s.weight, stepping)
			}
			if i == 7 {
				s.alloc(Kept, 512, loading)
				s.free(s.behind)
			}
		}},
		"a hook's log": {map[Category]uint64{Kept: 7 * 5 * mib}, func(s *stepper, i int) { s.alloc(Kept, s.weight, hooked) }},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, func(g *program) {
				s := g.stepper()
				for i := range 8 {
					s.step(nil)
					c.run(s, i)
				}
			}, c.doubts)
		})
	}
}

// What else is made in a step, and how sure that is. Each runs in the forward pass of each step, which
// it may end; what it returns is freed behind the step.
func TestInAStep(t *testing.T) {
	sharding := []string{"alloc_storage (/v/torch/distributed/fsdp/_fully_shard/_fsdp_param.py:931)", "forward (/home/u/x.py:3)"}
	copying := []string{"deepcopy (/usr/lib/python3.12/copy.py:128)", "main (/home/u/train.py:20)"}
	for name, c := range map[string]struct {
		doubts map[Category]uint64
		run    func(s *stepper, i int) []made
	}{
		"a loss": {map[Category]uint64{Activations: 512}, func(s *stepper, _ int) []made {
			s.saved = append(s.saved, s.alloc(Activations, 512, calling))
			return nil
		}},
		"what comes and goes": {nil, func(s *stepper, _ int) []made {
			s.free(s.alloc(Temporaries, 3*mib, calling))
			return nil
		}},
		"an output that a variable holds": {map[Category]uint64{Temporaries: 3 * mib}, func(s *stepper, _ int) []made {
			return []made{s.alloc(Temporaries, 3*mib, calling)}
		}},
		"a shard made whole": {map[Category]uint64{Parameters: 3 * mib}, func(s *stepper, _ int) []made {
			return []made{s.alloc(Parameters, 3*mib, sharding)}
		}},
		"a copy of a model": {map[Category]uint64{Parameters: 3 * mib}, func(s *stepper, i int) []made {
			if i == 1 {
				s.alloc(Parameters, 3*mib, copying)
			}
			return nil
		}},
		"a checkpoint computed again": {map[Category]uint64{Activations: 3 * mib}, func(s *stepper, _ int) []made {
			s.free(s.alloc(Temporaries, mib, going))
			return []made{s.alloc(Activations, 3*mib, computing)}
		}},
		"kept for a second derivative": {map[Category]uint64{Temporaries: 3 * mib}, func(s *stepper, _ int) []made {
			held := s.alloc(Temporaries, 3*mib, going)
			for range 60 {
				s.free(s.alloc(Temporaries, 1024, going))
			}
			s.free(held)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, func(g *program) {
				s := g.stepper()
				for i := range 8 {
					var behind []made
					s.step(func() { behind = c.run(s, i) })
					s.free(behind...)
				}
			}, c.doubts)
		})
	}
}

// What is there before the passes, or beside them.
func TestBesideThePasses(t *testing.T) {
	steps := func(g *program, each func(s *stepper)) {
		s := g.stepper()
		for range 8 {
			each(s)
		}
	}
	for name, c := range map[string]struct {
		doubts map[Category]uint64
		run    func(g *program)
	}{
		"a batch": {map[Category]uint64{Inputs: 3 * mib}, func(g *program) {
			steps(g, func(s *stepper) {
				batch := g.alloc(Inputs, 3*mib, loading)
				s.step(nil)
				g.free(batch)
			})
		}},
		"data that stays": {map[Category]uint64{Inputs: 3 * mib}, func(g *program) {
			g.alloc(Inputs, 3*mib, loading)
			steps(g, func(s *stepper) { s.step(nil) })
		}},
		"a parameter that the program makes": {map[Category]uint64{Parameters: 5 * mib}, func(g *program) {
			g.alloc(Parameters, 5*mib, loading)
			steps(g, func(s *stepper) { s.step(nil) })
		}},
		"buckets of gradients that are made before": {map[Category]uint64{Gradients: 6 * mib}, func(g *program) {
			g.alloc(Gradients, 6*mib, []string{"_ddp_init_helper (/v/torch/nn/parallel/distributed.py:1100)", "main (/home/u/train.py:9)"})
			steps(g, func(s *stepper) { s.step(nil) })
		}},
		"made ready and gone": {nil, func(g *program) {
			s := g.stepper()
			g.free(g.alloc(Temporaries, 300*mib, loading))
			s.step(nil)
			s.step(nil)
		}},
		"a batch that is made before the first pass": {map[Category]uint64{Inputs: 300 * mib}, func(g *program) {
			s := g.stepper()
			batch := g.alloc(Inputs, 300*mib, loading)
			s.step(nil)
			g.free(batch)
			s.step(nil)
		}},
		"Adam, recorded from the middle": {map[Category]uint64{Parameters: 5 * mib, State: 10 * mib}, func(g *program) {
			for _, c := range []Category{Parameters, State, State} {
				g.older(c, 5*mib, "")
			}
			s := &stepper{program: g, weight: 5 * mib}
			for range 8 {
				s.step(nil)
			}
		}},
		"SGD, recorded from the middle": {nil, func(g *program) {
			g.older(Parameters, 5*mib, "")
			s := &stepper{program: g, weight: 5 * mib}
			for range 8 {
				s.step(nil)
			}
		}},
		"half precision with masters, recorded from the middle": {map[Category]uint64{State: 20 * mib, Parameters: 7 * mib}, func(g *program) {
			g.older(Parameters, 5*mib, "")
			g.older(State, 10*mib, "")
			g.older(State, 10*mib, "")
			g.older(Parameters, 7*mib, "")
			s := &stepper{program: g, weight: 5 * mib}
			for range 8 {
				s.step(nil)
			}
		}},
		"an optimizer that is written out": {map[Category]uint64{State: 20 * mib}, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(nil)
				if i == 0 {
					g.alloc(State, 10*mib, loading)
					g.alloc(State, 10*mib, loading)
				}
			}
		}},
		"a log of each step": {map[Category]uint64{Kept: 80 * mib}, func(g *program) {
			s := g.stepper()
			for range 8 {
				s.step(nil)
				g.alloc(Kept, 10*mib, loading)
			}
			for range 5 { // they are no leak of the last steps
				s.step(nil)
			}
		}},
		"caches that the program makes": {map[Category]uint64{KVCache: 120 * mib, Inputs: 7 * mib}, func(g *program) {
			g.alloc(Parameters, 5*mib, moving)
			g.alloc(Inputs, 7*mib, loading)
			for range 4 {
				g.alloc(KVCache, 30*mib, loading)
			}
			for range 8 {
				g.free(g.alloc(Temporaries, 9*mib, calling))
				g.free(g.alloc(Temporaries, 4096, loading))
			}
		}},
		"a model that runs": {map[Category]uint64{Inputs: 3 * mib}, func(g *program) {
			g.alloc(Parameters, 5*mib, moving)
			for range 8 {
				batch := g.alloc(Inputs, 3*mib, loading)
				x := g.alloc(Temporaries, 9*mib, calling)
				y := g.alloc(Temporaries, 9*mib, calling)
				g.free(x, y)
				g.free(g.alloc(Temporaries, 4096, loading), batch)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.run, c.doubts) })
	}
}

// Where frames of Python alone were recorded the engine's blocks have no stack, and they may be most.
// What is made before the first stack was not recorded at all.
func TestFramesOfPythonAlone(t *testing.T) {
	saved := going
	defer func() { going = saved }()
	going = nil
	for name, c := range trainings {
		t.Run(name, func(t *testing.T) {
			doubtful := maps.Clone(doubtful)
			if name == "one step" { // a temporary of the one update may be state that goes as the program ends
				doubtful[Temporaries] = 16 * mib
			}
			check(t, c.run, doubtful)
			check(t, func(g *program) {
				g.blind = true
				for range 5000 {
					g.free(g.alloc(Temporaries, 4096, calling))
				}
				g.blind = false
				c.run(g)
			}, doubtful)
		})
	}
	t.Run("a few stacks", func(t *testing.T) {
		tr, _ := recorded(t, false, func(g *program) {
			c := trainings["Adam"]
			c.run(g)
			g.blind = true
			for range 10 * g.made {
				g.free(g.alloc(Temporaries, 4096, calling))
			}
		})
		if _, sure := partsOf(t, tr); sure[Gradients] > 0 {
			t.Errorf("%d bytes of gradients are sure", sure[Gradients])
		}
	})
}

// Where the model is a sum that is older than the recording, gradients are what outlives a
// backward pass, and none is sure.
func TestGradientsOfAModelThatIsNotListed(t *testing.T) {
	check(t, func(g *program) {
		g.older(Unknown, 40*mib, tape.Rest)
		s := &stepper{program: g, weight: 5 * mib}
		for range 8 {
			s.step(nil)
		}
	}, map[Category]uint64{Gradients: 5 * mib, Unknown: 40 * mib})
}

// An output that a function's variable holds to its end is freed just behind the pass: it need not
// have been kept for it.
func TestAnOutputIsNoActivationForSure(t *testing.T) {
	tr, g := recorded(t, false, func(g *program) {
		s := g.stepper()
		for range 8 {
			var out made
			s.step(func() { out = g.alloc(Temporaries, 7*mib, calling) })
			g.free(out)
		}
		for range 8 {
			x := g.alloc(Activations, 9*mib, calling)
			out := g.alloc(Temporaries, 12*mib, calling)
			grad := g.alloc(Gradients, s.weight, going)
			g.free(x)
			g.free(g.alloc(Temporaries, 4096, going))
			g.free(out)
			g.free(grad)
		}
	})
	if _, sure := partsOf(t, tr); sure[Activations] != g.atPeak[Activations] {
		t.Errorf("%d bytes of activations are sure, want %d", sure[Activations], g.atPeak[Activations])
	}
}
