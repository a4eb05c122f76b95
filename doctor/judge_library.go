package doctor

// Libraries that could not start. Their words are the same whether memory was missing or
// the installation is broken; what is free, who is on the GPU and what was tried tell them
// apart.

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// cudaLibraries are those without which a GPU program cannot start. Others, such as
// TensorRT's libnvinfer, are missed without harm.
var cudaLibraries = regexp.MustCompile(`(?i)cudnn|cublas|cusolver|cusparse|cufft|cudart|curand|nccl|nvrtc|zlibwapi|libcuda\b|libhip|rocblas|miopen`)

// libraries is for texts that name a library that is missing, or of another version.
func (j *judge) libraries() {
	e := j.evidence
	for _, st := range e.statements.all() {
		t := st.topic("missing", "symbol", "version", "image")
		if t == nil || st.topic("cubin") != nil {
			continue
		}
		switch t.id {
		case "version":
			j.show(LibraryMismatched, "a library of another version", cureLibrary(e), st.quoted("the library that is loaded is not the one that the program was built for: "+t.value))
		case "image":
			j.show(LibraryMismatched, "no code for this GPU", cureLibrary(e), st.quoted("the build has no code that this GPU can run"))
		case "symbol":
			j.show(LibraryMismatched, "a symbol is missing", cureLibrary(e), st.quoted("the library that is loaded lacks a symbol that the program was built with: its version is another"))
		case "missing":
			if (t.name == "" || cudaLibraries.MatchString(t.name)) && !e.fatal() {
				name := t.name
				if name == "" {
					name = "cuDNN"
				}
				j.show(LibraryMismatched, "a library is missing", cureLibrary(e), st.quoted(name+" is not where the loader looks; no amount of memory starts it"))
			}
		}
	}
}

// A handle is a library's failure, read.
type handle struct {
	st      *statement
	library string     // cuDNN, cuBLAS, ...
	memory  bool       // the status can only be memory
	call    bool       // a call failed, not the making of a handle
	early   bool       // memory was refused before the library asked for any
	conv    bool       // no algorithm for a convolution was found
	status  string     // CUDNN_STATUS_..., empty if none is told
	from    *statement // the driver's reading, nil if there is none
	left    uint64     // free, by it
	total   uint64
	tried   bool // a smaller pool was tried and did not help
	helped  bool // a setting of the pool was tried and helped
	triedBy Evidence
	torch   bool
	cupy    bool
}

var statusName = regexp.MustCompile(`\b(?:CU[A-Z]+|HIP[A-Z]+|ROC[A-Z]+|MIOPEN)_STATUS_\w+`)

// handle is the library's failure that the log ends with, and nil.
func (e *evidence) handle() *handle {
	h := &handle{}
	for _, st := range e.statements.all() {
		if st.library == "" || st.mild || st.layer == layerModule || st.layer == layerNCCL || st.topic("hami", "other", "cleared") != nil {
			continue
		}
		call := !st.handle
		// The making of a handle tells more than the calls that fail after it.
		switch {
		case h.st == nil, h.call && !call, call == h.call && st.memory && !h.memory:
			h.st, h.library, h.call = st, st.library, call
		}
		h.memory = h.memory || st.memory
	}
	if h.st == nil {
		return nil
	}
	if h.call && !h.memory && e.last(func(r *refusal) bool { return !r.mild && r.st.library == "" && (r.want > 0 || r.total > 0) }) != nil {
		return nil
	}
	st := h.st
	h.early = st.words["before"] && st.words["creating"]
	h.conv = st.words["convolution"]
	h.status = statusName.FindString(st.text)
	if !h.memory {
		for _, m := range e.statements.all() {
			if t := m.topic("missing", "symbol"); t != nil && (t.id == "symbol" || t.name == "" || cudaLibraries.MatchString(t.name)) {
				return nil
			}
		}
	}
	h.torch = st.hasAny("calling") || st.words["torch"] || e.onTorch()
	h.cupy = st.words["cupy"] || e.uses("cupy")
	if from, free, total := e.free(); from != nil && (from.words["usage"] || from.line > st.line-3) && from.words["memory"] && !startWord.MatchString(from.text) {
		h.from, h.left, h.total = from, free, total
	}
	if e.state != nil {
		for _, t := range e.state.Tried {
			for _, name := range slices.Sorted(maps.Keys(t.Env)) {
				value := t.Env[name]
				f, err := strconv.ParseFloat(value, 64)
				part := strings.HasSuffix(name, "MEM_FRACTION") && err == nil && f > 0 && f < 1
				grow := name == "XLA_PYTHON_CLIENT_PREALLOCATE" && (value == "false" || value == "False" || value == "0") || name == "TF_FORCE_GPU_ALLOW_GROWTH" && value == "true" ||
					name == "XLA_PYTHON_CLIENT_ALLOCATOR" && (value == "platform" || value == "cuda_async")
				switch {
				case t.Helped && (part || grow):
					h.helped = true
					h.triedBy = Evidence{Text: "tried: " + name + "=" + value, Reading: "it helped: memory was the cause, and not the library"}
				case !t.Helped && (part && f <= .55 || grow):
					h.tried = true
					h.triedBy = Evidence{Text: "tried: " + name + "=" + value, Reading: "it left the library room enough, and did not help"}
				}
			}
		}
	}
	return h
}

