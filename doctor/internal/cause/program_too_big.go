package cause

// program_too_big: the program needs more memory than there is.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// ofMetal are words of a failure on a Mac's GPU: any other, such as an assertion, has another reason.
var ofMetal = []string{"buffer", "metal", "gpu", "memory", "kiogpu", "command"}

func tooBig(c *view) (all []Explanation) {
	if st, e := c.About("workingset"), c.LastError; st != nil && e != nil && e.Line > st.Line && e.HasAny(ofMetal...) && c.Shortfall == nil {
		all = append(all, sure(626, "more than Metal's working set", c.smaller(),
			st.Quoted("more is allocated than Metal recommends for the GPU"),
			e.Quoted("and the GPU fails after it")))
	}
	all = append(all, c.driverTooBig()...)
	all = append(all, c.poolTooBig()...)
	all = append(all, c.compiledTooBig()...)
	if l := c.libraryOpen(); l != nil && l.Open() && !c.framed(l) && !l.Torch {
		all = append(all, fits(341, "a library that failed", c.smaller(), c.processes(), l.Quotes()...))
	}
	if l := c.libraryOpen(); l != nil && l.Short() && !c.framed(l) {
		switch {
		case c.told:
			all = append(all, sure(362, "the program's own arrays leave a library too little", c.smaller(),
				l.Quotes()...).only().certainly(l.Certain()...))
		case l.Bare || !l.Torch:
			all = append(all, fits(341, "a library without room", c.smaller(), c.processes(), l.Quotes()...))
		}
	}
	return append(all, c.bareTooBig()...)
}

// driverTooBig is for requests that the driver refused.
func (c *view) driverTooBig() found {
	d := c.Driver
	switch {
	case d == nil || d.Collected:
	case c.driverAbove() && d.Want > account.LargestThen(d.Refusal):
		return found{sure(545, "a request above any GPU", c.smaller(),
			quote(d.St, "%v in one piece is more than any device has, or had when this was printed", d.Want)).only()}
	case c.driverAbove():
		return found{sure(543, "a request above the total", c.smaller(),
			quote(d.St, "%v in one piece", d.Want)).and(c.totalLine()...).only()}
	case c.regionRefused():
		return found{fits(513, "a region that the driver refused", c.smaller(), c.processes(),
			d.St.Quoted(d.NotHad(0))).needs(needTotal, NeedProcesses).only()}
	case d.Past && !c.told && d.Want > statement.Gib && !c.poolSizeRefused():
		return found{fits(515, "a request past the pool", c.smaller(), c.processes(),
			d.St.Quoted(d.NotHad(c.total.Bytes))).needs(needTotal, NeedProcesses).only()}
	}
	return nil
}

// poolTooBig is for the pool of XLA or TensorFlow, for tensors, and for a TPU.
func (c *view) poolTooBig() (all []Explanation) {
	total := c.total.Bytes
	if t := c.RefusedTensor(); t.Bytes > 0 {
		device := c.TensorFlowDevice(t.Bytes)
		switch {
		case device.Bytes > 0:
			all = append(all, sure(490, "a tensor above TensorFlow's device", c.smaller(),
				with(t, "this tensor alone is %v", t.Bytes),
				with(device, "TensorFlow's device got %v", device.Bytes)))
		case t.Bytes > account.LargestGPU:
			all = append(all, sure(488, "a tensor above any GPU", c.smaller(),
				with(t, "%v in one piece is more than any device has", t.Bytes)))
		case total > 0 && t.Bytes > total:
			all = append(all, sure(488, "a tensor above the GPU", c.smaller(),
				with(t, "this tensor alone is %v, more than the GPU's %v", t.Bytes, total)))
		}
	}
	if r := c.tpuRefusal(); r != nil && r.Total > 0 && r.Alloc > r.Total {
		all = append(all, c.onTPU(r))
	}
	p := c.poolAccount()
	switch {
	case p == nil:
	case p.aboveAny(c):
		all = append(all, sure(446, "a request above any GPU", c.smaller(),
			quote(p.Refused.St, "%v in one piece is more than any device has, or had when this was printed", p.Want)).
			only())
	case p.above(c):
		all = append(all, sure(444, "a request above the total", c.smaller(),
			quote(p.Refused.St, "%v requested", p.Want)).and(c.totalLine()...).only())
	case c.poolFull(p) && total == 0:
		all = append(all, fits(437, "the pool is at its limit", c.smaller(), giveState,
			quote(p.Refused.St, "%v requested", p.Want),
			p.Limit.From,
			p.InUse.From).needs(needTotal).only())
	case c.poolFull(p) && c.poolAboveGPU(p):
		all = append(all, sure(439, "more than the GPU has", c.smaller(),
			quote(p.Refused.St, "%v in use and %v requested are more than the GPU's %v, whatever the pool's limit",
				p.InUse.Bytes, p.Want, total)).
			and(lines([]statement.Evidence{p.Limit.From, p.InUse.From}, c.totalLine())...).only())
	}
	return all
}

