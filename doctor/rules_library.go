package doctor

// Rules for libraries that could not start. Their words are the same whether
// memory was missing or the installation is broken; what is free, who is on
// the GPU and what was tried tell them apart.

import (
	"fmt"
	"strconv"
	"strings"
)

// A handle is a library's failure, read.
type handle struct {
	fact    Fact
	library string // cuDNN, cuBLAS, ...
	memory  bool   // the status can only be memory
	call    bool   // a call failed, not the making of a handle
	from    *Fact  // the driver's reading, nil: none
	left    uint64 // free, by it
	total   uint64
	tried   bool // a smaller pool was tried and did not help
	helped  bool // a setting of the pool was tried and helped
	triedBy Evidence
	torch   bool
	cupy    bool
}

// handle is the library's failure that the log ends with, and nil.
func (e *evidence) handle() *handle {
	h := &handle{}
	pick := func(library string, kind Kind, call bool) {
		for _, f := range e.all(kind) {
			if f.Nonfatal {
				continue
			}
			// The making of a handle tells more than the calls that fail after it.
			if h.library == "" || h.call && !call {
				h.fact, h.library, h.call = f, library, call
			}
			h.memory = h.memory || isOOM(f.Code) || isOOM(f.Value)
			if isOOM(f.Code) || isOOM(f.Value) {
				if h.call == call {
					h.fact = f
				}
			}
		}
	}
	pick("cuDNN", CuDNNHandle, false)
	pick("cuBLAS", CuBLASHandle, false)
	pick("cuSolver", CuSolver, false)
	pick("cuSPARSE", CuSparse, false)
	pick("cuFFT", CuFFT, false)
	pick("cuDNN", CuDNNConv, true)
	pick("cuDNN", CuDNNCall, true)
	pick("cuBLAS", CuBLASCall, true)
	if h.library == "" || e.fails(TorchOOM, BFCRefused, XLARefused, TFOOM) && h.call && !h.memory {
		return nil
	}
	if strings.Contains(h.fact.Code, "CUFFT_ALLOC_FAILED") || strings.Contains(h.fact.Text, "CUFFT_ALLOC_FAILED") || strings.Contains(h.fact.Text, "failed to allocate work area") || strings.Contains(h.fact.Text, "INSUFFICIENT_RESOURCES") {
		h.memory = true
	}
	if !h.memory && e.first(LibraryMissing, func(f *Fact) bool { return cudaLibrary(f.Name) }) != nil {
		return nil // it is not there: see "a library is missing"
	}
	h.torch = h.fact.Framework == "torch"
	h.cupy = strings.Contains(h.fact.Text, "cupy")
	if f := e.free(); f != nil && f.Framework != "tensorflow" {
		h.from, h.left, h.total = f, f.Free, f.Total
	}
	if e.state != nil {
		for _, t := range e.state.Tried {
			for name, value := range t.Env {
				f, err := strconv.ParseFloat(value, 64)
				less := strings.HasSuffix(name, "MEM_FRACTION") && err == nil && f > 0 && f <= .55
				grow := name == "XLA_PYTHON_CLIENT_PREALLOCATE" && (value == "false" || value == "False" || value == "0") || name == "TF_FORCE_GPU_ALLOW_GROWTH" && value == "true" ||
					name == "XLA_PYTHON_CLIENT_ALLOCATOR" && (value == "platform" || value == "cuda_async")
				switch {
				case t.Helped && (less || grow || strings.HasSuffix(name, "MEM_FRACTION") && f > 0 && f < 1):
					h.helped = true
					h.triedBy = Evidence{Text: "tried: " + name + "=" + value, Reading: "it helped: memory was the cause, and not the library"}
				case !t.Helped && (less || grow):
					h.tried = true
					h.triedBy = Evidence{Text: "tried: " + name + "=" + value, Reading: "it left the library room enough, and did not help"}
				}
			}
		}
	}
	return h
}

// reading is what the driver's line shows beside the failure.
func (h *handle) quotes(more ...Evidence) []Evidence {
	q := []Evidence{quote(&h.fact, h.library+" could not "+h.what()+h.status())}
	if h.from != nil {
		q = append(q, quote(h.from, fmt.Sprintf("%s of %s was free (%d %%)", human(h.left), human(h.total), percent(h.left, h.total))))
	}
	return append(q, more...)
}

func (h *handle) what() string {
	if h.call {
		return "do its work"
	}
	return "make its handle"
}

