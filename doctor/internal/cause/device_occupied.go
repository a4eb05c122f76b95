package cause

// device_occupied: other programs hold the GPU's memory.

import (
	"gpumem/doctor/internal/account"
)

func occupied(c *view) (all []Explanation) {
	all = append(all, c.contextOccupied()...)
	all = append(all, c.driverOccupied()...)
	all = append(all, c.poolOccupied()...)
	all = append(all, c.libraryOccupied()...)
	return append(all, c.bareOccupied()...)
}

// contextOccupied is for programs that could not even make a context, or that found the GPU
// full, or got a small part of it.
func (c *view) contextOccupied() (all []Explanation) {
	const full = "not even a context could be made: the GPU was full before this program took any"
	if r := c.noContext(); r != nil {
		l := one(r.St, full)
		used, total := c.GPUUsed()
		smi := c.SMIFull()
		switch {
		case smi.Bytes > 0:
			all = append(all, sure(588, "no context: the GPU is full", c.endOthers(), l...).and(smi.From))
		case c.neighbours() != nil:
			all = append(all,
				sure(586, "no context: the GPU is full", c.endOthers(),
					l...).and(c.neighbours()...).certainly("not even a context could be made on the GPU"))
		case account.Taken(used, total):
			all = append(all, sure(584, "no context: the GPU is full", c.endOthers(),
				l...).and(inUse(used, "%v of %v is in use, and no process is listed", used, total)))
		case !c.told && !c.onJAX() && !c.OnTensorFlow():
			all = append(all, sure(582, "no context: the GPU is full", c.endOthers(), l...))
		case !c.told:
			all = append(all, fits(540, "no context", c.endOthers(), c.processes(), l...).needs(NeedProcesses).certainly(
				"not even a context could be made on the GPU: it was full before this program took any"))
		}
	}
	if st, free, total := c.StartReading(); st != nil && account.StartTaken(free, total) && (c.fatal || c.Library != nil) {
		all = append(all, sure(580, "free memory at the start", c.endOthers(),
			quote(st, "%v of %v was free before the program took any", free, total)))
	}
	if part, total := c.SmallDevice(); part.Bytes > 0 {
		l := with(part, "TensorFlow takes what is free: it got %v, and this GPU has %v", part.Bytes, total)
		if c.told && account.HoldsMuch(c.held, total) {
			all = append(all, sure(575, "TensorFlow got a part of the GPU only", c.endOthers(),
				c.othersLines()...).and(l).only())
		} else {
			all = append(all, fits(575, "TensorFlow got a part of the GPU only", c.endOthers(), c.processes(),
				l).needs(NeedProcesses).only())
		}
	}
	return all
}

// driverOccupied is for requests that the driver refused.
func (c *view) driverOccupied() found {
	d, total := c.Driver, c.total.Bytes
	switch {
	case d == nil || d.Collected || c.driverAbove():
	case d.Big != nil && d.HeldBy(total):
		return found{sure(540, "others on the machine", c.endOthers(), d.Big...).and(d.St.Quoted(d.NotHad(total))).only()}
	case c.poolSizeRefused() && d.Steps > 2:
		return found{fits(528, "a pool that tries less and less", c.endOthers(), c.processes(),
			d.St.Quoted(d.Tried)).needs(NeedProcesses, needTotal).only()}
	case c.poolSizeRefused():
		return found{fits(531, "a whole pool is refused", c.endOthers(), c.processes(),
			d.St.Quoted(d.NotHad(total))).needs(NeedProcesses, needTotal).only()}
	case c.smallPast():
		return found{fits(522, "a small request past the pool", c.endOthers(), c.processes(),
			d.St.Quoted(d.NotHad(total))).only()}
	case c.regionRefused():
		return found{fits(512, "a region that the driver refused", c.endOthers(), c.processes(),
			d.St.Quoted(d.NotHad(0))).needs(NeedProcesses, needTotal).only()}
	case d.Past && !c.told:
		return found{fits(514, "a request past the pool", c.endOthers(), c.processes(),
			d.St.Quoted(d.NotHad(total))).needs(NeedProcesses, needTotal).only()}
	}
	return nil
}

