package advise

// The recording: the framework whose settings the answer has, and the GPUs that its pools
// lie on.

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/internal/spelling"
	"gpumem/policy/frameworks"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// The frameworks of Config.As.
const (
	jax        = "jax"
	tensorFlow = "tensorflow"
	pyTorch    = "pytorch"
	rmm        = "rmm"
	none       = "none"
)

var known = []string{jax, tensorFlow, pyTorch, rmm, none}

// Source is the framework in whose settings the answer is.
type Source struct {
	Name    string `json:"framework"` // as in Config.As
	Version string `json:"version"`   // "" if it is not known; the settings are then those of the newest release
	// Why says how the framework was found; "" if it was given.
	Why string `json:"framework_found_by,omitempty"`
	// Other is another framework of which the recording may be; "" if it is of none.
	Other string `json:"framework_may_be,omitempty"`
	Note  string `json:"version_note,omitempty"` // how the version is read, if that is not certain
	// Older is a sentence on a variable that has another name in older releases; "" if there
	// is none, or if the version is known.
	Older string `json:"older_releases,omitempty"`
}

// Title returns the framework's name as people write it; "" if there is none.
func (s Source) Title() string {
	switch s.Name {
	case "", none:
		return ""
	case rmm:
		return "RMM"
	}
	f, _, _ := s.release().Find()
	return f.Title
}

// Newest returns the newest release that is known; "" if the framework has no releases here.
func (s Source) Newest() string {
	if f, _, err := s.release().Find(); err == nil {
		return f.Newest.String()
	}
	return ""
}

func (s Source) release() frameworks.Release {
	return frameworks.Release{Name: s.Name, Version: s.Version}
}

// startsVersion is how a version begins.
var startsVersion = regexp.MustCompile(`^v?[0-9]`)

// parseSource reads FRAMEWORK[@VERSION].
func parseSource(text string) (Source, error) {
	name, version, versioned := strings.Cut(text, "@")
	name = frameworks.Canonical(name)
	s := Source{Name: name, Version: version}
	switch {
	case startsVersion.MatchString(name):
		return s, fmt.Errorf("%q is a version without a framework; want one such as pytorch@2.8.0", text)
	case !slices.Contains(known, name):
		return s, fmt.Errorf("unknown framework %q%s; want one of %s", name, spelling.DidYouMean(name, known), strings.Join(known, ", "))
	case name != rmm && name != none:
		r, err := frameworks.ParseRelease(text)
		s.Note = r.Note()
		return s, err
	case versioned:
		return s, fmt.Errorf("%s takes no version; write %s alone", name, name)
	}
	return s, nil
}

// sourceOf returns the framework that is given, or else that of the recording.
func sourceOf(t *trace.Trace, as string) (s Source, err error) {
	if as == "" {
		s = findSource(t)
	} else if s, err = parseSource(as); err != nil {
		return s, err
	}
	if s.Version == "" {
		s.Older = s.older()
	}
	return s, nil
}

// older returns the sentences on the variable that was renamed.
func (s Source) older() string {
	new, old, value := jaxFraction, jaxOldFraction, ".50"
	also, both := "", "JAX refuses both at once"
	switch s.Name {
	case jax:
	case pyTorch:
		new, old, value = torchConf, torchOldConf, torchGC
		also = ", without " + torchPart + ": call torch.cuda.set_per_process_memory_fraction in its place"
		both = "it wins over " + new
	default:
		return ""
	}
	f, _, err := s.release().Find()
	if err != nil {
		return ""
	}
	for _, c := range f.Changes() {
		a := adviser{source: Source{Name: s.Name, Version: c.Version}}
		if _, ok := a.read(features{pages: true}, new+"="+value); ok {
			return fmt.Sprintf("Unset %s if it is set, for %s. Before %s %s %s is %s%s.", old, both, f.Title, c.Version, new, old, also)
		}
	}
	return ""
}

