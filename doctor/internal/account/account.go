package account

// What else causes ask of a case: whose refusal it is, the GPU's kind, what was loaded, lines by their words.

import (
	"cmp"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"regexp"
	"slices"
	"strings"
)

// roundUp is how far PyTorch's pool rounds a request for a segment: to 2 MiB, and small
// ones of more than a MiB to 20 MiB.
func roundUp(n uint64) uint64 {
	if n > statement.Mib && n < 10*statement.Mib {
		return 20 * statement.Mib
	}
	return (n + 2*statement.Mib - 1) &^ (2*statement.Mib - 1)
}

// subject is the refusal that the account is of: the last fatal one with numbers.
func (e *Case) subject() *Refusal {
	ok := func(r *Refusal) bool {
		limiter := r.St.Topic("hami", "nvshare") != nil
		return !r.Mild && r.Want > 0 && ofPools(r.Layer) && e.TorchLike(r) && !limiter
	}
	if r := e.Last(func(r *Refusal) bool { return ok(r) && r.Total > 0 && r.HasFree && r.hasAlloc }); r != nil {
		return r
	}
	if r := e.Last(func(r *Refusal) bool { return ok(r) && (r.Total > 0 || r.HasFree || r.hasAlloc || r.LimitTold > 0) }); r != nil {
		return r
	}
	return nil
}

// ofPools reports whether a layer's refusals say what a pool holds: not those of the host, of
// contexts, of collectives, of an engine and of modules.
func ofPools(l statement.Layer) bool {
	switch l {
	case statement.LayerHost, statement.LayerContext, statement.LayerNCCL, statement.LayerEngine, statement.LayerModule:
		return false
	}
	return true
}

// estimated reports whether a refusal is llama.cpp's, whose buffers are planned before.
func (e *Case) estimated(r *Refusal) bool {
	return e.Uses("llama.cpp") && (!r.hasAlloc || strings.Contains(r.St.Text, "memory.required"))
}

// TorchFraction is the cap on PyTorch's memory in the state or the settings.
func (e *Case) TorchFraction() (float64, bool) {
	if e.state != nil && e.state.Process != nil && e.state.Process.Fraction != nil {
		return *e.state.Process.Fraction, true
	}
	// As the release reads its settings: the last of a key counts, and blanks do not.
	text := "pytorch"
	if v := e.Version("torch"); v != "" {
		text += "@" + v
	}
	release, err := frameworks.ParseRelease(text)
	if err != nil {
		return 0, false
	}
	framework, version, err := release.Find()
	if err != nil {
		return 0, false
	}
	env := policy.Environ(EnvLines(e.Env))
	if own, ok := env.Lookup("PYTORCH_HIP_ALLOC_CONF"); ok && e.Uses("hip") {
		env = env.With(TorchConf, own) // package policy reads for CUDA, with the same grammar
	}
	r, refused := framework.Read(env, version)
	f := r.Policy.Fraction
	return f, refused == nil && f > 0 && f < 1
}

// HintIsWrong is what to say of PyTorch's advice where the numbers refute it.
func (e *Case) HintIsWrong(r *Refusal) []string {
	if idle := r.unallocated(); (r.hasIdle || r.kept > 0) && idle < r.Want/2 && (r.St.Words["fragmentation"] || r.St.Words["expandable"]) {
		return []string{Say("PyTorch's hint at fragmentation is printed whatever the cause; %v is reserved and unused, too little for %v",
			idle, r.Want)}
	}
	return nil
}

// UnifiedDevice is the name of a GPU that shares the host's memory, and "".
func (e *Case) UnifiedDevice() string {
	for _, f := range e.facts("device") {
		if unifiedName(f.Name) {
			return f.Name
		}
	}
	if d := e.gpu(); d != nil && unifiedName(d.Name) {
		return d.Name
	}
	return ""
}

// CodeStatus is the driver's word on code, or on a library that makes it.
var CodeStatus = needle.MustCompile(`CUDA_ERROR_\w*(?:JIT|FOUND|SOURCE|SHARED|UNSUPPORTED)`)