var startWord = regexp.MustCompile(`(?i)free ?memory: |total ?memory: `)

// quotes is what the lines show.
func (h *handle) quotes(more ...Evidence) []Evidence {
	reading := h.library + " could not " + h.what()
	switch {
	case h.memory:
		reading += ": its status is that of memory"
	case h.status != "":
		reading += ": " + h.status + " is printed for missing memory and for a broken library alike"
	}
	q := []Evidence{h.st.quoted(reading)}
	if h.from != nil {
		q = append(q, h.from.quoted(fmt.Sprintf("%s of %s was free (%d %%)", human(h.left), human(h.total), percent(h.left, h.total))))
	}
	return append(q, more...)
}

func (h *handle) what() string {
	if h.call {
		return "do its work"
	}
	return "make its handle"
}

// starved reports whether so little was free that a library cannot start.
func (h *handle) starved() bool { return h.from != nil && h.left < firstLibrary }

// plenty reports whether memory cannot be what was missing: more is free than the default
// pool leaves, and more than any library takes.
func (h *handle) plenty() bool {
	return h.from != nil && h.left > 2*firstLibrary && float64(h.left) > (defaultLeft+.05)*float64(h.total)
}

// scarce reports whether what was free is near to what libraries need.
func (h *handle) scarce() bool { return h.from != nil && !h.starved() && h.left < 2*firstLibrary }

// short reports whether memory was missing, as far as the text alone says.
func (h *handle) short() bool { return !h.tried && !h.plenty() && (h.memory || h.starved()) }

// open reports whether the text leaves memory and library open.
func (h *handle) open() bool {
	return !h.plenty() && !h.short() && (h.from == nil || h.scarce() || h.tried)
}

// certain is what is sure of the failure.
func (h *handle) certain() []string {
	c := []string{h.library + " could not " + h.what()}
	if h.early {
		c = []string{"memory was refused by the driver, not by " + h.library}
	}
	if h.from != nil {
		c = append(c, fmt.Sprintf("%s of %s was free (%d %%)", human(h.left), human(h.total), percent(h.left, h.total)))
		if h.starved() {
			c = append(c, fmt.Sprintf("less was free than the %s that cuDNN takes with its first convolution", human(firstLibrary)))
		}
	}
	return c
}

