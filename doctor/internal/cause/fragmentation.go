package cause

// fragmentation: enough is free, but not in one piece.

import (
	"fmt"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
	"gpumem/policy"
	"gpumem/policy/torchconf"
)

func fragmentation(c *view) (all []Explanation) {
	all = append(all, c.poolHoles()...)
	if r := c.bare; r != nil && c.bareXLA() && (c.Grows() || strings.Contains(r.St.Text, "Resource exhausted:")) {
		all = append(all, fits(216, "a request that a growing pool refused", c.unfragment(), seeReport,
			r.St.Quoted(r.Refused()+"; a pool that grows has its free memory in pieces")).needs(needReport))
	}
	return all
}

// poolHoles is for the pool of XLA or TensorFlow.
func (c *view) poolHoles() found {
	if l := c.collected(); l != nil {
		return found{sure(562, "regions released", c.unfragment(), l...).only()}
	}
	p := c.poolAccount()
	if p == nil {
		return nil
	}
	room, free := p.room(), account.Less(p.room().Bytes, p.InUse.Bytes)
	large := p.Limit.Bytes > room.Bytes && p.Limit.Bytes-room.Bytes >= p.Want && p.Largest.Bytes == 0 // it may grow
	switch {
	case p.above(c), p.InUse.Bytes == 0 || room.Bytes == 0 || free < p.Want || p.Largest.Bytes >= p.Want || large:
		if busy := c.busyPool(); busy != nil && p.Limit.Bytes == 0 && !p.above(c) {
			return found{sure(430, "a small request of a busy pool", c.unfragment(), busy...).only()}
		}
		return nil
	}
	l := append(one(p.Refused.St, account.Human(p.Want)+" requested"), p.InUse.From)
	certain := account.Say("%v of the pool's %v is free, which is more than the %v requested, so no free block is large enough",
		free, room.Bytes, p.Want)
	if p.Size.Bytes == 0 && c.Grows() {
		return found{fits(440, "free blocks of the pool", c.unfragment(), giveState,
			l...).and(p.Limit.From).needs(NeedProcesses).only().certainly(certain)}
	}
	l = append(l, room.From)
	if p.Largest.Bytes > 0 {
		l = append(l, p.Largest.From)
	}
	return found{sure(440, "free blocks of the pool", c.unfragment(), l...).only().certainly(certain)}
}

// collected are the lines of a pool of TensorFlow's that gave regions back and was refused all
// the same.
func (c *view) collected() []statement.Evidence {
	l := c.about("collection", "the pool has free regions, each too small, and releases them to ask for a larger one")
	switch d := c.Driver; {
	case l == nil:
		return nil
	case d != nil && d.Collected:
		return append(l, quote(d.St, "the driver did not have %v", d.Want))
	case c.Pool != nil && c.Pool.Limit.Bytes > 0 && c.fatal && c.Shortfall == nil:
		return l
	}
	return nil
}

// busyPool shows that the same pool is asked for much more.
func (c *view) busyPool() []statement.Evidence {
	p := c.Pool
	if p.Refused == nil || p.Want > 256*statement.Mib || c.Compiled.Buffers.Bytes > 0 || c.Compiled.Remat != nil {
		return nil
	}
	w := c.Last(func(w *account.Refusal) bool { return w.Mild && w.Want > 32*p.Want })
	if w == nil || c.StatementWith("memory", "fragmentation") == nil || !c.OnTensorFlow() && c.Uses("jax") {
		return nil
	}
	return []statement.Evidence{quote(p.Refused.St, "only %v was requested, and refused", p.Want),
		w.St.Quoted(fmt.Sprintf("the same pool is asked for %s, %d times as much: it is a large pool, full of pieces",
			account.Human(w.Want), w.Want/max(p.Want, 1)))}
}

// unfragment is what to do about gaps in the pool of XLA or TensorFlow.
func (c *view) unfragment() Remedy {
	r := c.advise("holes")
	if !c.onJAX() {
		return r
	}
	if c.Grows() {
		r = r.set(account.Prealloc, "true",
			"one region has fewer gaps than many that were added as needed (jax-ml/jax#788)").
			check(c.jaxCheck(account.Prealloc + "=true"))
	}
	return r.step(
		"see which pool would have served it before you change one: gpumem doctor --save-trace FILE LOG; " +
			"gpumem replay FILE --policy bfc --policy async --policy elastic. " +
			"TF_GPU_ALLOCATOR, which XLA's message recommends, is not read by JAX")
}

// fillHoles is what to do about gaps in a pool, by whose it is.
func (c *view) fillHoles() Remedy {
	r := c.Shortfall.Refusal
	framework, _ := c.remedies("holes")
	if framework != "torch" || r.St.Words["cached"] && !r.St.Words["reserved"] || c.StatementWith("npu", "out", "memory") != nil {
		return c.advise("holes").step("allocate the large tensors first, and use fewer sizes of them (pad them)")
	}
	name, value, why, already := c.torchSetting()
	if already {
		return steps(value + " is set already, and gaps are left: fewer sizes of tensors (pad them), and the large ones first").
			step(c.ifNotEnough().Steps...).step("see that the program reads it: gpumem explain --pid PID, while it runs")
	}
	return c.ifNotEnough().step(c.advise("holes").Steps...).set(name, value, why).check(name + "=" + value + " gpumem explain --as pytorch")
}

// torchSetting chooses what the release, and the GPU, has against gaps.
func (c *view) torchSetting() (name, value, why string, already bool) {
	name = c.ConfName()
	value, why = "expandable_segments:True", "segments that grow by pages leave fewer gaps; releases since 2.1 read it"
	v := c.Version("torch")
	switch {
	case c.Uses("hip") && (v == "" || account.Older(v, 2, 12)):
		value, why = "max_split_size_mb:128",
			"large blocks are then not split, and fit large requests again; "+
				"on ROCm expandable_segments works since PyTorch 2.12 with ROCm 7"
	case c.at("windows") && !c.OldTorch():
		value, why = "max_split_size_mb:128",
			"large blocks are then not split, and fit large requests again; PyTorch's releases for Windows ignore expandable_segments"
	case c.OldTorch():
		value, why = "max_split_size_mb:128",
			"large blocks are then not split, and fit large requests again; "+
				"the message is of a release before 2.1, which does not know expandable_segments"
	}
	key, set, _ := strings.Cut(value, ":")
	if merged, text, err := torchconf.Merge(policy.Environ(account.EnvLines(c.Env)), v, key, set); err == nil && c.Env[merged] != "" {
		already = text == strings.ReplaceAll(c.Env[merged], " ", "")
		if already {
			return merged, value, why, true
		}
		return merged, text, why + "; what is set there already is kept", false
	}
	return name, value, why, false
}
