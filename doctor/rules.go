package doctor

// The rule book. A rule is one way to recognise one cause: what must be seen,
// what rules it out, the arithmetic, and where that is from. Rules do not see
// each other. A rule that finds its cause shown by the evidence says so (sure);
// else the cause is only one that fits, and the rule says what would decide.
//
// diagnose.go weighs what they find. Where several are sure, the earlier one
// leads: the book is ordered from what needs the least belief (a text that
// can have one reason only) to what takes arithmetic over several lines.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/size"
)

// A rule is one entry of the book.
type rule struct {
	name   string // unique; what is seen, in a few words
	cause  CauseID
	seen   string // what must be seen
	not    string // what rules it out; may be empty
	source string
	test   func(e *evidence) *finding // nil: the rule does not apply
}

// A finding is a cause that a rule found.
type finding struct {
	sure     bool
	evidence []Evidence // at least one line of the log, where there is a log
	missing  []missing  // that would decide, where it is not sure
	decide   string     // a command that would tell
	certain  []string
	cure     cure
	verdict  Verdict // instead of what sure implies
	alone    bool    // what fits beside it is about another device
}

// A missing fact is one that a state file can tell.
type missing string

const (
	needProcesses  missing = "devices.processes: who holds memory on the GPU"
	needTotal      missing = "devices.total_bytes: how much memory the GPU has"
	needUsed       missing = "devices.used_bytes: how much of the GPU was in use before the program started"
	needFrameworks missing = "process.frameworks: whether the process loads TensorFlow beside JAX"
	needFraction   missing = "process.per_process_memory_fraction: whether the program, or a setting, caps PyTorch's memory"
	needRecreated  missing = "process.backend_recreated: whether the program made its backend a second time (clear_backends)"
	needEnv        missing = "process.env: the program's memory settings"
	needPoolReport missing = "the pool's report: the lines of the allocator before the error (Limit, InUse, chunks)"
	needKernelLog  missing = "the kernel's log: dmesg says who was killed and why"
)

// Thresholds. All are in bytes.
const (
	// firstLibrary is what cuDNN needs for its first convolution, kernels
	// included: about 520 MiB (tensorflow/tensorflow#24496).
	firstLibrary = 520 * mib
	// contextMost is the most that a context, its modules and library handles
	// take outside of any pool in an ordinary program, NCCL left out.
	contextMost = 1536 * mib
)

// absurd is in bytes what no program means to ask of one GPU.
const absurd = 16 << 40

// defaultLeft is the part of the GPU that JAX's default pool leaves: 1 - 0.75,
// since jaxlib 0.4.4.
const defaultLeft = 0.25

// shown is a finding that asserts its cause.
func shown(c cure, evidence ...Evidence) *finding {
	return &finding{sure: true, evidence: evidence, cure: c}
}

// fits is a finding that only names its cause as one of several.
func fits(c cure, decide string, need []missing, evidence ...Evidence) *finding {
	return &finding{evidence: evidence, missing: need, decide: decide, cure: c}
}

func (f *finding) with(certain ...string) *finding {
	if f != nil {
		f.certain = append(f.certain, certain...)
	}
	return f
}

// need makes a list of missing facts.
func need(m ...missing) []missing { return m }

// human is a size for people.
func human(n uint64) string { return size.Format(n) }

// percent is a share in whole percent.
func percent(part, whole uint64) int {
	if whole == 0 {
		return 0
	}
	return int(math.Round(100 * float64(part) / float64(whole)))
}

// book is all rules in their order. It is made at the first use, since rules
// refer to functions that read it.
var book = slices.Concat(plainRules, hostRules, limiterRules, torchRules, engineRules, libraryRules, headroomRules, startRules, poolRules, lastRules)

// The decisions that several rules ask for.
const (
	decideSmi      = "nvidia-smi    # while it fails: is another process on the GPU?"
	decideState    = "gpumem ps --json > state.json; gpumem doctor --state state.json LOG"
	decidePrealloc = "XLA_PYTHON_CLIENT_PREALLOCATE=false python PROGRAM    # if it runs now, memory was the cause; if not, the library"
	decideFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION=.5 python PROGRAM    # if it runs now, memory was the cause; if not, the library"
)

// sortEvidence orders by line; what is not of the log comes last. Lines that come twice
// are quoted once.
func sortEvidence(list []Evidence) []Evidence {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Evidence) int {
		if (a.Line == 0) != (b.Line == 0) {
			return b.Line - a.Line
		}
		return cmp.Compare(a.Line, b.Line)
	})
	var out []Evidence
	for _, e := range list {
		if i := slices.IndexFunc(out, func(o Evidence) bool { return o.Line == e.Line && o.Text == e.Text }); i >= 0 {
			if out[i].Reading == "" {
				out[i].Reading = e.Reading
			} else if e.Reading != "" && e.Reading != out[i].Reading {
				out[i].Reading += "; " + e.Reading
			}
			continue
		}
		out = append(out, e)
	}
	return out
}