// findSource finds the framework from what the recording holds.
func findSource(t *trace.Trace) Source {
	switch t.Format {
	case "torch":
		return Source{Name: pyTorch, Why: "the recording is a snapshot of PyTorch"}
	case "kineto":
		return Source{Name: pyTorch, Why: "the recording is a trace of PyTorch's profiler"}
	case "torch-timeline":
		return Source{Name: pyTorch, Why: "the recording is a memory timeline of PyTorch's profiler"}
	case "nsys":
		return Source{Name: none, Why: "the recording has the driver's allocations, whichever framework made them"}
	case "rmm":
		return Source{Name: rmm, Why: "the recording is a log of RMM"}
	case "pprof":
		return Source{Name: jax, Why: "the recording is a memory profile of JAX"}
	}
	of := func(name, why, pool string) Source { return Source{Name: name, Why: fmt.Sprintf(why, pool)} }
	device := ""
	for _, p := range t.Pools {
		switch {
		case strings.HasPrefix(p.Name, "xla_") || strings.HasPrefix(p.Name, "XLA_") || strings.HasPrefix(p.Name, "GPU_collectivememory_"):
			return of(jax, "the pool %s is XLA's", p.Name)
		case slices.Contains([]string{"gpu_host_bfc", "cuda_host_bfc", "bfc_cpu_allocator_for_gpu"}, p.Name):
			return of(tensorFlow, "the pool %s is TensorFlow's", p.Name)
		case gpuPool.MatchString(p.Name) && strings.HasSuffix(p.Name, "_bfc"):
			device = p.Name
		}
	}
	for i := range t.Sites() {
		if op := t.Site(i); tensorFlowOp.MatchString(op) {
			return of(tensorFlow, "the operation %s is TensorFlow's", op)
		}
	}
	switch {
	case device != "":
		s := of(jax, "the pool %s is named so by JAX and by TensorFlow", device)
		s.Other = tensorFlow
		return s
	case gpuPool.MatchString(t.Pools[0].Name) && strings.HasPrefix(t.Pools[0].Name, "cuda:"): // read from what --save wrote
		if slices.ContainsFunc(t.Pools, func(p *trace.Pool) bool { return p.Name == codePool }) {
			return of(jax, "the pool %s is of a memory profile of JAX", codePool)
		}
		s := of(pyTorch, "the pool %s is named so in snapshots of PyTorch and in memory profiles of JAX", t.Pools[0].Name)
		s.Other = jax
		return s
	case t.Format == "xplane":
		return Source{Name: jax, Other: tensorFlow, Why: "profiles of this form are JAX's and TensorFlow's"}
	}
	return Source{Name: none, Why: "the recording does not say which framework was used"}
}

// tensorFlowOp matches names that TensorFlow gives to operations. JAX's begin with jit.
var tensorFlowOp = regexp.MustCompile(`^(__inference_|_Mkl|ConstantFolding/|gradient_tape/|StatefulPartitionedCall|PartitionedCall)|/gradient_tape/`)

// gpuPool matches the names of pools of one GPU, with its number: those of JAX, XLA and
// TensorFlow, of PyTorch and memory profiles, of the pool library.
var gpuPool = regexp.MustCompile(`^(?:(?:GPU|XLA_backend|GPU_collectivememory|gpu_async|vmm)_(\d+)(?:_bfc)?|(?:cuda|gpu|rocm):(\d+))$`)

// hostPool matches the names of pools in the host's memory.
var hostPool = regexp.MustCompile(`(?i)(^|_)host(_|$)|^cpu(:\d+)?( of process \d+)?$|bfc_cpu_|^mklcpu$|pinned`)

// libraryPool matches the pools of a Go program (gpumem.WithRecord), whose GPU is 0 unless
// the name says another.
var libraryPool = regexp.MustCompile(` on device (\d+)$`)

// numberPool matches the pools of devices whose allocator has no name.
var numberPool = regexp.MustCompile(`^\d+$`)

// codePool is the pool of compiled programs in memory profiles of JAX.
const codePool = "executable"

// LeftOut is a pool that is not in the answer.
type LeftOut struct {
	Pool string `json:"pool"`
	Code bool   `json:"code"` // compiled code, which lies on the GPU outside its pools; otherwise the host's memory
	Peak uint64 `json:"peak_live_bytes"`
}