// onTPU is for a program that is too large for a TPU, or a kernel's block for the memory beside it.
func (c *view) onTPU(r *account.Refusal) Explanation {
	if strings.Contains(r.St.Text, "memory space vmem") || strings.Contains(r.St.Text, "memory space smem") {
		return sure(480, "a kernel's memory on a TPU", c.advise("block"),
			quote(r.St, "a kernel needs %v of the memory beside the TPU's cores, which has %v; the TPU's own memory is not short",
				r.Alloc, r.Total))
	}
	l := one(r.St, account.Say("the program needs %v, and the device has %v; it is a TPU, and none of a GPU's settings apply",
		r.Alloc, r.Total))
	remedy := c.smaller()
	if most, st := c.padding(); st != nil {
		l = append(l, quote(st, "%v of one buffer is padding", most))
		remedy = c.advise("padding", "batch", "weights")
	}
	return sure(480, "a TPU's memory", remedy, l...)
}

// padding is the most that a buffer has of it, and its line; nil if none is told.
func (c *view) padding() (most uint64, from *statement.Statement) {
	for _, st := range c.Statements() {
		if t := st.Topic("padding"); t != nil {
			if n := statement.SizeOf(strings.TrimSuffix(t.Value, "B") + "iB"); n > most {
				most, from = n, st
			}
		}
	}
	return most, from
}

// tpuRefusal is a refusal on a TPU.
func (c *view) tpuRefusal() *account.Refusal {
	return c.Last(func(r *account.Refusal) bool { return !r.Mild && r.St.Topic("tpu") != nil })
}

// compiledTooBig is for a program whose size the compiler tells.
func (c *view) compiledTooBig() found {
	k, p, total := c.Compiled, c.Pool, c.total.Bytes
	b := k.Buffers
	switch {
	case c.argumentsAbove():
		return found{sure(478, "the program's arguments", c.smaller(),
			with(k.Arguments, "the arguments and results alone are %v, and the limit is %v", k.Arguments.Bytes,
				k.Base)).
			only()}
	case c.rematTooBig():
		m := k.Remat
		said := account.Say("recomputing brings %v to %v, and the limit is %v", m.From, m.To, m.Limit)
		switch {
		case m.From == 0 && m.Limit == 0:
			said = "the compiler could not bring the program below its limit"
		case m.From == 0:
			said = "the compiler's limit is " + account.Human(m.Limit)
		case m.Saved() == 0:
			said = account.Say("recomputing saves nothing of %v, and the limit is %v", m.To, m.Limit)
		}
		return found{sure(472, "a buffer above the compiler's limit", c.smaller(),
			m.St.Quoted(said),
			quote(p.Refused.St, "one buffer of %v is refused", p.Want))}
	case c.rematHolds():
	case b.Bytes > account.LargestGPU:
		return found{sure(465, "the program's buffers above any GPU", c.smaller(),
			with(b, "%v is more than any GPU has", b.Bytes))}
	case b.Bytes > 0 && account.AboveGPU(b.Bytes, total):
		return found{sure(464, "the program's buffers above the GPU", c.smaller(),
			[]statement.Evidence{with(b, "the program needs %v for its buffers alone", b.Bytes)}...).
			and(c.totalLine()...)}
	case b.Bytes > 0 && !k.Small && total == 0:
		return found{fits(451, "the program's buffers", c.smaller(), giveState,
			with(b, "the program needs %v for its buffers alone", b.Bytes)).needs(needTotal)}
	case b.Bytes > 0 || p == nil || p.Refused == nil || p.Limit.Bytes > 0 && p.InUse.Bytes > 0:
	case k.Announced.Bytes > 0 && p.Want > k.Announced.Bytes:
		l := []statement.Evidence{with(k.Announced, "the pool may have %v", k.Announced.Bytes),
			quote(p.Refused.St, "%v in one piece is more", p.Want)}
		if c.announcedAbove() {
			return found{sure(450, "a request above the total", c.smaller(), l...).and(c.totalLine()...).only()}
		}
		if total == 0 {
			return found{fits(449, "a request above the pool", c.smaller(), giveState,
				l...).needs(needTotal).only()}
		}
	}
	return nil
}

