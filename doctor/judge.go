package doctor

// From what is known to a verdict. Each argument below looks at one way in which memory
// can lack: it is shown by the numbers, or possible as long as a fact is not known, or
// ruled out. The numbers are one account: what the GPU has is what this program's pool
// took, what the program holds outside of it, what others hold, and what is free. Who
// lacks bytes, and who of those could have given them, is the cause. A fact that would
// change the answer is missing, and the command that reads it decides.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A finding is a cause that an argument found.
type finding struct {
	cause    CauseID
	name     string // of the argument
	sure     bool
	evidence []Evidence // at least one line of the log, where there is a log
	missing  []missing  // that would decide, where it is not sure
	decide   string     // a command that would tell
	certain  []string
	cure     cure
	verdict  Verdict // instead of what sure implies
	alone    bool    // what fits beside it is about something else
}

// A missing fact is one that a state file can tell.
type missing string

const (
	needProcesses  missing = "devices.processes: who holds memory on the GPU"
	needTotal      missing = "devices.total_bytes: how much memory the GPU has"
	needFrameworks missing = "process.frameworks: whether the process loads TensorFlow beside JAX"
	needFraction   missing = "process.per_process_memory_fraction: whether the program, or a setting, caps PyTorch's memory"
	needRecreated  missing = "process.backend_recreated: whether the program made its backend a second time (clear_backends)"
	needEnv        missing = "process.env: the program's memory settings"
	needPoolReport missing = "the pool's report: the lines of the allocator before the error (Limit, InUse, chunks)"
	needKernelLog  missing = "the kernel's log: dmesg says who was killed and why"
	needWholeLog   missing = "the whole log: all that the program printed, on stderr as well"
)

// Thresholds. All are in bytes.
const (
	// firstLibrary is what cuDNN needs for its first convolution, kernels
	// included: about 520 MiB (tensorflow/tensorflow#24496).
	firstLibrary = 520 * mib
	// contextMost is the most that a context, its modules and library handles
	// take outside of any pool in an ordinary program, NCCL left out.
	contextMost = 1536 * mib
	// slack is free memory that a program can be refused with: the driver gives whole
	// pages, and the reading is a moment younger than the refusal.
	slack = 64 * mib
	// absurd is what no program means to ask of one GPU.
	absurd = 16 << 40
	// smallProgram fits any GPU of the last ten years: if it did not, it was not for
	// its own size.
	smallProgram = gib
)

// defaultLeft is the part of the GPU that JAX's default pool leaves: 1 - 0.75,
// since jaxlib 0.4.4.
const defaultLeft = 0.25

// The decisions that several arguments ask for.
const (
	whileItFails   = "    # while it fails: is another process on the GPU?"
	decideSmi      = "nvidia-smi" + whileItFails
	decideState    = "gpumem ps --json > state.json; gpumem doctor --state state.json LOG"
	decidePrealloc = "XLA_PYTHON_CLIENT_PREALLOCATE=false python PROGRAM    # if it runs now, memory was the cause; if not, the library"
	decideFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION=.5 python PROGRAM    # if it runs now, memory was the cause; if not, the library"
	decideFree     = "python -c 'import torch; print(torch.cuda.mem_get_info())'    # beside nvidia-smi: less means that something caps the process"
)

// A judge collects findings.
type judge struct {
	*evidence
	found []finding
}

// show adds a cause that is shown.
func (j *judge) show(cause CauseID, name string, c cure, evidence ...Evidence) *finding {
	j.found = append(j.found, finding{cause: cause, name: name, sure: true, evidence: evidence, cure: c})
	return &j.found[len(j.found)-1]
}

// maybe adds a cause that fits.
func (j *judge) maybe(cause CauseID, name string, c cure, decide string, need []missing, evidence ...Evidence) *finding {
	if v := j.otherVendor(); v != nil && decide == decideSmi {
		decide = v.processes + whileItFails
	}
	j.found = append(j.found, finding{cause: cause, name: name, evidence: evidence, cure: c, decide: decide, missing: need})
	return &j.found[len(j.found)-1]
}

func (f *finding) with(certain ...string) *finding {
	f.certain = append(f.certain, certain...)
	return f
}

// need makes a list of missing facts.
func need(m ...missing) []missing { return m }

// sure reports whether a cause is shown.
func (j *judge) sure() bool {
	return slices.ContainsFunc(j.found, func(f finding) bool { return f.sure })
}

// judge asks all arguments, those first that need the least belief.
func (e *evidence) judge() []finding {
	j := &judge{evidence: e}
	for _, argument := range []func(){
		j.settings, j.devices, j.limiters, j.host, j.leak, j.unifiedMemory, j.outsideAnyPool, j.twoPools, j.engines, j.account, j.contexts, j.driver,
		j.poolReport, j.compiled, j.libraries, j.otherFailures, j.library, j.bare, j.warnings,
	} {
		argument()
	}
	return j.found
}

