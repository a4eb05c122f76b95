package cause

// prealloc_starves_library: too little GPU memory was left for a CUDA library, mostly because
// this program's own pool took the rest.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func starvedLibrary(c *view) (all []Explanation) {
	all = c.starvedByPool()
	if d := c.Driver; d != nil && !d.Collected && d.Past && d.Want <= statement.Gib {
		switch {
		case c.told && c.held < account.FirstLibrary && c.framedProgram():
			all = append(all, sure(525, "a small request past the pool", c.smallerPool(c.held),
				quote(d.St, "%v was requested from the driver, outside the pool, which is alone on the GPU", d.Want)).
				only())
		case c.smallPast():
			all = append(all, fits(521, "a small request past the pool", c.smallerPool(0), c.tryLess(),
				quote(d.St, "%v was requested from the driver, outside the pool: the pool, or another process, left less than that",
					d.Want)).only())
		}
	}
	if r := c.bare; r != nil && c.jaxlibCall() {
		reading := r.St.Quoted("the driver had no memory for a call of jaxlib, which does not come from the pool")
		if c.told {
			return append(all, sure(240, "jaxlib's own kernels", c.smallerPool(0), reading).only())
		}
		return append(all, fits(240, "jaxlib's own kernels", c.smallerPool(0), c.tryLess(),
			reading).needs(NeedProcesses))
	}
	return all
}

// starvedByPool is for a library that could not start.
func (c *view) starvedByPool() found {
	l := c.Library
	if l == nil || l.Plenty() {
		return nil
	}
	alone := c.told && account.Less(c.held, c.displayHeld()) < account.FirstLibrary
	own, ownKnown := c.OwnPool(l)
	var x Explanation
	switch {
	case l.Tried:
		return found{fits(331, "a smaller pool may not have been small enough",
			triedAlready,
			c.decideLibrary(l),
			l.Quotes()...).and(l.TriedBy).only().certainly(l.Certain()...)}
	case l.Helped && (!c.told || alone):
		x = sure(368, "a smaller pool helped", c.asTried(l), l.Quotes()...).and(l.TriedBy)
	case (l.Short() || l.From == nil) && ownKnown && c.framed(l):
		x = sure(366, "the pool leaves a library too little", c.smallerPool(0), l.Quotes()...).and(own)
	case l.Short() && alone && c.framed(l):
		x = sure(364, "the pool leaves a library too little", c.smallerPool(c.displayHeld()),
			l.Quotes()...).and(c.desktopLines()...)
	case l.Short() && c.told && !c.framed(l):
		return nil
	case l.Short() && !c.framed(l):
		x = fits(346, "a library without room", c.handleEarly(), c.processes(), l.Quotes()...)
	case l.Open() && !c.framed(l):
		x = fits(346, "a library that failed", c.handleEarly(), c.decideLibrary(l), l.Quotes()...)
	case l.Short():
		x = fits(346, "a library without room", c.smallerPool(0), c.processes(), l.Quotes()...).needs(NeedProcesses)
	case l.Open() && (!c.told || account.HoldLittle(c.held)):
		x = fits(351, "a library that failed", c.smallerPool(c.displayHeld()), c.decideLibrary(l),
			l.Quotes()...).and(c.Display()...)
	default:
		return nil
	}
	return found{x.only().certainly(l.Certain()...)}
}

// desktopLines are the lines that name the desktop's programs.
func (c *view) desktopLines() (l []statement.Evidence) {
	for _, o := range c.others {
		if o.IsDesktop() {
			l = append(l, o.Shows("the desktop takes "+account.Human(o.Used)+" of what the pool leaves"))
		}
	}
	return l
}

var triedAlready = steps("see that what was tried reached the program: gpumem explain --pid PID, while it runs")

// asTried keeps what helped.
func (c *view) asTried(l *account.Library) Remedy {
	set := strings.TrimPrefix(l.TriedBy.Text, "tried: ")
	name, value, _ := strings.Cut(set, "=")
	return steps(letJAXGrow, when(c.screen(), displayHere)).set(name, value, "it helped when it was tried").check(c.jaxCheck(set))
}

// handleEarly is for programs whose pools grow as needed.
func (c *view) handleEarly() Remedy { return c.advise("handle") }

// smallerPool makes the pool smaller. It leaves what cuDNN's first convolution takes, and half
// of that for the handles of other libraries, less what was free already. display is what the
// desktop holds, in bytes.
func (c *view) smallerPool(display uint64) Remedy {
	if !c.onJAX() && !c.Uses("exla") {
		return c.advise("beside").step(when(c.screen(), displayHere))
	}
	value, why := c.poolLess(display)
	return c.fraction(value, why).step(c.growInTensorFlow(), letJAXGrow, when(c.screen(), displayHere))
}

// poolLess is a fraction that leaves libraries their room, and its reason.
func (c *view) poolLess(display uint64) (value, why string) {
	fraction, _ := c.Fraction()
	total, left := c.total.Bytes, uint64(0)
	l := c.Library
	if l != nil && l.Total > 0 {
		total = l.Total
	}
	if l != nil && l.From != nil {
		left = l.Left
	}
	if total == 0 {
		return down(fraction - .1), "a tenth of the GPU less than now; if the GPU's size is known (--state), the number is exact"
	}
	pool := uint64(fraction * float64(total))
	if l != nil && l.From != nil {
		pool = min(pool, account.Less(total, left)) // whatever the setting was, no more was in use
	}
	const wanted = account.FirstLibrary + account.FirstLibrary/2
	room := account.Less(wanted, left)
	if room == 0 {
		return down(fraction - .1), account.Say("a tenth of the GPU less than now: %v was free, and the library wanted more",
			left)
	}
	value = down(float64(account.Less(pool, room)) / float64(total))
	now := uint64(number(value) * float64(total))
	why = account.Say("%v of %v, %v less than before, leave libraries %s", now, total, account.Less(pool, now),
		account.Human(wanted))
	if display > 0 {
		why += ", beside the desktop's " + account.Human(display)
	}
	return value, why
}