// argumentsAbove reports whether the program's arguments and results are above its limit.
func (c *view) argumentsAbove() bool {
	k := c.Compiled
	return k.Arguments.Bytes > k.Base && k.Remat == nil && c.fatal
}

// bareTooBig is for refusals of which little is known.
func (c *view) bareTooBig() found {
	r := c.bare
	if r == nil {
		return nil
	}
	if heaps := c.Heaps(); len(heaps) > 0 {
		return c.heapShort(heaps, r)
	}
	if b := c.Budget(); b != nil && b.Used >= b.Budget {
		return found{sure(294, "more than Windows grants", c.smaller(), r.St.Quoted(r.Refused()),
			with(account.Sized{From: b.From}, "the program has %v of the GPU, and Windows grants it %v", b.Used, b.Budget)).only()}
	}
	total := c.total.Bytes
	if total > 0 && r.Want > total && !c.Unified() {
		return found{sure(290, "a request above the total", c.smaller(),
			quote(r.St, "%v in one piece is more than the GPU's %v", r.Want, total)).and(c.totalLine()...).only()}
	}
	if card := c.NamedCard(); total == 0 && card.Bytes > 0 && r.Want > card.Bytes && !c.Unified() {
		return found{sure(288, "a request above the card", c.smaller(),
			quote(r.St, "%v in one piece is more than the GPU's %v", r.Want, card.Bytes),
			with(card, "no GPU of this name has more than %v", card.Bytes)).only()}
	}
	switch {
	case c.bareKnown():
		return nil
	case c.bareXLA():
		return found{fits(214, "a request and nothing more", c.smaller(), seeReport,
			r.St.Quoted(r.Refused())).needs(needTotal, needReport)}
	case c.bareXLAWords():
		return nil
	case c.bareLlama():
		return found{fits(231, "a refusal without its numbers", c.fewerLayers(&account.Plan{}), c.processes(),
			r.St.Quoted(r.Refused())).needs(needTotal, NeedProcesses)}
	case c.bareProgram() && c.FreeCard().Bytes > 0:
		return found{fits(206, "a refusal on an empty GPU", c.smaller(), seeRise,
			r.St.Quoted(r.Refused()),
			c.FreeCard().From)}
	case c.bareProgram():
		return found{fits(206, "a refusal without its numbers", c.smaller(), c.processes(),
			r.St.Quoted(r.Refused())).needs(needTotal, NeedProcesses)}
	}
	return nil
}

// heapShort is for a refusal beside a list of heaps, if one of them has no room for it.
func (c *view) heapShort(heaps []account.Heap, r *account.Refusal) found {
	h := account.Short(heaps, r.Want)
	if h == nil {
		return nil
	}
	return found{fits(292, "a heap without room", c.smaller(), c.processes(),
		r.St.Quoted(r.Refused()),
		with(account.Sized{From: h.From}, "%s is full: %v of its budget of %v", h.Name, h.Used, h.Budget))}
}