// weigh makes a verdict of what the arguments find.
func (e *evidence) weigh() *Diagnosis {
	var sure, maybe []finding
	for _, f := range e.judge() {
		if !slices.ContainsFunc(f.evidence, func(q Evidence) bool { return q.Line > 0 }) && !e.binary() {
			continue // nothing is claimed without a line
		}
		list := &maybe
		if f.sure {
			list = &sure
		}
		if i := slices.IndexFunc(*list, func(g finding) bool { return g.cause == f.cause }); i < 0 {
			*list = append(*list, f)
		}
	}
	d := &Diagnosis{Verdict: VerdictUnknown}
	all := sure
	switch {
	case len(sure) > 0:
		d.Verdict = VerdictCause
		if v := sure[0].verdict; v != "" || sure[0].alone {
			d.Verdict = cmp.Or(v, VerdictCause)
			all = sure[:1]
		}
		// What only fits is kept where it competes for the same failure.
		for _, m := range maybe {
			if d.Verdict == VerdictCause && !sure[0].alone && !slices.ContainsFunc(all, func(f finding) bool { return f.cause == m.cause }) && shareLine(m.evidence, sure[0].evidence) {
				all = append(all, m)
			}
		}
		d.Decide = sure[0].decide
	case len(maybe) > 0:
		all = maybe
		for _, m := range maybe {
			d.Decide = cmp.Or(d.Decide, m.decide)
			for _, n := range m.missing {
				if !e.known(n) && !slices.Contains(d.Missing, string(n)) {
					d.Missing = append(d.Missing, string(n))
				}
			}
		}
		d.Verdict = VerdictEither
		if len(maybe) == 1 || len(d.Missing) > 0 {
			d.Verdict = VerdictNeeds
			if len(d.Missing) == 0 && d.Decide == "" {
				d.Missing = []string{string(needProcesses)}
			}
			break
		}
		// Decide tells them apart; so would a state file, if it had these.
		for _, n := range e.apart() {
			d.Missing = append(d.Missing, string(n))
		}
	default:
		d.Certain = e.certainty()
		for _, n := range e.unknowns() {
			d.Missing = append(d.Missing, string(n))
		}
		if len(d.Certain) == 0 && !e.said {
			d.Certain = []string{"no line of the log says that memory was refused"}
			if e.end != "" {
				d.Certain = append(d.Certain, "it ends with: "+clip(e.end))
			}
		} else if len(d.Certain) == 0 {
			d.Certain = []string{"the log speaks of memory that was refused, and not of how much or whose"}
		}
		if len(d.Missing) == 0 {
			d.Missing = []string{string(needWholeLog)}
		}
		if e.said {
			d.Decide = decideState
		}
	}
	if st := e.about("unread"); st != nil && e.fatal() {
		d.Certain = append(d.Certain, fmt.Sprintf("the setting of line %d could not be read: it is as if it were not there", st.line))
	}
	for _, f := range all {
		for _, c := range f.certain {
			if !slices.Contains(d.Certain, c) {
				d.Certain = append(d.Certain, c)
			}
		}
		d.Causes = append(d.Causes, Cause{
			ID: f.cause, Title: titles[f.cause], Rule: f.name, Evidence: sortEvidence(f.evidence),
			Settings: f.cure.settings, Steps: f.cure.steps, Check: f.cure.check, Doc: "docs/causes.md#" + string(f.cause),
		})
	}
	return d
}

// apart are the facts of a state that tell apart causes with the same text.
func (e *evidence) apart() (list []missing) {
	if !e.known(needProcesses) {
		list = append(list, needProcesses)
	}
	if h := e.handle(); h != nil && !h.torch && !h.cupy && !e.known(needFrameworks) {
		list = append(list, needFrameworks)
	}
	return list
}

// known reports whether a fact that would decide is known already.
func (e *evidence) known(m missing) bool {
	switch m {
	case needTotal:
		return e.total().bytes > 0
	case needProcesses:
		_, told := e.others()
		return told
	case needFrameworks:
		return e.frameworksTold()
	}
	return false
}

// binary reports whether the log was a binary dump, which has no lines.
func (e *evidence) binary() bool { return e.dump != nil && e.dump.Line == 0 }

// shareLine reports whether two findings are about one failure.
func shareLine(a, b []Evidence) bool {
	return slices.ContainsFunc(a, func(x Evidence) bool {
		return x.Line > 0 && slices.ContainsFunc(b, func(y Evidence) bool { return x.Line == y.Line })
	})
}

