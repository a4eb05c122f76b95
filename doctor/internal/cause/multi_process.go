package cause

// multi_process_preallocation: several processes preallocate on one GPU.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func multiProcess(c *view) (all []Explanation) {
	if pools := c.twoPools(); pools != nil && (c.fatal || c.Library != nil) {
		all = append(all, sure(830, "two pools on one GPU", c.smallerPools(), pools...))
	}
	if r := c.noContext(); r != nil && !c.told && !c.contextFull() && c.onJAX() {
		all = append(all, fits(539, "no context: another that preallocates", c.smallerPools(), c.processes(),
			r.St.Quoted("the GPU was full before this program took any")).needs(NeedProcesses))
	}
	all = append(all, c.multiDriver()...)
	return append(all, c.multiLibrary()...)
}

// multiDriver is for a pool, or a request past it, that the driver refused.
func (c *view) multiDriver() found {
	d := c.Driver
	switch {
	case d == nil || d.Collected:
	case c.refusedAtOnce() != nil:
		return found{sure(552, "pools of several processes", c.smallerPools(), c.refusedAtOnce()...).only()}
	case d.JAXOther != nil:
		return found{sure(550, "another JAX on the GPU", c.smallerPools(),
			d.St.Quoted(d.NotHad(c.total.Bytes))).and(d.JAXOther...).only()}
	case c.poolSizeRefused() && d.Steps > 2:
		return found{fits(529, "a pool that tries less and less", c.smallerPools(), c.processes(),
			d.St.Quoted(d.Tried)).needs(NeedProcesses, needTotal).only()}
	case c.poolSizeRefused():
		return found{fits(532, "a whole pool is refused", c.smallerPools(), c.processes(),
			d.St.Quoted(d.NotHad(c.total.Bytes))).needs(NeedProcesses, needTotal).only()}
	case c.smallPast():
		return found{fits(523, "a small request past the pool", c.smallerPools(), c.processes(),
			d.St.Quoted(d.NotHad(c.total.Bytes))).only()}
	}
	return nil
}

// refusedAtOnce are lines of two processes or more, by the prefix of their lines, whose pools the
// driver refused a GiB and more: each takes what it finds.
func (c *view) refusedAtOnce() (l []statement.Evidence) {
	seen := map[string]bool{}
	for _, r := range c.Failed {
		if r.Layer == statement.LayerDriver && r.Want >= statement.Gib && r.St.From != "" && !seen[r.St.From] &&
			!strings.HasPrefix(r.St.From, "rank") {
			seen[r.St.From] = true
			l = append(l, quote(r.St, "the pool of %s asks the driver for %v", r.St.From, r.Want))
		}
	}
	if len(l) < 2 {
		return nil
	}
	return l
}

// multiLibrary is for a library that could not start.
func (c *view) multiLibrary() found {
	l := c.libraryOpen()
	if l == nil || !c.framed(l) {
		return nil
	}
	if jax := c.JAXOther(max(l.Total, c.total.Bytes)); jax != nil && (l.Short() || l.Open()) {
		return found{sure(376, "another JAX on the GPU", c.smallerPools(),
			l.Quotes()...).and(jax...).only().certainly(l.Certain()...)}
	}
	switch {
	case l.Early && l.Memory && !c.told:
		x := sure(374, "memory was refused before the library", c.smallerPools(),
			l.St.Quoted(
				"memory was refused before the library asked for any: "+
					"the GPU was full when this program came, as another program that preallocates leaves it"))
		x.Decide = c.processes()
		return found{x.only().certainly(l.Certain()...)}
	case l.Short() && !c.OnTensorFlow():
		return found{fits(348, "a library without room", c.smallerPools(), c.processes(),
			l.Quotes()...).needs(NeedProcesses).certainly(l.Certain()...)}
	case l.Open() && c.startsWithoutFigures(l):
		return found{fits(347, "a library that failed", c.smallerPools(), c.processes(),
			l.Quotes()...).certainly(l.Certain()...)}
	}
	return nil
}

// startsWithoutFigures reports whether a library could not start, beside a framework that preallocates,
// and how much was free is unknown.
func (c *view) startsWithoutFigures(l *account.Library) bool {
	starts := l.Starts() || !l.Call && c.Uses("jax")
	return starts && l.From == nil && !c.OnTensorFlow()
}

// twoPools are the lines of two programs that each announce a pool on one GPU which has no room
// for both.
func (c *view) twoPools() []statement.Evidence {
	var list []*statement.Statement
	for _, st := range c.Statements() {
		t := st.Topic("announced")
		if t == nil {
			continue
		}
		for _, other := range list {
			o := other.Topic("announced")
			one, two := statement.SizeOf(o.Name), statement.SizeOf(t.Name)
			if o.Value == t.Value && other.From != st.From && c.total.Bytes < one+two {
				return []statement.Evidence{quote(other, "one process takes %v", one),
					quote(st, "and another on the same GPU %v", two)}
			}
		}
		list = append(list, st)
	}
	return nil
}

// smallerPools gives each of two programs its part.
func (c *view) smallerPools() Remedy {
	if !c.onJAX() {
		return steps("give each a share without guessing: gpumem run --share 0.5 -- python PROGRAM, once for each",
			"or give each a separate GPU: CUDA_VISIBLE_DEVICES=0 for one, 1 for the other").step(c.advise("beside").Steps...)
	}
	t := c.total.Bytes
	value, why := "0.40", "in both programs: half of the GPU less what a context and libraries take"
	if t > 4*account.ContextMost {
		value = down(float64((t-2*account.ContextMost)/2) / float64(t))
		why = account.Say("in both programs: each then takes %v, and up to %s for its context and libraries; both fit into %v",
			uint64(number(value)*float64(t)), account.Human(account.ContextMost), t)
	}
	return c.fraction(value, why).step(c.growInTensorFlow(),
		"give each a share without guessing: gpumem run --share 0.5 -- python PROGRAM, once for each",
		"or give each a separate GPU: CUDA_VISIBLE_DEVICES=0 for one, 1 for the other. JAX takes memory on every GPU that it sees")
}
