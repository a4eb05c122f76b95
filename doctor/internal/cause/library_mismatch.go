package cause

// library_mismatch: a library is missing, or does not fit the program or the GPU.

import "gpumem/doctor/internal/account"

func libraryMismatch(c *view) (all []Explanation) {
	if st := c.About("cubin"); st != nil && !st.Refused {
		switch {
		case codeNamed(st):
			all = append(all, sure(840, "compiled code for another GPU", c.pair(),
				st.Quoted("the driver's status is about the code and not about memory")))
		case c.codeOpen(st):
			all = append(all, fits(839, "compiled code that was not loaded", c.pair(), c.decideCode(),
				st.Quoted("the code may be for another GPU, as the text guesses")))
		}
	}
	if r := c.hostRefusal(); r != nil && r.Want > 0 && r.Want < fewBytes {
		all = append(all, fits(939, "a few bytes of the host", steps(
			"see that the driver, or what stands in for it (ZLUDA, a shim, WSL), fits the program: it refuses the call, whatever its size"), seeBoth,
			quote(r.St, "%v is so little that a shortage is one reason only: the call itself may not be supported", r.Want)))
	}
	if m := c.Mismatch(); m != nil {
		all = append(all, sure(395, m.Name, c.pair(), m.St.Quoted(m.Said)))
	}
	l := c.libraryOpen()
	switch {
	case c.oldDriver() && c.Library.Plenty():
		all = append(all, sure(386, "a driver that is too old", steps(otherSteps["a driver that does not fit"]...), c.Library.Quotes()...).
			and(c.about("olddriver", "the library names the driver's version itself")...).
			certainly(c.Library.Certain()...))
	case c.Library != nil && c.Library.Tried && !c.Library.Plenty():
		l = c.Library
		all = append(all, fits(335, "a smaller pool did not help", c.pair(), c.decideLibrary(l),
			l.Quotes()...).and(l.TriedBy).only().certainly(l.Certain()...))
	case l == nil || !l.Open():
	default:
		rank := 342
		if c.oldDriver() {
			rank = 350
		}
		all = append(all, fits(rank, "a library that failed", c.pair(), c.decideLibrary(l),
			l.Quotes()...).certainly(l.Certain()...))
	}
	return all
}

// oldDriver reports whether a library failed, and says that the driver may be too old for it.
func (c *view) oldDriver() bool {
	return c.Library != nil && c.About("olddriver") != nil
}

// pair is what to do about libraries that do not fit.
func (c *view) pair() Remedy {
	switch {
	case c.Uses("bitsandbytes"):
		return steps("see what it finds: python -m bitsandbytes; and that PyTorch has CUDA at all: python -c 'import torch; "+
			"print(torch.version.cuda)', which must not be None",
			"install a PyTorch with CUDA, then a current bitsandbytes: its wheels have the libraries for Linux and Windows, and load the CPU's "+
				"where they find no CUDA")
	case c.About("image") != nil:
		return c.advise("image")
	}
	return steps("see which version the framework wants and which is there: pip list | grep -i -E 'cudnn|cublas|nvidia'",
		"see which copy is loaded: LD_DEBUG=libs python PROGRAM 2>&1 | grep -i -E 'cudnn|cublas|cusolver' | grep "+
			"init").step(c.advise("pair").Steps...)
}

// decideLibrary tells memory from a broken library.
func (c *view) decideLibrary(l *account.Library) Command {
	switch {
	case c.OnTensorFlow():
		return tryTensorFlow
	case l.Torch:
		return seeVersions
	case l.Bare, !c.onJAX():
		return seeCopies
	case c.sharedCode() && !l.Tried:
		return tryBoth
	case l.Tried && l.Name == "cuDNN":
		return seeCuDNN
	case l.Tried:
		return seeLibraries
	case l.Name == "cuDNN" && l.Call:
		return tryFraction
	}
	return tryGrowing
}
