package advise

// The candidates, in the settings of the framework, and the settings of two programs
// that share a card.

import (
	"context"
	"fmt"
	"strings"

	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// The variables that are advised.
const (
	fractionVar    = "XLA_CLIENT_MEM_FRACTION" // since jaxlib 0.4.32; XLA_PYTHON_CLIENT_MEM_FRACTION before
	preallocateVar = "XLA_PYTHON_CLIENT_PREALLOCATE"
	allocatorVar   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	torchConf      = "PYTORCH_ALLOC_CONF" // since PyTorch 2.10; PYTORCH_CUDA_ALLOC_CONF before
)

// percentText formats hundredths as a fraction: .92.
func percentText(percent int) string { return fmt.Sprintf(".%02d", percent) }

// env returns the policy of an environment, under its name in a replay.
func env(spec string, set ...string) policy.Policy {
	p, _, err := frameworks.FromEnv(policy.Environ(set))
	if err != nil {
		panic(err) // no input can cause it, and tests try all settings
	}
	p.Spec = spec
	return p
}

// parsed returns a policy by its name and keys.
func parsed(spec string) policy.Policy {
	p, err := frameworks.Parse(spec)
	if err != nil {
		panic(err) // as in env
	}
	return p
}

// jaxFraction returns JAX with a fraction in hundredths of the total.
func jaxFraction(percent int) policy.Policy {
	text := percentText(percent)
	return env("jax:fraction="+text, fractionVar+"="+text)
}

// A way is a policy with what sets it in the environment.
type way struct {
	policy policy.Policy
	set    []string
}

// always returns a candidate that is the same on every card.
func always(w way) *Candidate {
	return &Candidate{here: w, alone: func(uint64) way { return w }}
}

// candidates returns the ways to try, the cheapest for the user first.
func (a *adviser) candidates(ctx context.Context) ([]*Candidate, error) {
	info, err := a.info()
	if err != nil {
		return nil, err
	}
	if a.trace.Format == "torch" {
		return a.torchCandidates(info.HasPages), nil
	}
	byEnv := func(spec string, set ...string) way { return way{env(spec, set...), set} }
	fraction := func(percent int) way {
		return way{jaxFraction(percent), []string{fractionVar + "=" + percentText(percent)}}
	}
	least, err := a.percent(ctx)
	if err != nil {
		return nil, err
	}
	list := []*Candidate{always(byEnv("jax")), {
		here:  fraction(least),
		alone: func(total uint64) way { return fraction(percentOf(total, a.cfg.Context)) },
	}}
	// The next two grow up to the default fraction or, if that is not enough, up to
	// the largest for which there is memory.
	limited := func(plain way, most func(percent string) way) error {
		c := &Candidate{here: plain, alone: func(total uint64) way {
			return most(percentText(percentOf(total, a.cfg.Context)))
		}}
		card := a.cfg.Sim
		ok, err := a.fits(ctx, plain.policy, false, card.Total)
		if !ok {
			c.here = most(percentText(percentOf(card.Total, card.Used+card.Display+a.cfg.Context)))
		}
		list = append(list, c)
		return err
	}
	grow, vmm := preallocateVar+"=false", allocatorVar+"=vmm"
	if err := limited(byEnv("jax:preallocate=false", grow), func(f string) way {
		return byEnv("jax:fraction="+f+",preallocate=false", grow, fractionVar+"="+f)
	}); err != nil {
		return nil, err
	}
	if info.HasPools {
		list = append(list, always(byEnv("async", allocatorVar+"=cuda_async", preallocateVar+"=false")))
	}
	if info.HasPages {
		if err := limited(byEnv("vmm:fraction=.75", vmm), func(f string) way {
			return byEnv("vmm:fraction="+f, vmm, fractionVar+"="+f)
		}); err != nil {
			return nil, err
		}
	}
	list = append(list, always(byEnv("platform", allocatorVar+"=platform")))
	if info.HasPages {
		ours := always(way{parsed("elastic"), nil})
		ours.Ours = true
		list = append(list, ours)
	}
	return list, nil
}

// torchCandidates returns those of PyTorch: its pool, which grows up to the whole card;
// expandable segments, which map pages behind live blocks; and no pool at all. Each is
// replayed through the policy that is most like it.
func (a *adviser) torchCandidates(pages bool) []*Candidate {
	growing := func(total, taken uint64) way {
		return way{parsed(fmt.Sprintf("bfc:preallocate=false,gc=true,limit=%d", max(1, total-min(total, taken)))), nil}
	}
	card := a.cfg.Sim
	list := []*Candidate{{
		here:  growing(card.Total, card.Used+card.Display+a.cfg.Context),
		alone: func(total uint64) way { return growing(total, a.cfg.Context) },
	}}
	if pages {
		list = append(list, always(way{parsed("elastic"), []string{torchConf + "=expandable_segments:True"}}))
	}
	return append(list, always(way{parsed("platform"), []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}}))
}

// second sets how another program gets the rest, if there is any, with this one limited
// to what it needs.
func (a *adviser) second(rep *Report) {
	total := rep.DeviceBytes
	room := func(c *Candidate) uint64 { return c.Left - min(c.Left, rep.ContextBytes) }
	var first *Candidate
	for _, c := range rep.Candidates {
		// One that is capped by a fraction, or the cheapest that fits.
		capped := len(c.Set) == 1 && strings.HasPrefix(c.Set[0], fractionVar)
		if c.Fits && !c.Ours && (first == nil || capped) {
			first = c
		}
	}
	if first == nil {
		return
	}
	// 2 MiB less, for JAX rounds its limit up to a multiple of that.
	percent := int(float64(room(first)-min(room(first), 2*mib)) / float64(total) * 100)
	if percent < 1 {
		return
	}
	text := percentText(min(percent, mostPercent))
	rep.Second = &Second{Bytes: room(first), First: first.Set, Other: []string{fractionVar + "=" + text}}
	if rep.Trace.Format == "torch" {
		held := min(mostPercent, int(float64(first.HeldPeak)/float64(total)*100)+1) // rounded up
		rep.Second.First = []string{torchConf + "=per_process_memory_fraction:0" + percentText(held)}
		rep.Second.Other = []string{torchConf + "=per_process_memory_fraction:0" + text}
	}
}

// info returns the features of the card.
func (a *adviser) info() (i struct{ HasPools, HasPages bool }, err error) {
	dev, err := sim.New(a.cfg.Sim)
	if err != nil {
		return i, err
	}
	i.HasPools, i.HasPages = dev.Info().HasPools, dev.Info().HasPages
	return i, dev.Close()
}