// loading is what was free before a model was loaded, and its parts that were.
func (e *Case) loading(r *Refusal) (free, parts uint64, start statement.Evidence) {
	for _, st := range e.Statements() {
		if st.Line >= r.St.Line || st.Refused {
			continue
		}
		if a := st.Amount(statement.RoleFree); a != nil && !a.Host && !a.Cache && st.HasAny("using", "device") && free == 0 {
			free, start = a.N, st.Quoted("")
		}
		if st.Words["buffer"] && st.Words["size"] && !st.HasAny("cpu", "host") {
			for i := range st.Amounts {
				parts += st.Amounts[i].N
			}
		}
	}
	return free, parts, start
}

// StatementBefore is the last statement before a line for which is holds, and nil.
func (e *Case) StatementBefore(line int, is func(*statement.Statement) bool) (found *statement.Statement) {
	for _, st := range e.Statements() {
		if st.Line < line && is(st) {
			found = st
		}
	}
	return found
}

// StatementWith is the first statement with all these words, and nil.
func (e *Case) StatementWith(words ...string) *statement.Statement {
	for _, st := range e.Statements() {
		if !slices.ContainsFunc(words, func(w string) bool { return !st.Words[w] }) {
			return st
		}
	}
	return nil
}

// FromLists are the sizes for a device in two lists such as "70.7 GiB 69.6 GiB".
func FromLists(planned, available string, device int) (uint64, uint64) {
	at := func(list string) uint64 {
		f := strings.Fields(strings.ReplaceAll(list, ",", " "))
		i := 2 * max(device, 0)
		if i+1 >= len(f) {
			return 0
		}
		return statement.SizeOf(f[i] + " " + f[i+1])
	}
	return at(planned), at(available)
}

// LargestThen is the largest GPU there was when a message was printed: XLA wrote
// "Resource exhausted" in small letters up to 2022, when an A100 had 80 GB.
func LargestThen(r *Refusal) uint64 {
	if strings.Contains(r.St.Text, "Resource exhausted:") {
		return 80 * statement.Gib
	}
	return LargestGPU
}

// StartReading is what a program said of the GPU before it took any of it.
func (e *Case) StartReading() (*statement.Statement, uint64, uint64) {
	var free, total *statement.Statement
	for _, st := range e.Statements() {
		if st.Report || st.Words["chunks"] {
			continue
		}
		if len(e.Failed) > 0 && st.Line > e.Failed[0].St.Line || st.Refused || st.Library != "" {
			break
		}
		if !st.Words["memory"] || st.HasAny("usage", "kv", "pool", "nvshare", "available", "cache") || st.Topic("nvshare") != nil {
			continue
		}
		if st.Amount(statement.RoleFree) != nil && !st.Amount(statement.RoleFree).Host {
			free = st
		}
		if st.Amount(statement.RoleTotal) != nil && !st.Amount(statement.RoleTotal).Host {
			total = st
		}
	}
	if free == nil || total == nil || total.Line+10 < free.Line || free.Line+10 < total.Line {
		return nil, 0, 0
	}
	return free, free.Amount(statement.RoleFree).N, total.Amount(statement.RoleTotal).N
}

// What XLA's pass says of a program: the limit, what it reached, and from where.
var (
	rematLimit = regexp.MustCompile(`(?i)\b(?:below|under|above|beyond|limit of)\s+([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
	rematTo    = regexp.MustCompile(`(?i)\bto ([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
	rematFrom  = regexp.MustCompile(`(?i)\bfrom ([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
)

// sizeAfter is the size that an expression finds, the exact one if there are two.
func sizeAfter(text string, re *regexp.Regexp) uint64 {
	m := re.FindStringSubmatch(statement.Clipped64(text))
	if m == nil {
		return 0
	}
	return cmp.Or(statement.SizeOf(m[2]), statement.SizeOf(m[1]))
}

// OwnUsed is what the state says that the program that failed holds, 0 if unknown.
func (e *Case) OwnUsed() uint64 {
	list, _ := e.holders()
	if d := e.gpu(); d == nil || d.Programs == nil || len(list) != 1 || !slices.Contains(list[0].Frameworks, "jax") {
		return 0
	}
	return list[0].Used
}

// cudaLibraries are those without which a GPU program cannot start. Others, such as
// TensorRT's libnvinfer, are missed without harm.
var cudaLibraries = needle.MustCompile(`(?i)cudnn|cublas|cusolver|cusparse|cufft|cudart|curand|nccl|nvrtc|zlibwapi|libcuda\b|libhip|rocblas|miopen`)
