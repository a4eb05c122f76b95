// The environment, as the newest JAX reads it: first Python, then XLA.

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The variables, all read once by jaxlib/xla_client.py in
// generate_pjrt_gpu_plugin_options, but for the last two.
const (
	allocatorVar   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	fractionVar    = "XLA_CLIENT_MEM_FRACTION"
	oldFractionVar = "XLA_PYTHON_CLIENT_MEM_FRACTION" // deprecated by XLA PR 16457, 2024-08
	preallocateVar = "XLA_PYTHON_CLIENT_PREALLOCATE"
	collectiveVar  = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
	abortVar       = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE" // not about memory, but can raise
	tfrtVar        = "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"          // likewise

	// Read by XLA's GpuCudaMallocAsyncAllocator and by nothing else in JAX.
	asyncVar = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
	// Read by TensorFlow alone, although JAX's documentation names it.
	tfAllocatorVar = "TF_GPU_ALLOCATOR"
)

// jaxKinds are the values of XLA_PYTHON_CLIENT_ALLOCATOR.
var jaxKinds = map[string]Kind{
	"default": BFC, "bfc": BFC, "platform": Platform, "address": Address, "cuda_async": Async, "vmm": VMM,
}

// A Warning is about a setting that does not do what it seems to say.
type Warning struct {
	Name string // the variable, as the user wrote it
	Text string // one sentence: what happens instead, and what to write
}

// A SettingError is what the framework itself would raise for a setting. JAX
// logs it, goes on without the GPU, and does not show it as an exception.
type SettingError struct {
	Name string // the variable
	Text string // the framework's own words, without the exception's type
}

// Error is Text.
func (e *SettingError) Error() string { return e.Text }

// FromEnv is what the newest JAX does with an environment. lookup is
// [os.LookupEnv] or acts like it.
//
// The policy has the Kind that JAX would build. Settings that this kind ignores
// have no effect on it; such settings, those not recognised and those that make
// no sense give warnings, in a fixed order. The error is nil or a
// *[SettingError]; it is the first one that JAX would meet, and neither policy
// nor warnings come with it.
func FromEnv(lookup func(string) (string, bool)) (Policy, []Warning, error) {
	s, err := readSettings(lookup)
	if err != nil {
		return Policy{}, nil, err
	}
	p := s.policy()
	w := s.warnings(p)
	if p.Kind == Async {
		text, err := s.asyncPrealloc(&p)
		if err != nil {
			return Policy{}, nil, err
		}
		if text != "" {
			w = append(w, Warning{asyncVar, text})
		}
	}
	return p, w, nil
}

// settings are the variables after Python has read them.
type settings struct {
	lookup func(string) (string, bool)

	kind           Kind
	allocator      string  // lower-cased
	fractionName   string  // the variable that set the fraction; empty: none did
	fraction       float64 // after the 32-bit float
	preallocate    bool
	preallocateSet string // its text; empty: not set
	collectiveMiB  int64
}

// get is Python's os.getenv(name, "").
func (s *settings) get(name string) string {
	text, _ := s.lookup(name)
	return text
}

// readSettings follows generate_pjrt_gpu_plugin_options step by step: the
// order of the steps decides which of several errors is raised.
func readSettings(lookup func(string) (string, bool)) (*settings, error) {
	s := &settings{lookup: lookup, fraction: Default().Fraction, preallocate: true}

	fraction := s.get(fractionVar)
	if fraction != "" {
		s.fractionName = fractionVar
	}
	if old := s.get(oldFractionVar); old != "" {
		if fraction != "" {
			return nil, &SettingError{fractionVar, "XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated."}
		}
		fraction, s.fractionName = old, oldFractionVar
	}

	// Set but empty is not the default here: "" is an unknown allocator.
	allocator, ok := lookup(allocatorVar)
	if !ok {
		allocator = "default"
	}
	s.allocator = strings.ToLower(allocator)
	if s.kind, ok = jaxKinds[s.allocator]; !ok {
		return nil, &SettingError{allocatorVar, `XLA_PYTHON_CLIENT_ALLOCATOR env var must be one of "default", "platform", "bfc", "cuda_async", "vmm", "address", got "` + s.allocator + `"`}
	}

	if fraction != "" {
		f, ok := pyFloat(fraction)
		if !ok {
			return nil, &SettingError{s.fractionName, "could not convert string to float: " + pyRepr(fraction)}
		}
		s.fraction = float32Fraction(f)
	}

	if s.preallocateSet = s.get(preallocateVar); s.preallocateSet != "" {
		no := s.preallocateSet == "false" || s.preallocateSet == "False" || s.preallocateSet == "0"
		s.preallocate = !no // whatever else it says
	}

	for _, name := range []string{collectiveVar, abortVar, tfrtVar} {
		text, set := lookup(name)
		if !set || text == "" && name == collectiveVar { // int("") is raised for the other two
			continue
		}
		n, ok := pyInt(text)
		if !ok {
			return nil, &SettingError{name, "invalid literal for int() with base 10: " + firstRunes(pyRepr(text), 200)}
		}
		if name != collectiveVar {
			continue
		}
		if n > math.MaxInt64>>20 || n < math.MinInt64>>20 {
			// The words are ours. Python has larger integers, but the option
			// collective_memory_size is an int64.
			return nil, &SettingError{name, fmt.Sprintf("%s MiB is more than a signed 64-bit number of bytes can hold", firstRunes(pyRepr(text), 200))}
		}
		s.collectiveMiB = n
	}
	return s, nil
}

