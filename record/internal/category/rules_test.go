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

// A stepper makes training steps of one layer, with what a test adds.
type stepper struct {
	*program
	weight uint64
	param  made
}

func (g *program) stepper() *stepper {
	const weight = 5 * mib
	return &stepper{g, weight, g.alloc(Parameters, weight, moving)}
}

// step makes a step of SGD. during is called in the forward pass, after its first product was made.
func (s *stepper) step(during func()) {
	x := s.alloc(Activations, 9*mib, calling)
	if during != nil {
		during()
	}
	grad := s.alloc(Gradients, s.weight, going)
	s.free(x)
	s.free(s.alloc(Temporaries, 4096, going))
	s.free(s.alloc(Temporaries, 2048, stepping), grad)
}

// check compares the parts of a program's peak with what it made, and what is sure of them.
func check(t *testing.T, run func(*program), sure map[Category]uint64) {
	t.Helper()
	tr, g := recorded(t, false, run)
	got, sureOf := partsOf(t, tr)
	if !maps.Equal(got, g.atPeak) {
		t.Errorf("%v, want %v", got, g.atPeak)
	}
	for c, n := range sure {
		if sureOf[c] != n {
			t.Errorf("%d bytes of %s are sure, want %d", sureOf[c], c, n)
		}
	}
}

// A workspace of cuBLAS is known by its native frame, else by its size beside a product's result. What
// else has such a size is none.
func TestWorkspaces(t *testing.T) {
	const old, hopper, lt = 8519680, 32 * mib, mib
	for name, c := range map[string]struct {
		sure uint64
		run  func(*program)
	}{
		"beside the first product": {hopper + lt, func(g *program) {
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
		"of an older card": {old, func(g *program) {
			s := g.stepper()
			for i := range 8 {
				s.step(func() {
					if i == 0 {
						g.alloc(Workspace, old, calling)
					}
				})
			}
		}},
		"a tensor of the other card's size": {old, func(g *program) {
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
		"of the engine's thread": {hopper, func(g *program) {
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
		"a leak of that size": {hopper, func(g *program) {
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
		"a leak behind a workspace of that size": {0, func(g *program) {
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
		"a native frame among equal ones": {hopper, func(g *program) {
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
		"a parameter's gradient has that size": {hopper, func(g *program) {
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
		"a cache made in the first call": {0, func(g *program) {
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
		"older than the recording": {0, func(g *program) {
			g.older(Parameters, 5*mib, "")
			g.older(Workspace, hopper, "")
			s := &stepper{g, 5 * mib, made{}}
			for range 8 {
				s.step(nil)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.run, map[Category]uint64{Workspace: c.sure}) })
	}
}

// What an optimizer of PyTorch keeps is its state, for sure; what a program's own code keeps in its
// step may be; what it keeps step after step is none.
func TestKeptInUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		sure uint64
		run  func(s *stepper, i int)
	}{
		"an optimizer's": {5 * mib, func(s *stepper, i int) {
			if i == 0 {
				s.alloc(State, s.weight, stepping)
			}
		}},
		"a new piece with every step": {7 * mib, func(s *stepper, i int) { s.alloc(State, mib, stepping) }}, // L-BFGS
		"one's own optimizer's": {0, func(s *stepper, i int) {
			if i == 0 {
				s.alloc(State, s.weight, hooked)
			}
		}},
		"those of two models": {0, func(s *stepper, i int) {
			if i < 2 {
				s.alloc(State, s.weight, hooked)
			}
		}},
		"a hook's log": {0, func(s *stepper, i int) { s.alloc(Kept, s.weight, hooked) }},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, func(g *program) {
				s := g.stepper()
				for i := range 8 {
					s.step(nil)
					c.run(s, i)
				}
			}, map[Category]uint64{State: c.sure})
		})
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
			check(t, c.run, nil)
			check(t, func(g *program) {
				g.blind = true
				for range 5000 {
					g.free(g.alloc(Temporaries, 4096, calling))
				}
				g.blind = false
				c.run(g)
			}, nil)
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
		s := &stepper{g, 5 * mib, made{}}
		for range 8 {
			s.step(nil)
		}
	}, map[Category]uint64{Gradients: 0, Unknown: 0})
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