// ownPool explains what is free by the program's own setting, where the log or the state
// shows one.
func (e *evidence) ownPool(h *handle) (Evidence, bool) {
	if h.from == nil {
		return Evidence{}, false
	}
	for _, name := range []string{newFraction, oldFraction} {
		f, err := strconv.ParseFloat(e.env[name], 64)
		if err != nil || !(f > 0 && f <= 1) {
			continue
		}
		pool := uint64(f * float64(h.total))
		if pool+h.left <= h.total+mib && h.total-pool-h.left < contextMost {
			q := Evidence{Text: "process.env: " + name + "=" + e.env[name]}
			if seen, ok := e.envFrom[name]; ok {
				q = seen
			}
			q.Reading = fmt.Sprintf("%s of %s is the program's own pool; that and a context leave what was free", human(pool), human(h.total))
			return q, true
		}
	}
	for _, st := range e.statements.all() {
		if t := st.topic("announced"); t != nil {
			if pool := sizeOf(t.name); pool+h.left <= h.total+mib && h.total-pool-h.left < contextMost {
				return st.quoted(fmt.Sprintf("%s of %s is the program's own pool; that and a context leave what was free", human(pool), human(h.total))), true
			}
		}
	}
	return Evidence{}, false
}

// library is for a library that failed.
func (j *judge) library() {
	e := j.evidence
	h := e.handle()
	if h == nil || j.sure() {
		return
	}
	certain := h.certain()
	add := func(f *finding) *finding { return f.with(certain...) }
	if h.plenty() {
		f := add(j.show(NotMemory, "a library fails on a free GPU", cureNotMemory, h.quotes()...))
		f.verdict = VerdictNotMemory
		return
	}
	others, told := e.others()
	held := heldBy(others)
	var display uint64
	var big []holder
	var jax *holder
	why := ""
	total := max(h.total, e.total().bytes)
	for i, o := range others {
		yes, reading := o.isJAX(total)
		switch {
		case o.isDesktop():
			display += o.Used
		case yes && jax == nil:
			jax, why = &others[i], reading
		case !yes && (o.Used > firstLibrary || o.Used == 0 && o.ParentGone):
			big = append(big, o)
		}
	}
	own, byOwn := e.ownPool(h)
	both := e.jaxAndTF()
	framed := !h.torch && !h.cupy // of a framework that preallocates
	gone := len(big) > 0 && big[0].ParentGone
	switch {
	case h.tried:
		q := h.quotes(h.triedBy)
		add(j.maybe(LibraryMismatched, "a smaller pool did not help", cureLibrary(e), e.decideLibrary(h), nil, q...))
		j.maybe(NotMemory, "a smaller pool did not help", cureNotMemory, e.decideLibrary(h), nil, q...)
		j.maybe(PreallocStarves, "a smaller pool may not have been small enough", cureTried, e.decideLibrary(h), nil, q...)
		return
	case both != nil && framed:
		add(j.show(JAXAndTensorFlow, "JAX and TensorFlow in the process", cureJAXAndTF(e), h.quotes(both...)...))
		return
	case jax != nil && framed && (h.short() || h.open()):
		jax.from.Reading = why
		add(j.show(MultiProcess, "another JAX on the GPU", cureMulti(e), h.quotes(jax.from)...))
		return
	case h.early && h.memory && framed && !told:
		// The refused request came before any library: it was the pool's, which is the
		// first to ask.
		f := add(j.show(MultiProcess, "memory was refused before the library", cureMulti(e), h.st.quoted("memory was refused before the library asked for any: the GPU was full when this program came, as another program that preallocates leaves it")))
		f.decide = decideSmi
		return
	case gone && (h.short() || h.open()), len(big) > 0 && (h.short() || heldBy(big) >= total/4):
		add(j.show(DeviceOccupied, "others leave a library too little", cureOccupied(e), h.quotes(readings(big)...)...))
		return
	case h.helped && (!told || less(held, display) < firstLibrary):
		c := cureStarved(e, h, display)
		name, value, _ := strings.Cut(strings.TrimPrefix(h.triedBy.Text, "tried: "), "=")
		c.settings = []Advice{{name, value, "it helped when it was tried"}}
		c.check = e.jaxCheck(name + "=" + value)
		add(j.show(PreallocStarves, "a smaller pool helped", c, h.quotes(h.triedBy)...))
		return
	case h.short() && byOwn && framed:
		add(j.show(PreallocStarves, "the pool leaves a library too little", cureStarved(e, h, 0), h.quotes(own)...))
		return
	case h.short() && told && less(held, display) < firstLibrary && framed:
		q := h.quotes()
		for _, o := range others {
			if o.isDesktop() {
				o.from.Reading = "the desktop takes " + human(o.Used) + " of what the pool leaves"
				q = append(q, o.from)
			}
		}
		add(j.show(PreallocStarves, "the pool leaves a library too little", cureStarved(e, h, display), q...))
		return
	case h.short() && told && (h.torch || h.cupy):
		add(j.show(ProgramTooBig, "the program's own arrays leave a library too little", cureTooBig(e), h.quotes()...))
		return
	}
	// Nothing decides: all that fit.
	switch {
	case h.torch || h.cupy:
		if h.short() {
			add(j.maybe(PreallocStarves, "a library without room", cureTorchHandle, decideSmi, nil, h.quotes()...))
			j.maybe(DeviceOccupied, "a library without room", cureOccupied(e), decideSmi, nil, h.quotes()...)
			if h.cupy {
				j.maybe(ProgramTooBig, "a library without room", cureTooBig(e), decideSmi, nil, h.quotes()...)
			}
		} else if h.open() {
			add(j.maybe(PreallocStarves, "a library that failed", cureTorchHandle, e.decideLibrary(h), nil, h.quotes()...))
			j.maybe(LibraryMismatched, "a library that failed", cureLibrary(e), e.decideLibrary(h), nil, h.quotes()...)
		}
	case h.short():
		status := h.memory && !h.starved()
		if status && h.from == nil && !e.onTensorFlow() && !e.frameworksTold() && h.library != "cuSolver" {
			add(j.maybe(JAXAndTensorFlow, "a library without room", cureJAXAndTF(e), "gpumem doctor --pid PID LOG    # while the program runs: it sees both libraries in the process", need(needFrameworks), h.quotes()...))
		}
		if !e.onTensorFlow() {
			add(j.maybe(MultiProcess, "a library without room", cureMulti(e), decideSmi, need(needProcesses), h.quotes()...))
		}
		add(j.maybe(PreallocStarves, "a library without room", cureStarved(e, h, 0), decideSmi, need(needProcesses), h.quotes()...))
		if h.from != nil || e.onTensorFlow() {
			j.maybe(DeviceOccupied, "a library without room", cureOccupied(e), decideSmi, need(needProcesses), h.quotes()...)
		}
	case h.open():
		blas := h.library == "cuBLAS" && !h.call
		if !e.onTensorFlow() && (blas || h.conv) && !e.frameworksTold() && h.from == nil && e.state == nil || blas && !e.onTensorFlow() && !e.frameworksTold() && h.from == nil {
			f := add(j.maybe(JAXAndTensorFlow, "a library that failed", cureJAXAndTF(e), "gpumem doctor --pid PID LOG    # while the program runs: it sees both libraries in the process", nil, h.quotes()...))
			if h.conv && h.status == "" {
				f.missing = need(needFrameworks)
			}
		}
		if blas && !e.onTensorFlow() {
			add(j.maybe(MultiProcess, "a library that failed", cureMulti(e), decideSmi, nil, h.quotes()...))
		}
		if !told || held <= 2*gib {
			add(j.maybe(PreallocStarves, "a library that failed", cureStarved(e, h, display), e.decideLibrary(h), nil, h.quotes(e.display()...)...))
		}
		if blas && e.onTensorFlow() {
			j.maybe(DeviceOccupied, "a library that failed", cureOccupied(e), decideSmi, nil, h.quotes()...)
		}
		if !blas {
			add(j.maybe(LibraryMismatched, "a library that failed", cureLibrary(e), e.decideLibrary(h), nil, h.quotes()...))
		}
	}
	if e.statementWith("insufficient", "driver", "version") != nil {
		// The library's own guess goes before ours.
		if i := slices.IndexFunc(j.found, func(f finding) bool { return f.cause == LibraryMismatched }); i > 0 {
			j.found = append(slices.Clone(j.found[i:]), j.found[:i]...)
		}
	}
}

// decideLibrary is the command that tells memory from a broken library.
func (e *evidence) decideLibrary(h *handle) string {
	switch {
	case e.onTensorFlow():
		return tfGrowth + "=true python PROGRAM    # if it runs now, memory was the cause; if not, the library"
	case h.torch || h.cupy:
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