// gpu is a GPU of the recording.
type gpu struct {
	name  string   // of its largest pool, which is replayed
	pools []string // all
	peak  uint64   // live bytes at the peak of the largest
	// beside is what the other pools hold at their peaks, in whole pages. It counts as
	// memory outside of the largest.
	beside uint64
	// processes is the most that had it at once; 1 if the recording is of one.
	processes int
}

// processes returns the most processes that a pool has at once.
func processes(p *trace.Pool) (most int) {
	now := 0
	for _, a := range tape.Acts(p) {
		switch a.What {
		case tape.Begins:
			now++
		case tape.Ends:
			now--
		}
		most = max(most, now)
	}
	return max(most, 1)
}

// mostBeside bounds what a damaged recording can have beside a pool: more than any card has.
const mostBeside = 1 << 60

// ErrNoGPU is the error of a recording that has only pools of the host.
var ErrNoGPU = errors.New("the recording has no memory of a GPU")

// split finds the GPUs of a recording, and the pools that are of no GPU. A pool that is
// named by the caller is a GPU, whatever it is.
func split(t *trace.Trace, pool string) (list []gpu, left []LeftOut, err error) {
	pools, err := t.Choose(pool)
	if err != nil {
		return nil, nil, err
	}
	at := map[string]int{} // in list, by the GPU's number, or the pool's name where that is not known
	for _, p := range pools {
		key := p.Name
		switch m := gpuPool.FindStringSubmatch(p.Name); {
		case pool != "":
		case p.Name == codePool:
			left = append(left, LeftOut{p.Name, true, p.PeakLive})
			continue
		case hostPool.MatchString(p.Name):
			left = append(left, LeftOut{p.Name, false, p.PeakLive})
			continue
		case m != nil:
			key = m[1] + m[2]
		case t.Format == "gpumem" && !numberPool.MatchString(p.Name):
			key = "0"
			if m := libraryPool.FindStringSubmatch(p.Name); m != nil {
				key = m[1]
			}
		}
		i, more := at[key]
		if !more {
			at[key] = len(list)
			list = append(list, gpu{name: p.Name, pools: []string{p.Name}, peak: p.PeakLive, processes: processes(p)})
			continue
		}
		g := &list[i]
		g.pools = append(g.pools, p.Name)
		other := p.PeakLive256
		if p.PeakLive > g.peak {
			other = t.Pools[slices.IndexFunc(t.Pools, func(x *trace.Pool) bool { return x.Name == g.name })].PeakLive256
			g.name, g.peak = p.Name, p.PeakLive
		}
		g.beside = min(g.beside+(min(other, mostBeside)+page-1)/page*page, mostBeside)
	}
	if len(list) == 0 {
		var names []string
		for _, l := range left {
			what := "host memory"
			if l.Code {
				what = "compiled code"
			}
			names = append(names, l.Pool+" is "+what)
		}
		return nil, nil, &trace.Error{File: t.Source, Err: ErrNoGPU, Msg: fmt.Sprintf("%v: %s; --pool NAME answers as if a GPU had a pool's memory", ErrNoGPU, strings.Join(names, ", "))}
	}
	return list, left, nil
}

// NotOnGPU returns the pools of a recording that are of no GPU. A pool that is named is one,
// whatever it is. The error is that of a recording without a GPU's memory ([ErrNoGPU]), or
// without that pool.
func NotOnGPU(t *trace.Trace, pool string) ([]LeftOut, error) {
	_, left, err := split(t, pool)
	return left, err
}

// elsewhere says that what is replayed was not a GPU's memory; "" if it was, or may have been.
func elsewhere(t *trace.Trace, gpus []gpu) string {
	name := gpus[0].name
	switch {
	case name == codePool:
		return name + " is compiled code, which lies outside the pools; the answer is as if a pool had it."
	case hostPool.MatchString(name):
		return name + " is host memory; the answer is as if a GPU had it."
	case numberPool.MatchString(name) && t.Format == "xplane":
		return "The devices are numbered, without an allocator's name, as TPUs are; the answer is for GPUs that serve the same requests."
	}
	return ""
}
