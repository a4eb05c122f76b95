package cause

// not_memory: this is no failure of memory.

import (
	"regexp"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func notMemory(c *view) (all []Explanation) {
	add := func(x Explanation) {
		x.Verdict = "not_memory"
		all = append(all, x)
	}
	if st := c.Sticky; st != nil && (c.Shortfall == nil || st.Line < c.Shortfall.St.Line) {
		x := sure(975, "an error after which every call fails", otherFailure, st.Quoted("the failure is "+st.Topic("other").Name+": every later call of the process fails for it, whichever library makes it"))
		x.Alone = true
		add(x)
	}
	if st := c.driverStart(); st != nil {
		x := sure(966, "the driver did not start", repairDriver, st.Quoted("the driver itself could not be initialised: that takes nothing of the GPU's memory for the program, whatever its status says"))
		x.Alone = true
		add(x)
	}
	if bytes, st := c.AbsurdRequest(); bytes > 0 {
		add(sure(695, "a size that no program means", steps("see which line asks for it, and print the shapes before it: an index or a size there is wrong, or passed 2^31",
			"no setting of memory, and no larger GPU, helps"), st.Quoted(human(bytes)+" in one piece: a wrong shape, or a number that overflowed")))
	}
	if _, memory, other := c.ncclLines(); memory == nil && other != nil && !c.fatal {
		add(sure(870, "NCCL fails for another reason", otherFailure, other.Quoted("NCCL's error is not that of memory")))
	}
	if st := c.About("cubin"); st != nil && !st.Refused && !codeNamed(st) && strings.Contains(st.Text, "CUDA_ERROR_") {
		add(sure(838, "compiled code that was refused", otherFailure, st.Quoted("the driver's status is not that of memory")))
	}
	if st := c.otherFailure(); st != nil {
		add(sure(390, "another failure", otherFailure, st.Quoted("the failure is "+st.Topic("other").Name+", whatever is free")))
	}
	if st := c.About("sessions"); st != nil && c.bare != nil && c.bare.Want == 0 {
		all = append(all, fits(320, "too many sessions", steps("count the encode sessions on the machine: nvidia-smi encodersessions; consumer cards allow a few at a time",
			"end other encoders, or update the driver"), "nvidia-smi encodersessions; nvidia-smi    # while it fails: are the sessions all taken, or is the memory?", st.Quoted("the encoder says so where a session is refused, for their number or for memory")))
	}
	l := c.Library
	switch {
	case l == nil:
	case l.Plenty():
		add(sure(385, "a library fails on a free GPU", leaveSettings, l.Quotes()...).only().certainly(l.Certain()...))
	case l.Tried:
		all = append(all, fits(333, "a smaller pool did not help", leaveSettings, c.decideLibrary(l), append(l.Quotes(), l.TriedBy)...).only())
	}
	return all
}

// driverStart is the line of a refusal in cuInit, which comes before any memory.
func (c *view) driverStart() *statement.Statement {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost })
	if r == nil || r.Want > 0 || !driverInit.MatchString(r.St.Text) {
		return nil
	}
	return r.St
}

var driverInit = regexp.MustCompile(`\b(?:cuInit|hipInit|nvmlInit(?:_v2)?|cudaGetDeviceCount)\b`)

var repairDriver = steps("see that the driver answers at all: nvidia-smi; in WSL the Windows driver and the kernel of WSL have to fit (wsl --update), and its memory limit is .wslconfig's",
	"see that the program finds the right libcuda (ldconfig -p | grep libcuda), and that the host has memory: free -h")

// otherFailure is the line of a failure that is none of memory, if no memory was refused and no
// library's failure comes before it.
func (c *view) otherFailure() *statement.Statement {
	st, l := c.About("other"), c.Library
	if st == nil || c.fatal || l != nil && (l.St.Line < st.Line || l.Memory) {
		return nil
	}
	return st
}

var otherFailure = steps("look for the failure that this line names; memory settings do not change it")

var leaveSettings = steps("leave the memory settings as they are",
	"compare the library's version with the one that the framework was built for: pip list | grep -i -E 'jax|cudnn|nvidia'",
	"look for a second copy of the library: ldconfig -p | grep -i cudnn; echo $LD_LIBRARY_PATH")