func (h *handle) status() string {
	switch {
	case h.memory:
		return ": its status is that of memory"
	case strings.Contains(h.fact.Code, "_STATUS_"):
		return ": " + h.fact.Code + " is printed for missing memory and for a broken library alike"
	}
	return ""
}

// starved says whether so little was free that a library cannot start.
func (h *handle) starved() bool { return h.from != nil && h.left < firstLibrary }

// plenty says whether memory cannot be what was missing: more is free than
// the default pool leaves, and more than any library takes.
func (h *handle) plenty() bool {
	return h.from != nil && h.left > 2*firstLibrary && float64(h.left) > (defaultLeft+.05)*float64(h.total)
}

// scarce says whether what was free is near to what libraries need: it may
// have been enough, or not.
func (h *handle) scarce() bool { return h.from != nil && !h.starved() && h.left < 2*firstLibrary }

// short says whether memory was missing, as far as the text alone tells.
func (h *handle) short() bool { return !h.tried && !h.plenty() && (h.memory || h.starved()) }

// open says whether the text leaves memory and library open.
func (h *handle) open() bool {
	return !h.plenty() && !h.short() && (h.from == nil || h.scarce() || h.tried)
}

// certain is what is sure of the failure.
func (h *handle) certain() []string {
	c := []string{h.library + " could not " + h.what()}
	switch {
	case h.from != nil:
		c = append(c, fmt.Sprintf("%s of %s was free (%d %%)", human(h.left), human(h.total), percent(h.left, h.total)))
		if h.starved() {
			c = append(c, fmt.Sprintf("less was free than the %s that cuDNN takes with its first convolution", human(firstLibrary)))
		}
	}
	return c
}

// ownPool explains what is free by the program's own setting, where the log or the
// state shows one, or the state shows the program alone on the GPU.
func (e *evidence) ownPool(h *handle) (Evidence, bool) {
	if h.from == nil {
		return Evidence{}, false
	}
	for _, name := range []string{"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} {
		f, err := strconv.ParseFloat(e.env[name], 64)
		if err != nil || !(f > 0 && f <= 1) {
			continue
		}
		pool := uint64(f * float64(h.total))
		if pool+h.left <= h.total+mib && h.total-pool-h.left < contextMost {
			q := Evidence{Text: "process.env: " + name + "=" + e.env[name]}
			if seen, ok := e.envFrom[name]; ok && seen.Value == e.env[name] {
				q = quote(&seen, "")
			}
			q.Reading = fmt.Sprintf("%s of %s is the program's own pool; that and a context leave what was free", human(pool), human(h.total))
			return q, true
		}
	}
	return Evidence{}, false
}