// firstRunes cuts s to n code points, as CPython does in int's message (%.200R).
func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// policy is what XLA builds from the settings. Each kind takes only those that
// it looks at.
func (s *settings) policy() Policy {
	p := Policy{Kind: s.kind}
	if s.kind == BFC {
		p = Default()
		p.Spatial = p.Spatial && s.preallocate
	}
	p.Spec, p.Name = "env", "env"
	if s.kind != Platform && s.kind != Address {
		p.Fraction = s.fraction // rounded to 2 MiB for BFC alone
	}
	if s.kind == BFC || s.kind == Async { // the two with a second pool for collective memory
		p.Preallocate = s.preallocate
		p.CollectiveBytes = uint64(max(s.collectiveMiB, 0)) << 20
	}
	return p
}

// warnings are those about the variables that Python reads, and about those
// that nobody reads.
func (s *settings) warnings(p Policy) []Warning {
	var list []Warning
	warn := func(name, format string, args ...any) {
		list = append(list, Warning{name, fmt.Sprintf(format, args...)})
	}

	if s.fractionName == oldFractionVar {
		warn(oldFractionVar, "deprecated, still works; the name is now %s", fractionVar)
	}
	switch {
	case s.fractionName == "":
	case s.kind == Platform || s.kind == Address:
		warn(s.fractionName, "ignored: the %s allocator has no limit", s.allocator)
	case s.kind == Async && !s.preallocate:
		warn(s.fractionName, "ignored: without preallocation the cuda_async allocator has no limit")
	case math.IsNaN(s.fraction):
		warn(s.fractionName, "not a number, so no limit can be computed; write .75 for 75 %%")
	case s.fraction <= 0:
		warn(s.fractionName, "%g leaves no memory to allocate; write .75 for 75 %%", float32(s.fraction))
	case s.fraction > 1:
		warn(s.fractionName, "%g is more than the whole GPU, 1; write .75 for 75 %%", float32(s.fraction))
	}

	switch {
	case s.preallocateSet == "":
	case s.kind == Platform || s.kind == Address || s.kind == VMM:
		warn(preallocateVar, "ignored: the %s allocator never preallocates", s.allocator)
	case s.preallocate && !meansYes(s.preallocateSet):
		warn(preallocateVar, "%s is not recognised, preallocation stays on; only false, False and 0 turn it off", pyRepr(s.preallocateSet))
	}

	switch {
	case s.collectiveMiB == 0:
	case s.kind != BFC && s.kind != Async:
		warn(collectiveVar, "ignored: the %s allocator has no separate pool for collective memory", s.allocator)
	case p.Spatial:
		warn(collectiveVar, "ignored since JAX 0.11.0: with preallocation, collective memory comes from the one pool")
	case s.collectiveMiB < 0:
		warn(collectiveVar, "%d MiB makes no sense and counts as 0 here; write a number above 0", s.collectiveMiB)
	}

	if s.get(tfAllocatorVar) != "" {
		warn(tfAllocatorVar, "JAX does not read it, only TensorFlow does; for the driver's pool in JAX write %s=cuda_async", allocatorVar)
	}
	if s.kind != Async && s.get(asyncVar) != "" {
		warn(asyncVar, "ignored: only %s=cuda_async reads it", allocatorVar)
	}
	return list
}

// meansYes says whether a text that turns preallocation on was meant to.
func meansYes(text string) bool {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	}
	return false
}

// asyncPrealloc reads TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC into p, and says
// what it does not do. In XLA, unlike TensorFlow, the pool's release threshold
// is what is preallocated, so the variable has an effect in one case alone.
func (s *settings) asyncPrealloc(p *Policy) (warning string, err error) {
	text, set := s.lookup(asyncVar)
	if !set {
		return "", nil
	}
	// XLA's ReadInt64FromEnvVar; the process aborts with this message.
	n, err := strconv.ParseInt(strings.Trim(text, " \t\n\v\f\r"), 10, 64)
	if err != nil {
		return "", &SettingError{asyncVar, "Failed to parse the env-var ${" + asyncVar + "} into int64: " + text + ". Use the default value: 0"}
	}
	switch {
	case n == 0 || n == -1 && p.Preallocate: // as without it
		return "", nil
	case p.Preallocate:
		return "ignored: preallocation is on and reserves its fraction of the GPU; " + preallocateVar + "=false makes JAX read it", nil
	case n == -1:
		return "reserves nothing in JAX while " + preallocateVar + " is off; leave both out to reserve the fraction", nil
	case n < 0:
		return fmt.Sprintf("%d is refused by the driver, so nothing is reserved; write a number of bytes", n), nil
	}
	p.AsyncPrealloc = n
	return "JAX takes so many bytes once, but the driver may take them back when the GPU is idle", nil
}
