package account

import (
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"gpumem/policy/frameworks"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The program that failed: its frameworks, their releases, and its settings by the names that
// its release reads. JAX's fraction has two names, and both at once is an error; so one of them
// is named: the one that the program uses already; else the newer where the log shows a release
// that reads it (jaxlib 0.4.32 on); else the older, which all releases read. JAX never gets
// TF_GPU_ALLOCATOR, which it does not read, although XLA's own message recommends it.

// Uses reports whether the failing program uses one of these: jax, tensorflow, torch, ...
func (e *Case) Uses(names ...string) bool {
	for _, name := range names {
		if e.FrameworksTold() {
			for _, f := range e.state.Process.Frameworks {
				if f = strings.ToLower(f); f == name || f == "pytorch" && name == "torch" || f == "jaxlib" && name == "jax" {
					return true
				}
			}
			if name == "jax" || name == "tensorflow" || name == "torch" {
				continue // it is not among them
			}
		}
		if _, ok := e.Marks[name]; ok {
			return true
		}
		if e.pick("version", func(f *statement.Fact) bool { return f.Name == name || f.Name == name+"lib" }) != nil {
			return true
		}
	}
	return false
}

// FrameworksTold reports whether the state lists the program's frameworks.
func (e *Case) FrameworksTold() bool {
	return e.state != nil && e.state.Process != nil && len(e.state.Process.Frameworks) > 0
}

// OnTensorFlow reports whether the program is TensorFlow and not JAX.
func (e *Case) OnTensorFlow() bool { return e.Uses("tensorflow") && !e.Uses("jax") }

// OnTorch reports whether the program is PyTorch and not JAX.
func (e *Case) OnTorch() bool {
	return e.Uses("torch", "vllm", "sglang", "tgi", "deepspeed", "fsdp", "lightning", "transformers", "diffusers",
		"a1111") && !e.Uses("jax")
}

// JAXAndTF gives the readings that show both in one process, or nil.
func (e *Case) JAXAndTF() []statement.Evidence {
	if e.FrameworksTold() {
		if e.Uses("jax") && e.Uses("tensorflow") {
			return []statement.Evidence{{Text: "process.frameworks: " + strings.Join(e.state.Process.Frameworks, ", "),
				Reading: "both are loaded in the process"}}
		}
		return nil
	}
	jax, ok := e.Marks["jax"]
	tf := e.facts("tf device")
	if !ok || len(tf) == 0 {
		return nil
	}
	reading := "TensorFlow made its own device in the program that fails in JAX"
	if tf[0].Limit > 0 {
		reading = "TensorFlow takes up to " + Human(tf[0].Limit) + " for itself, in the program that fails in JAX"
	}
	jax.Reading = "a line of JAX"
	return []statement.Evidence{tf[0].Quoted(reading), jax}
}

// Version is what is known of the release of a framework; empty if nothing is.
func (e *Case) Version(name string) string {
	if e.state != nil && e.state.Process != nil {
		for _, n := range []string{name, name + "lib"} {
			if v := e.state.Process.Versions[n]; v != "" {
				return v
			}
		}
	}
	for _, n := range []string{name + "lib", name} {
		for _, f := range e.facts("version") {
			if f.Name == n {
				return f.Version
			}
		}
	}
	return ""
}

const (
	newFraction = "XLA_CLIENT_MEM_FRACTION"
	oldFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"
	Prealloc    = "XLA_PYTHON_CLIENT_PREALLOCATE"
	Allocator   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	TorchConf   = "PYTORCH_CUDA_ALLOC_CONF"
	TfGrowth    = "TF_FORCE_GPU_ALLOW_GROWTH"
)

// FractionName is the variable for JAX's fraction, and why that one.
func (e *Case) FractionName() (name, why string) {
	if e.Uses("exla") {
		return "memory_fraction",
			"an option of EXLA's client: config :exla, :clients, cuda: [platform: :cuda, memory_fraction: ...]; " +
				"EXLA does not read XLA_PYTHON_CLIENT_*"
	}
	if _, ok := e.Env[newFraction]; ok {
		return newFraction, "the name that the program uses"
	}
	if _, ok := e.Env[oldFraction]; ok {
		return oldFraction, "the name that the program uses"
	}
	if v := e.Version("jax"); v != "" {
		if ours, err := frameworks.ParseRelease("jax@" + v); err == nil && !Older(ours.Version, 0, 4, 32) {
			return newFraction, "its name since jaxlib 0.4.32"
		}
		return oldFraction, "its name in jaxlib " + v
	}
	for _, st := range e.Statements() {
		if strings.Contains(st.Text, "jaxlib._jax.") || strings.Contains(st.Text, "jax.errors.JaxRuntimeError") {
			return newFraction, "its name since jaxlib 0.4.32"
		}
	}
	return oldFraction, "every release reads this name"
}

// Older reports whether a version is below major.minor.patch.
func Older(version string, parts ...int) bool {
	words := strings.SplitN(version, ".", 4)
	for i, p := range parts {
		n := 0
		if i < len(words) {
			n, _ = strconv.Atoi(words[i]) // what is no number counts as 0
		}
		if n != p {
			return n < p
		}
	}
	return false
}

// maxFraction is above any that is meant: above 1 XLA takes unified memory, and
// 4 has been seen (AlphaFold's documentation).
const maxFraction = 64

// Fraction is the part of the GPU that JAX's pool may take: what is set, or the
// default of the release.
func (e *Case) Fraction() (fraction float64, set bool) {
	for _, name := range []string{newFraction, oldFraction} {
		if f, err := strconv.ParseFloat(e.Env[name], 64); err == nil && f > 0 && f <= maxFraction {
			return f, true
		}
	}
	if p, err := frameworks.JAX(e.Version("jax")); err == nil && p.Fraction > 0 && p.Fraction <= 1 {
		return p.Fraction, false
	}
	return 1 - defaultLeft, false
}

// engineShares are what engines call their share of the GPU.
var engineShares = []struct{ engine, name string }{
	{"sglang", "--mem-fraction-static"}, {"vllm", "gpu_memory_utilization"}, {"tgi", "--cuda-memory-fraction"},
	{"trtllm", "free_gpu_memory_fraction"},
}

// EngineShare is what an engine calls its share of the GPU.
func (e *Case) EngineShare() string {
	for _, s := range engineShares {
		if e.Uses(s.engine) {
			return s.name
		}
	}
	return "share of the GPU"
}

// Vendor is who made the GPU, as far as the log shows: nvidia, hip for AMD with ROCm and amd without, xpu for Intel, apple, npu for
// Ascend, tt for Tenstorrent, or tpu; empty if nothing shows it.
func (e *Case) Vendor() string {
	marks := []string{"hip", "xpu", "npu", "tt", "mps", "metal"}
	for _, m := range marks { // PyTorch names the kind of GPU where it refuses
		if e.StatementWith(m, "out", "memory") != nil {
			return maker(m)
		}
	}
	if e.Place.TPU {
		return "tpu"
	}
	for _, m := range marks {
		if e.Uses(m) && !e.nvidiaCard() {
			return maker(m)
		}
	}
	if e.Place.NVIDIA || e.nvidiaCard() {
		return "nvidia"
	}
	if e.Uses("amd") {
		return "amd"
	}
	return ""
}

// maker is the vendor that a mark shows.
func maker(mark string) string {
	if mark == "mps" || mark == "metal" {
		return "apple"
	}
	return mark
}

// nvidiaCard reports whether a table of nvidia-smi, or a card's name, is in the log.
func (e *Case) nvidiaCard() bool {
	return len(e.facts("smi gpu")) > 0 || slices.ContainsFunc(e.facts("device"),
		func(f statement.Fact) bool { return nvidiaName.MatchString(f.Name) })
}

var nvidiaName = regexp.MustCompile(`NVIDIA|Tesla|GeForce|Quadro|RTX|GRID`)

// ConfName is the variable of PyTorch's allocator, as the release and the GPU have it.
func (e *Case) ConfName() string {
	switch {
	case e.Uses("hip") && !e.Uses("xpu"):
		return "PYTORCH_HIP_ALLOC_CONF"
	case e.Version("torch") != "" && Older(e.Version("torch"), 2, 10):
		return TorchConf // up to 2.9 the newer name is not read, although 2.9 recommends it
	case e.Env["PYTORCH_ALLOC_CONF"] != "", e.StatementWith("pytorch", "alloc", "conf") != nil &&
		e.StatementWith("pytorch", "cuda", "conf") == nil:
		return "PYTORCH_ALLOC_CONF"
	}
	return TorchConf
}

// OldTorch reports whether the message is of a release before 2.1, which does not know
// expandable segments.
func (e *Case) OldTorch() bool {
	if v := e.Version("torch"); v != "" {
		return Older(v, 2, 1)
	}
	r := e.subject()
	return r != nil && r.kept > 0 && !r.hasIdle && (r.St.Words["torch"] || r.St.Words["pytorch"])
}

// EnvLines are the variables as NAME=VALUE, in any order.
func EnvLines(env map[string]string) []string {
	var lines []string
	for k, v := range env {
		lines = append(lines, k+"="+v)
	}
	return lines
}

// Number is a setting of the program that failed; 0 if it is unknown.
func (e *Case) Number(name string) float64 {
	f, _ := strconv.ParseFloat(e.Env[name], 64)
	return f
}

// xlaWords are what XLA prints, in JAX and in TensorFlow.
var xlaWords = needle.MustCompile(`\bRESOURCE_EXHAUSTED\b|Resource exhausted:|cuda_(?:dnn|blas|driver)\.cc|stream_executor|bfc_allocator|\bXLA\b|\bpjrt\b|\bxla/|StreamExecutor|in-memory CUBIN|\bGPU_\d+_bfc\b` +
	`|%[\w.-]+ = .*custom-call\(|best cudnn convolution algorithm|[Ff]ailed to create cublas handle|[Cc]ould not create cudnn handle|launch cuBLAS gemm|without BLAS support|cusolverDnCreate\(&handle\)`)

// XLAWords reports whether the log has words that XLA alone prints.
func (e *Case) XLAWords() bool {
	return slices.ContainsFunc(e.Statements(),
		func(st *statement.Statement) bool { return xlaWords.MatchString(st.Head() + st.Text) })
}

// xlaAlone are what XLA prints, and TensorFlow's own code does not.
var xlaAlone = needle.MustCompile(`Resource exhausted:|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate request)|\bXLA\b|\bpjrt\b|\bxla/|in-memory CUBIN|custom-call\(|cusolverDnCreate\(&handle\)|xla_`)

// XLAAlone reports whether the log has words of XLA's that TensorFlow's own code has not.
func (e *Case) XLAAlone() bool {
	return slices.ContainsFunc(e.Statements(),
		func(st *statement.Statement) bool { return xlaAlone.MatchString(st.Head() + st.Text) })
}