var libraryRules = []rule{
	{
		name: "a library fails on a free GPU", cause: NotMemory,
		seen:   "a library's failure, and more free than the default pool leaves and than libraries take",
		not:    "a status that can only be memory",
		source: "jax-ml/jax#28752; conda-forge/jaxlib-feedstock#312",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || !h.plenty() {
				return nil
			}
			f := shown(cureNotMemory, h.quotes()...).with(h.certain()...)
			f.verdict = VerdictNotMemory
			return f
		},
	},
	{
		name: "JAX and TensorFlow in the process", cause: JAXAndTensorFlow,
		seen:   "a library's failure, and both frameworks in the process",
		not:    "a free GPU",
		source: "jax-ml/jax#9454; google-deepmind/acme#208; JAX's page on GPU memory, cause 2",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || h.plenty() || h.tried || h.torch || h.cupy {
				return nil
			}
			if both := e.jaxAndTF(); both != nil {
				return shown(cureJAXAndTF(e), h.quotes(both...)...).with(h.certain()...)
			}
			if e.frameworksTold() || h.library == "cuSolver" || e.spoken("tensorflow") != nil && e.spoken("jax") == nil {
				return nil
			}
			status := h.memory && !h.starved() || h.fact.Kind == CuDNNConv && !e.has(CuDNNCall)
			if h.from != nil || !status || h.fact.Name == "before" {
				return nil
			}
			return fits(cureJAXAndTF(e), "gpumem doctor --pid PID LOG    # while the program runs: it sees both libraries in the process", need(needFrameworks), h.quotes()...).with(h.certain()...)
		},
	},
	{
		name: "another JAX on the GPU", cause: MultiProcess,
		seen:   "a library without room, and another process with a pool of JAX",
		source: "jax-ml/jax#17217, #7118; JAX's page on GPU memory, cause 1",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || h.plenty() || h.tried || h.torch || h.cupy || e.jaxAndTF() != nil {
				return nil
			}
			others, told := e.others()
			for _, o := range others {
				if yes, why := o.isJAX(max(h.total, e.total().bytes)); yes && (h.short() || h.open()) {
					o.from.Reading = why
					return shown(cureMulti(e), h.quotes(o.from)...).with(h.certain()...)
				}
			}
			if told {
				return nil
			}
			switch {
			case h.fact.Name == "before" && h.memory:
				// The refused request came before any library: it was the pool's, which is
				// the first to ask.
				f := shown(cureMulti(e), quote(&h.fact, "memory was refused before cuDNN asked for any: the GPU was full when this program came, as another program that preallocates leaves it"))
				f.decide = decideSmi
				return f.with("memory was refused by the driver, not by cuDNN")
			case h.short():
				if _, own := e.ownPool(h); own {
					return nil
				}
				return fits(cureMulti(e), decideSmi, need(needProcesses), h.quotes()...).with(h.certain()...)
			case h.library == "cuBLAS" && h.open():
				return fits(cureMulti(e), decideSmi, nil, h.quotes()...).with(h.certain()...)
			}
			return nil
		},
	},
	{
		name: "the pool leaves a library too little", cause: PreallocStarves,
		seen:   "a library without room, and nobody else on the GPU, or a setting that explains what is free, or PyTorch, which has no preallocation",
		not:    "another process that holds what is missing; a free GPU; a smaller pool that did not help",
		source: "jax-ml/jax#8506, #7118; tensorflow/tensorflow#24496; JAX's page on GPU memory, cause 3",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || h.plenty() {
				return nil
			}
			if e.jaxAndTF() != nil && !h.tried {
				return nil
			}
			others, told := e.others()
			held := heldBy(others)
			display := uint64(0)
			for _, o := range others {
				if o.isDesktop() {
					display += o.Used
				}
			}
			switch {
			case h.helped && (!told || held-display < firstLibrary):
				f := shown(cureStarved(e, h, display), h.quotes(h.triedBy)...).with(h.certain()...)
				name, value, _ := strings.Cut(strings.TrimPrefix(h.triedBy.Text, "tried: "), "=")
				f.cure.settings = []Advice{{name, value, "it helped when it was tried"}}
				f.cure.check = e.jaxCheck(name + "=" + value)
				return f
			case h.tried:
				return nil // see the last of the book's rules for libraries
			case h.short() && h.torch && !h.call:
				return shown(cureTorchHandle, h.quotes()...).with(h.certain()...)
			case h.cupy:
				return nil // it preallocates nothing
			case h.torch && h.open():
				return fits(cureTorchHandle, e.decideLibrary(h), nil, h.quotes()...).with(h.certain()...)
			case h.short() && told && held-display < firstLibrary:
				q := h.quotes()
				for _, o := range others {
					if o.isDesktop() {
						o.from.Reading = "the desktop takes " + human(o.Used) + " of what the pool leaves"
						q = append(q, o.from)
					}
				}
				if e.fromLog() == nil {
					return nil
				}
				return shown(cureStarved(e, h, display), q...).with(h.certain()...)
			case h.short():
				if why, own := e.ownPool(h); own {
					return shown(cureStarved(e, h, 0), h.quotes(why)...).with(h.certain()...)
				}
				if told || h.fact.Name == "before" {
					return nil
				}
				return fits(cureStarved(e, h, 0), decideSmi, need(needProcesses), h.quotes()...).with(h.certain()...)
			case h.open():
				if told && held-display > 2*gib {
					return nil
				}
				f := fits(cureStarved(e, h, display), e.decideLibrary(h), nil, h.quotes(e.display()...)...).with(h.certain()...)
				if !told && h.from == nil && h.fact.Kind == CuDNNConv && !e.has(CuDNNCall) && !e.frameworksTold() {
					f.missing = need(needFrameworks)
				}
				return f
			}
			return nil
		},
	},
	{
		name: "others leave a library too little", cause: DeviceOccupied,
		seen:   "a library without room, and another program that is no JAX with most of the GPU",
		source: "pytorch/pytorch#4293",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || h.plenty() || h.tried {
				return nil
			}
			others, told := e.others()
			if !told && h.cupy && h.short() {
				return fits(cureOccupied(e), decideSmi, nil, h.quotes()...).with(h.certain()...)
			}
			if !told {
				if !h.short() || h.torch || h.from == nil {
					return nil
				}
				if _, own := e.ownPool(h); own {
					return nil
				}
				return fits(cureOccupied(e), decideSmi, need(needProcesses), h.quotes()...)
			}
			var big []holder
			for _, o := range others {
				if yes, _ := o.isJAX(max(h.total, e.total().bytes)); !yes && !o.isDesktop() && o.Used > firstLibrary {
					big = append(big, o)
				}
			}
			if len(big) == 0 || !h.short() && heldBy(big) < e.total().bytes/4 {
				return nil
			}
			return shown(cureOccupied(e), h.quotes(readings(big)...)...).with(h.certain()...)
		},
	},
	{
		name: "CuPy's own arrays leave a library too little", cause: ProgramTooBig,
		seen:   "a library of CuPy, which preallocates nothing, without room",
		not:    "others that hold most of the GPU",
		source: "cupy/cupy, memory management",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || !h.cupy || !h.short() {
				return nil
			}
			others, told := e.others()
			if told && heldBy(others) > e.total().bytes/4 {
				return nil
			}
			if told {
				return shown(cureTooBig(e), h.quotes()...).with(h.certain()...)
			}
			return fits(cureTooBig(e), decideSmi, nil, h.quotes()...).with(h.certain()...)
		},
	},
	{
		name: "a library that does not fit, or is not there", cause: LibraryMismatched,
		seen:   "a library's failure whose status is not memory's, and no reading that shows memory short",
		not:    "a status that can only be memory; another process that took the GPU",
		source: "jax-ml/jax#14480, #16078, #23616",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || h.helped || !h.open() && !h.tried || h.library == "cuBLAS" && !h.torch && !h.tried && h.fact.Kind == CuBLASHandle {
				return nil
			}
			if e.jaxAndTF() != nil && !h.tried {
				return nil
			}
			q := h.quotes()
			if h.tried {
				q = h.quotes(h.triedBy)
			}
			return fits(cureLibrary(e), e.decideLibrary(h), nil, q...).with(h.certain()...)
		},
	},
	{
		name: "a smaller pool did not help", cause: NotMemory,
		seen:   "a library's failure, and a smaller pool that was tried without help",
		source: "jax-ml/jax#23616",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || !h.tried || h.plenty() {
				return nil
			}
			return fits(cureNotMemory, e.decideLibrary(h), nil, h.quotes(h.triedBy)...)
		},
	},
	{
		name: "a smaller pool was tried, and may not have been small enough", cause: PreallocStarves,
		seen:   "the same: what was tried may have been another program, or not have reached it",
		source: "jax-ml/jax#23616",
		test: func(e *evidence) *finding {
			h := e.handle()
			if h == nil || !h.tried || h.plenty() {
				return nil
			}
			return fits(cureTried, e.decideLibrary(h), nil, h.quotes(h.triedBy)...)
		},
	},
}

