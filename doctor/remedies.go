package doctor

// What to do about a cause: the settings, with numbers computed for this GPU and names
// for this release; the steps; and the command that shows whether it took effect.
//
// JAX's fraction has two names, and both at once is an error. So one of them is
// named: the one that the program uses already; else the newer where the log
// shows a release that reads it (jaxlib 0.4.32 on); else the older, which all
// releases read. JAX never gets TF_GPU_ALLOCATOR, which it does not read,
// although XLA's own message recommends it.

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/policy/torchconf"
)

// A cure is what a finding advises.
type cure struct {
	settings []Advice
	steps    []string
	check    string
}

const (
	newFraction = "XLA_CLIENT_MEM_FRACTION"
	oldFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"
	prealloc    = "XLA_PYTHON_CLIENT_PREALLOCATE"
	allocator   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	torchConf   = "PYTORCH_CUDA_ALLOC_CONF"
	tfGrowth    = "TF_FORCE_GPU_ALLOW_GROWTH"
)

// fractionName is the variable for JAX's fraction, and why that one.
func (e *evidence) fractionName() (name, why string) {
	if e.uses("exla") {
		return "memory_fraction", "an option of EXLA's client: config :exla, :clients, cuda: [platform: :cuda, memory_fraction: ...]; EXLA does not read XLA_PYTHON_CLIENT_*"
	}
	if _, ok := e.env[newFraction]; ok {
		return newFraction, "the name that the program uses"
	}
	if _, ok := e.env[oldFraction]; ok {
		return oldFraction, "the name that the program uses"
	}
	if v := e.version("jax"); v != "" {
		if ours, err := frameworks.ParseRelease("jax@" + v); err == nil && !older(ours.Version, 0, 4, 32) {
			return newFraction, "its name since jaxlib 0.4.32"
		}
		return oldFraction, "its name in jaxlib " + v
	}
	for _, st := range e.statements.all() {
		if strings.Contains(st.text, "jaxlib._jax.") || strings.Contains(st.text, "jax.errors.JaxRuntimeError") {
			return newFraction, "its name since jaxlib 0.4.32"
		}
	}
	return oldFraction, "every release reads this name"
}