// poolOccupied is for a pool that could not grow, and for a small program that did not fit.
func (c *view) poolOccupied() found {
	if b := c.Compiled.Buffers; b.Bytes > 0 && c.Compiled.Small && !c.gpuHalfEmpty() {
		live, source := c.LiveHere()
		switch {
		case source != "" && live <= 4*b.Bytes:
			return found{sure(454, "a small program, and little that is live", c.endOthers(),
				with(b, "the program needs %v, and no more than %v was live in it: others hold the GPU", b.Bytes,
					live)).
				only()}
		case source == "":
			return found{fits(454, "a small program that does not fit", c.endOthers(), c.processes(),
				with(b, "the program needs %v for its buffers alone", b.Bytes)).needs(NeedProcesses)}
		}
	}
	p := c.poolAccount()
	if p == nil || p.above(c) || c.poolFull(p) || !p.stopped() {
		return nil
	}
	l := append(one(p.Refused.St, account.Human(p.Want)+" requested"), p.Size.From, p.Limit.From)
	if c.told && c.held > account.FirstLibrary {
		return found{sure(434, "a pool that could not grow", c.endOthers(), l...).and(c.othersLines()...).only()}
	}
	return found{fits(434, "a pool that could not grow", c.endOthers(), c.processes(),
		l...).needs(NeedProcesses).only().
		certainly(account.Say(
			"the pool has %v of its limit of %v, and the driver gave it no more: others, or what is outside of the pool, have the rest",
			p.Size.Bytes, p.Limit.Bytes))}
}

// libraryOccupied is for a library that could not start.
func (c *view) libraryOccupied() found {
	l := c.libraryOpen()
	if l == nil {
		return nil
	}
	big, gone := c.bigOthers(l)
	held := account.HeldBy(big)
	enough := len(big) > 0 && (gone && (l.Short() || l.Open()) || l.Short() || held >= max(l.Total, c.total.Bytes)/4)
	switch {
	case enough:
		return found{sure(372, "others leave a library too little", c.endOthers(),
			l.Quotes()...).and(account.Readings(big)...).only().certainly(l.Certain()...)}
	case l.Short() && !c.told && !c.framed(l):
		return found{fits(343, "a library without room", c.endOthers(), c.processes(),
			l.Quotes()...).certainly(l.Certain()...)}
	case l.Short() && c.framed(l) && (l.From != nil || c.OnTensorFlow()):
		return found{fits(343, "a library without room", c.endOthers(), c.processes(),
			l.Quotes()...).needs(NeedProcesses).certainly(l.Certain()...)}
	case l.Open() && c.framed(l) && l.Starts() && c.OnTensorFlow():
		return found{fits(343, "a library that failed", c.endOthers(), c.processes(), l.Quotes()...)}
	}
	return nil
}

// bigOthers are processes, no JAX that preallocates and no desktop, that hold more than a library
// needs. gone reports whether the first has lost the one that started it.
func (c *view) bigOthers(l *account.Library) (big []account.Holder, gone bool) {
	total := max(l.Total, c.total.Bytes)
	for _, o := range c.others {
		if jax, _ := o.IsJAX(total); !o.IsDesktop() && !jax && (o.Used > account.FirstLibrary || o.Used == 0 && o.ParentGone) {
			big = append(big, o)
		}
	}
	return big, len(big) > 0 && big[0].ParentGone
}

// bareOccupied is for refusals of which little is known.
func (c *view) bareOccupied() found {
	if s := c.limiterAtWork(); s != nil {
		return found{fits(957, "a refusal without its size", c.endOthers(), c.processes(),
			s.Quoted("memory was refused; how much was requested is unknown"))}
	}
	if r := c.hostRefusal(); r != nil {
		if first, _, gpu := c.hostFirst(r); first {
			return found{fits(939, "the GPU refused as well", c.endOthers(), c.processes(),
				gpu.St.Quoted("the driver was out of memory, too; how much was requested is unknown"))}
		}
	}
	r := c.bare
	if r == nil || len(c.Heaps()) > 0 {
		return nil
	}
	if st := c.About("sessions"); st != nil && r.Want == 0 {
		return found{fits(319, "a session without room", c.endOthers(), c.processes(),
			st.Quoted("a session takes memory of the GPU, which may be full"))}
	}
	used, total := c.GPUUsed()
	switch {
	case c.told && c.total.Bytes > 0 && c.held > c.total.Bytes/2:
		x := sure(286, "others on the machine", c.endOthers(), c.othersLines()...).and(r.St.Quoted(r.Refused())).only()
		if x.Sure = !c.OneMayBeOwn() && !c.SeveralGPUs(); !x.Sure {
			x.Decide = c.processes()
		}
		return found{x}
	case c.told && !c.AnyHolder() && account.Taken(used, total):
		return found{sure(284, "a full GPU without a process", c.endOthers(), r.St.Quoted(r.Refused()),
			inUse(used, "%v of %v is in use, and no process is listed: its holder died without releasing it, or is outside of this container",
				used, total)).only()}
	case c.bareKnown(), c.bareXLA(), c.bareXLAWords():
	case c.bareLlama():
		return found{fits(230, "a refusal without its numbers", c.endOthers(), c.processes(),
			r.St.Quoted(r.Refused())).needs(NeedProcesses)}
	case c.bareProgram():
		return found{fits(205, "a refusal without its numbers", c.endOthers(), c.processes(),
			r.St.Quoted(r.Refused())).needs(NeedProcesses)}
	}
	return nil
}