// display is the state's word that a display hangs on the GPU.
func (e *evidence) display() []Evidence {
	if d := e.gpu(); d != nil && d.Display {
		reading := "a display is on the GPU"
		if d.InUse() > 0 {
			reading += ", and " + human(d.InUse()) + " in use before"
		}
		return []Evidence{{Text: "devices.display_active: true", Reading: reading}}
	}
	return nil
}

// fromLog is any fact of the log: without one no cause is claimed.
func (e *evidence) fromLog() *Fact {
	for _, k := range e.facts {
		return &k.first[0]
	}
	return nil
}

// decideLibrary is the command that tells memory from a broken library.
func (e *evidence) decideLibrary(h *handle) string {
	switch {
	case e.onTensorFlow():
		return tfGrowth + "=true python PROGRAM    # if it runs now, memory was the cause; if not, the library"
	case h.torch:
		return "nvidia-smi; python -m torch.utils.collect_env    # is the GPU full, and do the versions fit?"
	case h.tried && h.library == "cuDNN":
		return "python -c 'import ctypes; c = ctypes.CDLL(\"libcudnn.so.9\"); print(c.cudnnGetVersion())'; pip list | grep -i -E 'jax|cudnn'    # is cuDNN there, and the version that jaxlib was built for?"
	case h.tried:
		return "pip list | grep -i -E 'jax|nvidia'; ldconfig -p | grep -i -E 'cudnn|cublas|cusolver'    # are the libraries there, and of the versions that jaxlib was built for?"
	case h.library == "cuDNN" && h.call:
		return decideFraction
	}
	return decidePrealloc
}