// older says whether a version is below major.minor.patch.
func older(version string, parts ...int) bool {
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

// fraction is the part of the GPU that JAX's pool may take: what is set, or the
// default of the release.
func (e *evidence) fraction() (fraction float64, set bool) {
	for _, name := range []string{newFraction, oldFraction} {
		if f, err := strconv.ParseFloat(e.env[name], 64); err == nil && f > 0 && f <= maxFraction {
			return f, true
		}
	}
	if p, err := frameworks.JAX(e.version("jax")); err == nil && p.Fraction > 0 && p.Fraction <= 1 {
		return p.Fraction, false
	}
	return 1 - defaultLeft, false
}

// down and up are fractions as people write them, two digits.
func down(f float64) string { return strconv.FormatFloat(math.Floor(f*100)/100, 'f', 2, 64) }
func up(f float64) string   { return strconv.FormatFloat(math.Ceil(f*100)/100, 'f', 2, 64) }

// jaxCheck is how to see that a fraction took effect.
func (e *evidence) jaxCheck(set string) string {
	if e.uses("exla") {
		return ""
	}
	as := ""
	if v := e.version("jax"); v != "" {
		as = " --as jax@" + v
	}
	device := ""
	if t := e.total(); t.bytes > 0 {
		device = fmt.Sprintf(" --device sim:%dMiB", t.bytes/mib)
	}
	return strings.TrimSpace(set + " gpumem explain" + as + device)
}

// Cures of single causes.

var cureTried = cure{steps: []string{"see that what was tried reached the program: gpumem explain --pid PID, while it runs"}}

var cureWarning = cure{steps: []string{"nothing has to be done; if the program did fail, its failure is another line: give the doctor the whole log"}}

var cureOther = cure{steps: []string{"look for the failure that this line names; memory settings do not change it"}}

var cureNotMemory = cure{steps: []string{
	"leave the memory settings as they are",
	"compare the library's version with the one that the framework was built for: pip list | grep -i -E 'jax|cudnn|nvidia'",
	"look for a second copy of the library: ldconfig -p | grep -i cudnn; echo $LD_LIBRARY_PATH",
}}

func cureLibrary(e *evidence) cure {
	pair := `pip install -U "jax[cuda12]"`
	switch {
	case e.onTensorFlow():
		pair = `pip install "tensorflow[and-cuda]"`
	case e.uses("torch"):
		pair = "PyTorch's own wheel"
	}
	return cure{steps: []string{
		"see which version the framework wants and which is there: pip list | grep -i -E 'jax|tensorflow|torch|cudnn|nvidia'",
		"see which copy is loaded: LD_DEBUG=libs python PROGRAM 2>&1 | grep -i -E 'cudnn|cublas|cusolver' | grep init",
		"install the pair that belongs together, such as " + pair + ", in a fresh environment without LD_LIBRARY_PATH",
	}}
}

var cureBusy = cure{steps: []string{
	"see who has it: nvidia-smi; gpumem ps",
	"see whether it is in exclusive mode: nvidia-smi --query-gpu=compute_mode --format=csv; under a scheduler ask it for a GPU and use the one in its CUDA_VISIBLE_DEVICES",
}}

var cureVMM = cure{steps: []string{
	"use a GPU, or a profile of it, that has virtual memory management; time-sliced and fractional vGPU profiles often do not",
	"or stay with a jaxlib before this became a requirement (openxla/xla#42028, 2026)",
}}

func cureSetting(e *evidence, st *statement) cure {
	c := cure{check: e.jaxCheck("")}
	t := st.topic("setting", "unread")
	name, value := t.name, t.value
	switch {
	case strings.HasSuffix(name, "MEM_FRACTION"):
		c.settings = []Advice{{oldFraction, "", "both names are set, and the newer one is meant to stay"}}
		c.steps = []string{"look in shell profiles, job scripts and container images for the old name"}
	case name == allocator:
		right := "cuda_async"
		if !strings.Contains(value, "async") {
			right = "bfc"
		}
		c.settings = []Advice{{allocator, right, fmt.Sprintf("%q is none of the names that this release knows: see its own list in line %d", value, st.line)}}
	case name == torchConf:
		c.check = "gpumem explain --as pytorch"
		c.steps = []string{fmt.Sprintf("correct the setting that line %d names; gpumem explain --as pytorch says which keys there are in your release", st.line)}
		if strings.Contains(value+st.text, "expandable_segments") {
			c.steps = []string{"take expandable_segments out of " + torchConf + ": releases before 2.1 do not know it; max_split_size_mb:128 is what they have"}
		}
	case name == "tensorflow":
		c.check = "gpumem explain --as tensorflow"
		c.steps = []string{"make this call before TensorFlow uses the GPU for the first time: right after the import"}
	case name == tfGrowth:
		c.check = "gpumem explain --as tensorflow"
		c.settings = []Advice{{tfGrowth, "true", "only true and false are read, in exactly this spelling"}}
	case name == "XLA_FLAGS":
		c.steps = []string{"remove the flag that this release does not know: " + value}
	default:
		c.steps = []string{fmt.Sprintf("correct the setting that line %d names; gpumem explain reads the environment as the framework does", st.line)}
	}
	return c
}

// cureHost is for the host's memory.
func cureHost(e *evidence, r *refusal) cure {
	switch {
	case r.st.topic("shm") != nil:
		return cureShared
	case r.st.hasAny("heap"):
		return cureHeap
	case r.st.hasAny("pinned", "pin", "bfc", "alloc", "register") && r.st.hasAny("pinned", "bfc", "host", "register") || r.pinning:
	default:
		return cureHostKilled
	}
	c := cure{steps: []string{"look at the host's memory, not at the GPU's: free -h; ulimit -l; in WSL also .wslconfig"}}
	switch {
	case e.uses("tensorflow") && r.st.words["bfc"]:
		c.settings = []Advice{{"TF_GPU_HOST_MEM_LIMIT_IN_MB", "131072", "TensorFlow's limit on pinned host memory; up to TensorFlow 1.13 its name is TF_CUDA_HOST_MEM_LIMIT_IN_MB"}}
	case r.st.words["out"] && r.st.words["host"] && e.uses("jax"):
		c.settings = []Advice{{"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "128", "XLA's limit on pinned host memory for each GPU; the default is 64"}}
	}
	c.steps = append(c.steps, "keep less on the host: smaller prefetch buffers, fewer loader workers, no pinned copies of whole datasets")
	return c
}

// cureHeap is for a run time that has a limit of its own.
var cureHeap = cure{steps: []string{
	"raise the limit of the heap: -Xmx for Java, NODE_OPTIONS=--max-old-space-size=MIB for JavaScript",
	"keep that below the memory of the machine, and of its container if it has a limit",
}}

var cureHostKilled = cure{steps: []string{
	"raise the limit of host memory: docker run --memory, resources.limits.memory of the pod, --mem of slurm; or use a machine with more",
	"see what took it: dmesg | grep -i -A20 oom; the number of loader workers, and whole datasets in memory, are the usual ones",
}}

var cureShared = cure{steps: []string{
	"make it larger: docker run --shm-size 8g (or --ipc host); in Kubernetes an emptyDir with medium: Memory at /dev/shm",
	"or use fewer workers: DataLoader(num_workers=0) shows whether that is it",
}}

var cureAbsurd = cure{steps: []string{
	"see which line asks for it, and print the shapes before it: an index or a size there is wrong, or passed 2^31",
	"no setting of memory, and no larger GPU, helps",
}}

// cureAsyncKeeps is about PyTorch's backend cudaMallocAsync.
var cureAsyncKeeps = cure{steps: []string{
	"torch.cuda.empty_cache() gives back what the driver's pool keeps",
	"or use PyTorch's own allocator, which tells more: leave backend:cudaMallocAsync out of " + torchConf,
}}

var cureLimiterBug = cure{steps: []string{
	"upgrade the limiter: the count went below zero, which newer HAMi-core repairs (Project-HAMi/HAMi#1181)",
	"until then remove its state and start again, or run without it (CUDA_DISABLE_CONTROL=true) to see that it is the limiter",
}}

func cureQuota(e *evidence, quota uint64) cure {
	c := cure{steps: []string{"raise the quota (nvidia.com/gpumem of the pod), or let the program take less: the wall is the limiter's and not the GPU's"}}
	if e.about("nvshare") != nil {
		c.steps = []string{"nvshare refuses one process more than the GPU has: set NVSHARE_ENABLE_SINGLE_OVERSUB=1, or let the program take less"}
		return c
	}
	if t := e.total(); e.uses("jax") && quota > 2*contextMost && t.bytes > quota {
		name, why := e.fractionName()
		value := down(float64(quota-contextMost) / float64(t.bytes))
		c.settings = []Advice{{name, value, "a pool within the quota of " + human(quota) + ", a context left; " + why}}
		c.check = e.jaxCheck(name + "=" + value)
	}
	return c
}

// Sharing.

func cureMulti(e *evidence) cure {
	c := cure{steps: []string{
		"let each have its share without guessing: gpumem run --share 0.5 -- python PROGRAM, for each of them (docs/sharing.md)",
		"or give each a GPU of its own: CUDA_VISIBLE_DEVICES=0 for one, 1 for the other. JAX takes memory on every GPU that it sees",
	}}
	name, why := e.fractionName()
	value, arithmetic := "0.40", "half of the GPU less what a context and libraries take"
	if t := e.total(); t.bytes > 4*contextMost {
		each := (t.bytes - 2*contextMost) / 2
		value = down(float64(each) / float64(t.bytes))
		arithmetic = fmt.Sprintf("two times (%s and %s for its context and libraries) fit into %s", human(uint64(mustFloat(value)*float64(t.bytes))), human(contextMost), human(t.bytes))
	}
	c.settings = []Advice{{name, value, "in both programs: " + arithmetic + "; " + why}}
	c.check = e.jaxCheck(name + "=" + value)
	return c
}

func mustFloat(s string) float64 { f, _ := strconv.ParseFloat(s, 64); return f } // s is what down wrote

func cureJAXAndTF(e *evidence) cure {
	name, why := e.fractionName()
	return cure{
		settings: []Advice{{tfGrowth, "true", "TensorFlow then takes what it needs and not all that is free"}, {name, "0.70", "if TensorFlow must have the GPU too, JAX leaves it room; " + why}},
		steps: []string{
			"if TensorFlow only reads data, take the GPU from it, right after the import: tf.config.set_visible_devices([], \"GPU\"); or unchanged: gpumem run --cpu-tensorflow -- python PROGRAM",
		},
		check: "gpumem explain --pid PID    # while it runs; gpumem ps shows who holds what",
	}
}

func cureOccupied(e *evidence) cure {
	c := cure{steps: []string{
		"see who it is: gpumem ps (or nvidia-smi): whose, how old, and whether the one that started it is gone",
		"end what is left over, wait for it, or use another GPU: CUDA_VISIBLE_DEVICES",
		"to live side by side give each its share: gpumem run --mem SIZE -- python PROGRAM (docs/sharing.md)",
	}}
	if v := e.otherVendor(); v != nil {
		c.steps = []string{
			"see who it is: " + v.processes,
			"end what is left over, wait for it, or use another GPU: " + v.visible,
		}
	}
	others, _ := e.others()
	var gone []string
	for _, h := range others {
		if h.ParentGone {
			gone = append(gone, strconv.Itoa(h.PID))
		}
	}
	if len(gone) > 0 {
		c.steps = append([]string{"process " + strings.Join(gone, ", ") + " has lost the one that started it: a left-over, most likely"}, c.steps...)
	}
	return c
}

var cureRace = cure{steps: []string{
	"start one after the other, and the next only when the first is ready: gpumem run --wait -- COMMAND measures what is free under a lock, and waits until it stands still",
	"after an engine was ended, wait until nvidia-smi shows its memory free",
}}

var cureSecondPool = cure{steps: []string{
	"do not make the backend again (clear_backends, or a new client) in the same process: the first pool is not given back",
	"where the memory must come back, do the work in a process of its own, and let it end",
}}

func cureOtherAllocator(e *evidence) cure {
	name, why := e.fractionName()
	if !e.uses("jax", "tensorflow") {
		return cure{
			steps: []string{
				"see what else in the process takes memory of the GPU: gpumem explain --pid PID shows which frameworks it has loaded, and what each takes",
				"if it is JAX or PyTorch/XLA: " + prealloc + "=false, or " + name + "=0.40; if it is TensorFlow: " + tfGrowth + "=true; if it is CuPy or RMM: give both one pool (rmm.allocators.torch)",
			},
			check: "gpumem explain --pid PID",
		}
	}
	return cure{
		settings: []Advice{{prealloc, "false", "if the other one is JAX or PyTorch/XLA: it then takes what it needs"}, {name, "0.40", "and no more than this; " + why}},
		steps:    []string{"if it is TensorFlow: " + tfGrowth + "=true; if it only reads data: tf.config.set_visible_devices([], \"GPU\")", "gpumem explain --pid PID shows which frameworks the process has loaded, and what each takes"},
		check:    "gpumem explain --pid PID",
	}
}

// The pool.

// cureStarved makes the pool smaller: h is the library's failure, nil without
// one; display is what the desktop holds, in bytes.
func cureStarved(e *evidence, h *handle, display uint64) cure {
	if e.onTensorFlow() {
		return cure{
			settings: []Advice{{tfGrowth, "true", "TensorFlow takes nearly all that is free; growing as needed leaves libraries their room"}},
			steps:    []string{"in code instead, before the GPU is used: tf.config.experimental.set_memory_growth(gpu, True), or a limit by tf.config.set_logical_device_configuration"},
			check:    tfGrowth + "=true gpumem explain --as tensorflow",
		}
	}
	name, why := e.fractionName()
	fraction, _ := e.fraction()
	total := e.total().bytes
	if h != nil && h.total > 0 {
		total = h.total
	}
	var c cure
	switch {
	case total > 0:
		// What cuDNN's first convolution takes, and half of that for the handles of
		// other libraries, less what was free already.
		lacking := uint64(firstLibrary + firstLibrary/2)
		if h != nil && h.from != nil {
			lacking -= min(lacking, h.left)
		}
		pool := uint64(fraction * float64(total))
		if h != nil && h.from != nil {
			// Whatever the setting was, no more was in use than this.
			pool = min(pool, total-min(total, h.left))
		}
		value := down(float64(pool-min(pool, lacking)) / float64(total))
		arithmetic := fmt.Sprintf("%s of %s, %s less than before, leave libraries %s", human(uint64(mustFloat(value)*float64(total))), human(total), human(pool-min(pool, uint64(mustFloat(value)*float64(total)))), human(firstLibrary+firstLibrary/2))
		if display > 0 {
			arithmetic += ", beside the desktop's " + human(display)
		}
		c.settings = []Advice{{name, value, arithmetic + "; " + why}}
		c.check = e.jaxCheck(name + "=" + value)
	default:
		value := down(fraction - .1)
		c.settings = []Advice{{name, value, "a tenth of the GPU less than now; with the GPU's size (--state) the number can be computed; " + why}}
		c.check = e.jaxCheck(name + "=" + value)
	}
	c.steps = []string{"let the pool grow as needed instead: " + prealloc + "=false"}
	if e.display() != nil || display > 0 {
		c.steps = append(c.steps, "a display is on this GPU: gpumem run leaves it room by itself")
	}
	return c
}

var cureTorchHandle = cure{steps: []string{
	"PyTorch preallocates nothing: the GPU is full, by this program or by others (nvidia-smi). Use a smaller batch or model, or end the others",
	"make the handle while there is room: run a small matrix product before the large allocations",
}}

// cureLimit raises the pool's limit to what is needed, in bytes, where the GPU has it.
func cureLimit(e *evidence, needed uint64) cure {
	total := e.total().bytes
	if e.onTensorFlow() {
		return cure{steps: []string{
			"raise the limit in code: per_process_gpu_memory_fraction (TensorFlow 1), tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=MB)])",
			"without such a limit TensorFlow takes what is free when it starts: see who else is on the GPU",
		}, check: "gpumem explain --as tensorflow"}
	}
	name, why := e.fractionName()
	if total == 0 {
		return cure{settings: []Advice{{name, "0.95", "if the GPU has more than the pool's limit; " + why}}, steps: []string{"raise the limit where the GPU has more than that; where it has not, make the program smaller: batch, sequence, sharding, jax.checkpoint"}, check: e.jaxCheck(name + "=0.95")}
	}
	if e.unified() {
		value := up(1.05 * float64(needed) / float64(total))
		return cure{
			settings: []Advice{{name, value, fmt.Sprintf("a pool of %s in unified memory, of which the GPU holds %s at a time: slow, but it runs; %s", human(uint64(mustFloat(value)*float64(total))), human(total), why)}, {"TF_FORCE_UNIFIED_MEMORY", "1", "XLA reads it too: a pool above the GPU's memory needs it"}},
			check:    e.jaxCheck(name + "=" + value + " TF_FORCE_UNIFIED_MEMORY=1"),
		}
	}
	most := float64(total-min(total, firstLibrary+contextMost/4)) / float64(total)
	value := up(math.Min(1.05*float64(needed)/float64(total), 1))
	if mustFloat(value) > most || mustFloat(value) > .95 {
		value = down(math.Min(most, .95))
	}
	c := cure{
		settings: []Advice{{name, value, fmt.Sprintf("a pool of %s: %s are needed, and %s of the GPU's %s are left to libraries; %s", human(uint64(mustFloat(value)*float64(total))), human(needed), human(total-uint64(mustFloat(value)*float64(total))), human(total), why)}},
		check:    e.jaxCheck(name + "=" + value),
	}
	if needed > uint64(mustFloat(value)*float64(total)) {
		c.steps = []string{"this is close to the whole GPU: a smaller batch or jax.checkpoint is the safer way"}
	}
	if v := e.env[prealloc]; v != "" && e.grows() {
		c.steps = append(c.steps, prealloc+"="+v+" does not raise the limit: a growing pool has the same one")
	}
	return c
}

func cureFragmented(e *evidence) cure {
	if e.onTensorFlow() || e.about("collection") != nil {
		return cure{
			settings: []Advice{{"TF_GPU_ALLOCATOR", "cuda_malloc_async", "TensorFlow reads it (since 2.5): the driver's pool maps scattered pages to one address range; it cured knaw-huc/loghi#55"}},
			steps:    []string{"a smaller batch helps as well: the pool works near its limit"},
			check:    "TF_GPU_ALLOCATOR=cuda_malloc_async gpumem explain --as tensorflow",
		}
	}
	c := cure{
		steps: []string{
			"allocate the large arrays first, and donate what is replaced (donate_argnums)",
			"see which pool would have served it before you change one: gpumem doctor --save-trace FILE LOG; gpumem replay FILE --policy bfc --policy async --policy elastic. TF_GPU_ALLOCATOR, which XLA's message recommends, is not read by JAX",
		},
	}
	if e.grows() {
		c.settings = []Advice{{prealloc, "true", "one region has fewer gaps than many that were added as needed (jax-ml/jax#788)"}}
		c.check = e.jaxCheck(prealloc + "=true")
	}
	return c
}

func cureTooBig(e *evidence) cure {
	smaller := func(steps ...string) cure { return cure{steps: steps} }
	switch {
	case e.uses("llama.cpp"):
		return cureLlama(false)
	case e.uses("sglang"):
		return smaller("spread the model over GPUs (--tp-size), quantise it, or shorten --context-length", "leave more beside weights and cache: --mem-fraction-static, five hundredths less than now; --chunked-prefill-size 2048")
	case e.uses("vllm"):
		return smaller("spread the model over GPUs (--tensor-parallel-size), quantise it, or shorten --max-model-len", "serve fewer requests at a time: --max-num-seqs; and no graphs: --enforce-eager")
	case e.uses("comfyui"):
		return smaller("start ComfyUI with --lowvram, or --novram; a smaller image or batch; tiled VAE decoding", "a quantised model (fp8, GGUF) takes half or a quarter")
	case e.uses("tensorrt"):
		return smaller("a smaller max_batch_size, max_seq_len or workspace (--memPoolSize=workspace:MiB); the builder goes on without tactics that do not fit")
	case e.uses("onnxruntime"):
		return smaller("a smaller batch; arena_extend_strategy=kSameAsRequested in the CUDA provider's options, so that its pool does not double", "gpu_mem_limit in the same options is a limit on the pool, not a cure")
	case e.uses("xgboost"):
		return smaller("smaller bins (max_bin), QuantileDMatrix in place of DMatrix, or external memory; subsample with sampling_method=gradient_based")
	case e.uses("paddle"):
		return smaller("a smaller batch; FLAGS_allocator_strategy=auto_growth; FLAGS_fraction_of_gpu_memory_to_use is what Paddle takes at once")
	case e.uses("julia"):
		return smaller("free what is not needed: CUDA.unsafe_free!(x), then GC.gc(); CUDA.reclaim()", "a smaller batch; CUDA.pool_status() shows what the pool has")
	case e.uses("cupy"):
		return smaller("free what the pool keeps: cupy.get_default_memory_pool().free_all_blocks(); work in pieces", "cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc) lets arrays spill to the host")
	case e.uses("rmm"):
		return smaller("work in pieces (dask-cudf, spilling: cudf.set_option(\"spill\", True)), or managed memory: rmm.reinitialize(managed_memory=True)")
	case e.uses("numba"):
		return smaller("del arrays that are not needed, numba.cuda.current_context().deallocations.clear(); work in pieces")
	case e.uses("mps"):
		return smaller("a smaller batch, half precision; torch.mps.empty_cache() between steps", "the memory is the Mac's own: end other programs")
	case e.onTorch():
		return smaller(
			"make it smaller: batch, sequence, activation checkpointing (torch.utils.checkpoint), half precision, sharding (FSDP), offloading",
			"see what holds it: torch.cuda.memory._record_memory_history(), then gpumem replay SNAPSHOT says how much any allocator would need")
	case e.onTensorFlow():
		return smaller("make it smaller: batch, tensors, mixed precision; a setting cannot make room that is not there")
	}
	return smaller(
		"make it smaller: batch, precision, or shard it over GPUs (jax.sharding); a setting cannot make room that is not there",
		"keep less for the backward pass: jax.checkpoint around each layer or block")
}

var cureRemat = cure{steps: []string{
	"the pass cannot do it: mark what is to be recomputed by hand (jax.checkpoint), shard, or make the batch smaller",
	"gpumem remat MODULE --limit NN% says what recomputing can save at most",
}}

func cureLeak(e *evidence) cure {
	s := []string{"see what stays alive between steps: lists of losses, caches, closures, logged arrays; turn them into numbers (float(x))"}
	if e.uses("torch") {
		s = append(s, "torch.cuda.memory._record_memory_history() keeps the stacks; .detach() or .item() before something is kept")
	} else {
		s = append(s, "jax.live_arrays() lists what is alive; jax.clear_caches() frees compiled programs and their constants")
	}
	return cure{steps: s}
}

// Room outside of the pool.

func (e *evidence) smaller(by float64, what string) cure {
	if e.onTensorFlow() {
		return cureStarved(e, nil, 0)
	}
	name, why := e.fractionName()
	fraction, _ := e.fraction()
	value := down(fraction - by)
	return cure{settings: []Advice{{name, value, what + "; " + why}}, check: e.jaxCheck(name + "=" + value), steps: []string{"let the pool grow as needed instead: " + prealloc + "=false"}}
}

func cureNCCL(e *evidence) cure {
	if e.uses("torch") && !e.uses("jax") {
		return cure{steps: []string{
			"leave NCCL room: a smaller batch, or a lower gpu_memory_utilization in vLLM",
			"NCCL_BUFFSIZE and fewer channels (NCCL_MAX_NCHANNELS) make its buffers smaller",
		}}
	}
	c := e.smaller(.1, "NCCL takes some hundred MiB to some GiB for each communicator, outside of the pool: .85 in place of .9, and .65 in place of .75, were enough in the cases known")
	c.steps = append(c.steps, "NCCL_DEBUG=INFO shows what it asks for")
	return c
}

func cureGraphs(e *evidence) cure {
	if e.uses("torch") && !e.uses("jax") {
		return cure{steps: []string{"capture fewer sizes, or leave more room beside the pool"}}
	}
	c := e.smaller(.05, "an instantiated graph takes memory of the driver, outside of the pool")
	c.steps = append(c.steps, "or make no graphs: XLA_FLAGS=--xla_gpu_enable_command_buffer=")
	return c
}

func cureModule(e *evidence) cure {
	c := e.smaller(.05, "the driver loads code outside of the pool")
	return c
}

// Other vendors.

// A vendor is a maker of GPUs other than NVIDIA, whose tools these are. gpumem ps and
// gpumem run know NVIDIA's GPUs only.
type vendor struct {
	word      string // what PyTorch calls its GPUs in a refusal
	processes string // lists who is on the GPU
	visible   string // the variable that chooses GPUs
}

var vendors = []vendor{
	{"hip", "rocm-smi --showpids", "HIP_VISIBLE_DEVICES"},
	{"xpu", "xpu-smi ps", "ZE_AFFINITY_MASK"},
}

// otherVendor is who made the GPU that a message calls out of memory; nil is NVIDIA, or
// unknown.
func (e *evidence) otherVendor() *vendor {
	for i := range vendors {
		if e.statementWith(vendors[i].word, "out", "memory") != nil {
			return &vendors[i]
		}
	}
	return nil
}

// PyTorch and engines.

// confName is the variable of PyTorch's allocator, as the release and the GPU have it.
func (e *evidence) confName() string {
	switch {
	case e.uses("hip") && !e.uses("xpu"):
		return "PYTORCH_HIP_ALLOC_CONF"
	case e.version("torch") != "" && older(e.version("torch"), 2, 10):
		return torchConf // up to 2.9 the newer name is not read, although 2.9 recommends it
	case e.env["PYTORCH_ALLOC_CONF"] != "", e.statementWith("pytorch", "alloc", "conf") != nil && e.statementWith("pytorch", "cuda", "conf") == nil:
		return "PYTORCH_ALLOC_CONF"
	}
	return torchConf
}

// oldTorch reports whether the message is of a release before 2.1, which does not know
// expandable segments.
func (e *evidence) oldTorch() bool {
	if v := e.version("torch"); v != "" {
		return older(v, 2, 1)
	}
	r := e.subject()
	return r != nil && r.kept > 0 && !r.hasIdle && (r.st.words["torch"] || r.st.words["pytorch"])
}

// cureCap raises a pool's own limit, in bytes.
func cureCap(e *evidence, r *refusal, limit uint64) cure {
	switch {
	case r.st.words["cupy"] || e.uses("cupy") && limit > 0:
		return cure{
			settings: []Advice{{"CUPY_GPU_MEMORY_LIMIT", "", "without it there is no limit but the GPU; or give it more than " + human(r.alloc+r.want)}},
			steps:    []string{"free what the pool keeps: cupy.get_default_memory_pool().free_all_blocks()", "before CuPy 13 cached blocks count against the limit even where they could be freed (cupy/cupy#7679)"},
			check:    "gpumem explain --as cupy",
		}
	case r.st.words["budget"]:
		return cureLimit(e, r.alloc+r.want)
	case e.uses("rmm"):
		return cureRMM
	case e.uses("mps"):
		return cure{steps: []string{
			"raise the part of the Mac's memory that PyTorch may take: PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit, and macOS then swaps, or stops",
			"or make it smaller: batch, half precision; torch.mps.empty_cache() between steps",
		}}
	case e.uses("onnxruntime"):
		return cure{steps: []string{"raise gpu_mem_limit in the CUDA provider's options; arena_extend_strategy=kSameAsRequested keeps the pool from doubling"}}
	case e.uses("jax") && !e.uses("torch"):
		return cureLimit(e, r.alloc+r.want)
	}
	raise := "raise the cap: torch.cuda.set_per_process_memory_fraction(F); without one there is none"
	if v := e.version("torch"); v == "" || !older(v, 2, 10) {
		raise = "raise the cap: torch.cuda.set_per_process_memory_fraction(F), or since PyTorch 2.10 per_process_memory_fraction:F in " + e.confName() + "; without one there is none"
	}
	return cure{
		steps: []string{
			raise,
			"if no cap is set, look for one outside: a limiter (HAMi, nvshare), a MIG slice, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
		},
		check: "gpumem explain --as pytorch",
	}
}

func cureTorchHoles(e *evidence) cure {
	if !e.onTorch() && !e.uses("torch") {
		return cure{steps: []string{"release what the pool keeps before the large request, and allocate the large arrays first"}}
	}
	name := e.confName()
	value, why := "expandable_segments:True", "segments that grow by pages leave fewer gaps; releases since 2.1 read it"
	if e.oldTorch() {
		value, why = "max_split_size_mb:128", "large blocks are then not split, and fit large requests again; the message is of a release before 2.1, which does not know expandable_segments"
	}
	key, set, _ := strings.Cut(value, ":")
	if merged, text, err := torchconf.Merge(policy.Environ(envLines(e.env)), e.version("torch"), key, set); err == nil && e.env[merged] != "" {
		if text == strings.ReplaceAll(e.env[merged], " ", "") {
			return cure{steps: []string{
				value + " is set already, and gaps are left: torch.cuda.empty_cache() before the large request, and fewer sizes of tensors (pad them)",
				"see that the program reads it: gpumem explain --pid PID, while it runs",
			}}
		}
		why += "; what is set there already is kept"
		name, value = merged, text
	}
	return cure{settings: []Advice{{name, value, why}}, steps: []string{"torch.cuda.empty_cache() before the large request helps as well"}, check: name + "=" + value + " gpumem explain --as pytorch"}
}

func envLines(env map[string]string) []string {
	var lines []string
	for k, v := range env {
		lines = append(lines, k+"="+v)
	}
	return lines
}

// cureEngineLess leaves more room beside an engine's cache, on a GPU of t bytes.
func cureEngineLess(e *evidence, r *refusal, t uint64) cure {
	if e.uses("sglang") || r.capture != nil && strings.Contains(r.capture.text, "CudaGraphRunner") || r.capture != nil && strings.Contains(r.capture.text, "Capture cuda graph") {
		return cure{settings: []Advice{{"--mem-fraction-static", "0.8", "SGLang's share for weights and cache; graphs take memory beside it. Take five hundredths off what you use now"}}, steps: []string{"capture fewer graphs: --cuda-graph-max-bs, or none: --disable-cuda-graph"}}
	}
	value := "0.87"
	why := "the default is 0.9 (0.92 in newer releases); graphs take memory beside the cache"
	if t > 0 {
		part := float64(r.want+256*mib) / float64(t)
		value = down(math.Max(.9-part, .1))
		why = fmt.Sprintf("%s and a reserve of %s are %.0f %% of %s: take that off the value that you use (0.9 by default)", human(r.want), human(256*mib), math.Ceil(100*part), human(t))
	}
	return cure{settings: []Advice{{"gpu_memory_utilization", value, why}}, steps: []string{"capture fewer graphs (cudagraph_capture_sizes in --compilation-config), or none: --enforce-eager"}}
}

func cureEngineFree(e *evidence, r *refusal) cure {
	c := cureOccupied(e)
	if room := float64(r.free) / float64(r.total); room > .1 && r.total > 0 {
		c.settings = []Advice{{"gpu_memory_utilization", down(math.Max(room-.01, .05)), fmt.Sprintf("%s of %s is free: this is what fits beside the others, if they stay as they are", human(r.free), human(r.total))}}
	}
	return c
}

// engineShare is what an engine calls its share of the GPU.
func (e *evidence) engineShare() string {
	if e.uses("sglang") {
		return "--mem-fraction-static"
	}
	return "gpu_memory_utilization"
}

func cureEngineMore(e *evidence) cure {
	if e.uses("sglang") {
		return cure{steps: []string{"raise --mem-fraction-static if the GPU is otherwise free; else a smaller or quantised model, a shorter --context-length, or more GPUs"}}
	}
	return cure{steps: []string{"raise gpu_memory_utilization if the GPU is otherwise free; else a smaller or quantised model, a shorter --max-model-len, or more GPUs"}}
}

func cureUnified(r *refusal) cure {
	c := cure{steps: []string{
		"the host's page cache and programs take from the same memory: drop the cache before the start (sync; echo 3 > /proc/sys/vm/drop_caches), and end what is not needed",
		"leave the host its part: without it the machine wedges before CUDA reports anything",
	}}
	if r != nil && r.layer == layerEngine && r.total > 0 && r.hasFree {
		value := down(math.Min(float64(r.free)/float64(r.total)-.05, .85))
		c.settings = []Advice{{"gpu_memory_utilization", value, fmt.Sprintf("%s was free at the start; this leaves the host %s", human(r.free), human(less(r.total, uint64(mustFloat(value)*float64(r.total)))))}}
	}
	return c
}

var cureRMM = cure{steps: []string{
	"raise the pool's maximum_pool_size (rmm.reinitialize(pool_allocator=True, maximum_pool_size=...)), or leave it out",
	"for a replay: simulate a larger GPU, or another allocator; gpumem replay LOG.csv --smallest says how small it may be",
}}

// cureLlama is for llama.cpp and Ollama. A buffer for the computation does not become
// smaller with fewer layers on the GPU.
func cureLlama(compute bool) cure {
	if compute {
		return cure{steps: []string{
			"make the computation's buffer smaller: a smaller batch (num_batch, -b/-ub), a shorter context (num_ctx, -c), flash attention (OLLAMA_FLASH_ATTENTION=1, -fa); fewer layers on the GPU leave it as it is, and only make room beside it",
			"let Ollama count more beside the model: OLLAMA_GPU_OVERHEAD=BYTES; fewer requests at a time: OLLAMA_NUM_PARALLEL=1; and see who else is on the GPU (nvidia-smi)",
		}}
	}
	return cure{steps: []string{
		"let fewer layers go to the GPU: num_gpu in Ollama's options, -ngl in llama.cpp; or a smaller quantisation, a shorter context (num_ctx)",
		"let Ollama count more beside the model: OLLAMA_GPU_OVERHEAD=BYTES; and see who else is on the GPU (nvidia-smi)",
	}}
}
