package advise

// This file is for what is tried, in the words of the framework, and how two
// programs share a card.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gpumem/device/sim"
	"gpumem/policy"
)

// The variables that are advised.
const (
	fractionVar    = "XLA_CLIENT_MEM_FRACTION" // since jaxlib 0.4.32; XLA_PYTHON_CLIENT_MEM_FRACTION before
	preallocateVar = "XLA_PYTHON_CLIENT_PREALLOCATE"
	allocatorVar   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	torchConf      = "PYTORCH_ALLOC_CONF" // since PyTorch 2.10; PYTORCH_CUDA_ALLOC_CONF before
)

// percentText writes hundredths as people write a fraction: .92.
func percentText(percent int) string { return fmt.Sprintf(".%02d", percent) }

// env is the policy of an environment, under the name that a replay knows it by.
func (a *adviser) env(spec string, set ...string) policy.Policy {
	p, _, err := policy.FromEnv(policy.Environ(set))
	a.note(err)
	p.Spec = spec
	return p
}

// note keeps an error that no input can cause.
func (a *adviser) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = errors.Join(a.wrong, err)
}

// parsed is a policy by its words.
func (a *adviser) parsed(spec string) policy.Policy {
	p, err := policy.Parse(spec)
	a.note(err)
	return p
}

// fraction is JAX with so many hundredths of the total.
func (a *adviser) fraction(percent int) policy.Policy {
	text := percentText(percent)
	return a.env("jax:fraction="+text, fractionVar+"="+text)
}

// candidates are the ways to try, the cheapest for the user first.
func (a *adviser) candidates(ctx context.Context) ([]*Candidate, error) {
	info, err := a.info()
	if err != nil {
		return nil, err
	}
	if a.trace.Format == "torch" {
		return a.torchCandidates(info.HasPages), nil
	}
	always := func(p policy.Policy) func(uint64) policy.Policy {
		return func(uint64) policy.Policy { return p }
	}
	list := []*Candidate{{Policy: "jax", Set: []string{}, at: always(a.env("jax"))}}
	least, err := a.percent(ctx)
	if err != nil {
		return nil, err
	}
	total := a.cfg.Sim.Total
	list = append(list, &Candidate{
		Policy: a.fraction(least).Spec, Set: []string{fractionVar + "=" + percentText(least)},
		at: func(n uint64) policy.Policy {
			if n == total {
				return a.fraction(least)
			}
			return a.fraction(percentOf(n, a.cfg.Context)) // alone on another card
		},
	})
	grow, err := a.limited(ctx, "jax:preallocate=false", preallocateVar+"=false")
	if err != nil {
		return nil, err
	}
	list = append(list, grow)
	if info.HasPools {
		set := []string{allocatorVar + "=cuda_async", preallocateVar + "=false"}
		list = append(list, &Candidate{Policy: "async", Set: set, at: always(a.env("async", set...))})
	}
	if info.HasPages {
		vmm, err := a.limited(ctx, "vmm:fraction=.75", allocatorVar+"=vmm")
		if err != nil {
			return nil, err
		}
		list = append(list, vmm)
	}
	set := []string{allocatorVar + "=platform"}
	list = append(list, &Candidate{Policy: "platform", Set: set, at: always(a.env("platform", set...))})
	if info.HasPages {
		list = append(list, &Candidate{Policy: "elastic", Set: []string{}, Ours: true, at: always(a.parsed("elastic"))})
	}
	return list, nil
}

// limited is a policy that takes what it needs up to the default fraction, or,
// where that is not enough, up to the largest fraction there is room for.
func (a *adviser) limited(ctx context.Context, spec, line string) (*Candidate, error) {
	card := a.cfg.Sim
	most := func(taken uint64) func(uint64) (string, []string) {
		return func(total uint64) (string, []string) {
			f := percentText(percentOf(total, taken))
			name, keys, _ := strings.Cut(spec, ":")
			if !strings.HasPrefix(keys, "fraction") {
				return name + ":fraction=" + f + "," + keys, []string{line, fractionVar + "=" + f}
			}
			return name + ":fraction=" + f, []string{line, fractionVar + "=" + f}
		}
	}
	plain := a.env(spec, line)
	ok, err := a.fits(ctx, plain, false, card.Total)
	c := &Candidate{Policy: spec, Set: []string{line}}
	if !ok {
		c.Policy, c.Set = most(card.Used + card.Display + a.cfg.Context)(card.Total)
	}
	c.at = func(total uint64) policy.Policy {
		if total == card.Total {
			return a.env(c.Policy, c.Set...)
		}
		name, set := most(a.cfg.Context)(total)
		return a.env(name, set...)
	}
	return c, err
}

// torchCandidates are PyTorch's: its own pool, which grows as needed up to the
// whole card; expandable segments, which keep pages behind what lives; and no
// pool at all. Each is replayed through ours that is most like it.
func (a *adviser) torchCandidates(pages bool) []*Candidate {
	growing := func(taken uint64) func(uint64) policy.Policy {
		return func(total uint64) policy.Policy {
			return a.parsed(fmt.Sprintf("bfc:preallocate=false,gc=true,limit=%d", max(1, total-min(total, taken))))
		}
	}
	card := a.cfg.Sim
	here := growing(card.Used + card.Display + a.cfg.Context)(card.Total)
	list := []*Candidate{{Policy: here.Spec, Set: []string{}, at: func(total uint64) policy.Policy {
		if total == card.Total {
			return here
		}
		return growing(a.cfg.Context)(total)
	}}}
	if pages {
		list = append(list, &Candidate{
			Policy: "elastic", Set: []string{torchConf + "=expandable_segments:True"},
			at: func(uint64) policy.Policy { return a.parsed("elastic") },
		})
	}
	return append(list, &Candidate{
		Policy: "platform", Set: []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"},
		at: func(uint64) policy.Policy { return a.parsed("platform") },
	})
}

// second says how another program gets the rest, if there is any: this one is
// told to keep to what it needs.
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

// info is what the card can do.
func (a *adviser) info() (i struct{ HasPools, HasPages bool }, err error) {
	dev, err := sim.New(a.cfg.Sim)
	if err != nil {
		return i, err
	}
	i.HasPools, i.HasPages = dev.Info().HasPools, dev.Info().HasPages
	return i, dev.Close()
}