// certainty is what is sure where no cause is found.
func (e *evidence) certainty() []string {
	var c []string
	lead := e.last(func(r *refusal) bool { return !r.mild && r.want > 0 && r.layer != layerContext })
	first, last, n := e.ladder()
	switch {
	case n > 2:
		c = append(c, fmt.Sprintf("lines %d to %d are one request: each is nine tenths of the one before, from %s down to %s; the driver had less than each of them", first.st.line, last.st.line, human(first.want), human(last.want)))
	case lead != nil && lead.hasFree && lead.free > lead.want:
		c = append(c, fmt.Sprintf("line %d: the GPU had %s free when %s was refused, so its size was not the wall", lead.st.line, human(lead.free), human(lead.want)))
	case lead != nil:
		c = append(c, fmt.Sprintf("line %d is the failure: %s was refused", lead.st.line, human(lead.want)))
	}
	if d := e.dump; d != nil && d.Pool > 0 && len(c) == 0 {
		c = append(c, fmt.Sprintf("the dumped pool has %s, of which %s is in use and %s free, in pieces of %s at most", human(d.Pool), human(d.InUse), human(d.Free()), human(d.LargestFree)))
	}
	if r := e.contextRefused(); r != nil {
		c = append(c, "not even a context could be made on the GPU: it was full before this program took any")
		if t := r.strange(); t > 0 {
			c = append(c, fmt.Sprintf("the total in line %d is no size: %d is %s below 2^64", r.st.line, t, human(-t)))
		}
	}
	if p := e.pool(); p != nil && p.limit.bytes > 0 && p.inUse.bytes > 0 {
		if less(p.limit.bytes, p.inUse.bytes) < p.limit.bytes/50 {
			c = append(c, fmt.Sprintf("the pool is full: %s of its limit of %s is in use (lines %d and %d)", human(p.inUse.bytes), human(p.limit.bytes), p.limit.from.Line, p.inUse.from.Line))
			if p.limit.bytes < gib {
				c = append(c, "the limit is small: "+human(p.limit.bytes)+"; why is not told")
			}
		}
	}
	for _, st := range e.statements.all() {
		if st.words["dst"] && st.words["tensor"] && st.words["initialized"] {
			c = append(c, fmt.Sprintf("a copy to the GPU found no room (line %d)", st.line))
			break
		}
	}
	if lead != nil {
		if n := tensorBytes(lead.st.text); n > 0 {
			c = append(c, fmt.Sprintf("the tensor of line %d is %s", lead.st.line, human(n)))
		}
	}
	if r := e.last(func(r *refusal) bool { return r.mild }); r != nil && e.fatal() {
		c = append(c, fmt.Sprintf("line %d is a warning, not the failure", r.st.line))
	}
	if total, st := e.assigned(); st != nil && total < smallProgram {
		c = append(c, fmt.Sprintf("the program needs %s only (line %d): the memory is elsewhere", human(total), st.line))
	}
	if h := e.handle(); h != nil {
		c = append(c, h.certain()...)
		if h.from != nil && !h.short() && !h.plenty() && !h.scarce() {
			c = append(c, fmt.Sprintf("%d %% free is what JAX's default pool leaves by design (a quarter, less a context), and a library would fit into it", percent(h.left, h.total)))
		}
	}
	if r := e.last(func(r *refusal) bool { return !r.mild }); r != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("memory was refused (line %d); how much was asked for is not told", r.st.line))
	}
	if f := e.pick("chunks", nil); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("line %d is one of a pool's report, which is printed when it refused a request; the rest is not there", f.line))
	}
	return slices.Compact(c)
}

// unknowns are the facts that would help where no cause is found.
func (e *evidence) unknowns() []missing {
	if !e.said && e.handle() == nil && e.pick("chunks", nil) == nil {
		return nil
	}
	var m []missing
	if e.total().bytes == 0 {
		m = append(m, needTotal)
	}
	if _, told := e.others(); !told {
		m = append(m, needProcesses)
	}
	if p := e.pool(); p != nil && p.inUse.bytes == 0 {
		m = append(m, needPoolReport)
	}
	return m
}

// strange is a total that is no size, just below 2^64, or 0.
func (r *refusal) strange() uint64 {
	if r.total >= math.MaxInt64 {
		return r.total
	}
	return 0
}

// ladder finds refusals that are one request, tried again at nine tenths.
func (e *evidence) ladder() (first, last *refusal, n int) {
	for _, r := range e.failed {
		if r.want == 0 || r.mild {
			continue
		}
		if n > 0 {
			if part := float64(r.want) / float64(last.want); part < .885 || part > .915 {
				if n > 2 {
					break
				}
				first, n = r, 0
			}
		} else {
			first = r
		}
		last, n = r, n+1
	}
	return first, last, n
}
