package account

// A library that could not start. Its words are the same whether memory was missing or the
// installation is broken; what is free, who is on the GPU and what was tried tell them apart.

import (
	"cmp"
	"fmt"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Library is a library's failure, read.
type Library struct {
	St      *statement.Statement
	Name    string               // cuDNN, cuBLAS, ...
	Memory  bool                 // the status can only be memory
	Call    bool                 // a call failed, not the making of a handle
	Early   bool                 // memory was refused before the library asked for any
	Conv    bool                 // no algorithm for a convolution was found
	Status  string               // CUDNN_STATUS_..., empty if none is named
	From    *statement.Statement // the driver's reading, nil if there is none
	Left    uint64               // free, by it
	Total   uint64
	Tried   bool // a smaller pool was tried and did not help
	Helped  bool // a setting of the pool was tried and helped
	TriedBy statement.Evidence
	Torch   bool
	Bare    bool // its framework preallocates nothing
}

// preallocateNothing are frameworks whose pools grow as needed.
var preallocateNothing = []string{"cupy", "rmm", "numba", "julia", "xgboost", "onnxruntime", "mxnet", "tensorrt",
	"llama.cpp", "comfyui", "rust",
	"ctranslate2", "caffe", "opencl", "vulkan", "directx", "nvenc", "blender", "unreal"}

// PreallocatesNothing reports whether the program's framework takes no memory in advance.
func (e *Case) PreallocatesNothing() bool {
	return e.Uses("cupy") || !e.Uses("jax", "tensorflow") && e.Uses(preallocateNothing...)
}

// library is the library's failure that the log ends with, and nil.
func (e *Case) library() *Library {
	h := &Library{}
	for _, st := range e.Statements() {
		if st.Library == "" || st.Mild || st.Layer == statement.LayerModule || st.Layer == statement.LayerNCCL ||
			st.Topic("hami", "other", "cleared") != nil {
			continue
		}
		call := !st.Handle
		// The making of a handle tells more than the calls that fail after it.
		switch {
		case h.St == nil, h.Call && !call, call == h.Call && st.Memory && !h.Memory:
			h.St, h.Name, h.Call = st, st.Library, call
		}
		h.Memory = h.Memory || st.Memory
	}
	if h.St == nil {
		return nil
	}
	st := h.St
	h.Early = st.Words["before"] && st.Words["creating"]
	h.Conv = st.Words["convolution"]
	h.Status = statusName.FindString(st.Text)
	if !h.Memory {
		for _, m := range e.Statements() {
			if t := m.Topic("missing", "symbol"); t != nil && (t.Id == "symbol" || t.Name == "" || cudaLibraries.MatchString(t.Name)) {
				return nil
			}
		}
	}
	h.Torch = st.HasAny("calling") || st.Words["torch"] || e.OnTorch()
	h.Bare = st.Words["cupy"] || e.PreallocatesNothing()
	if from, free, total := e.free(); from != nil && (from.Words["usage"] || from.Line > st.Line-3) && from.Words["memory"] &&
		!startWord.MatchString(from.Text) {
		h.From, h.Left, h.Total = from, free, total
	}
	if e.state != nil {
		for _, t := range e.state.Tried {
			for _, name := range slices.Sorted(maps.Keys(t.Env)) {
				value := t.Env[name]
				f, err := strconv.ParseFloat(value, 64)
				part := strings.HasSuffix(name, "MEM_FRACTION") && err == nil && f > 0 && f < 1
				grow := growsOnDemand(name, value)
				switch {
				case t.Helped && (part || grow):
					h.Helped = true
					h.TriedBy = statement.Evidence{Text: "tried: " + name + "=" + value,
						Reading: "it helped: memory was the cause, and not the library"}
				case !t.Helped && (part && f <= .55 || grow):
					h.Tried = true
					h.TriedBy = statement.Evidence{Text: "tried: " + name + "=" + value,
						Reading: "it left the library enough room, and did not help"}
				}
			}
		}
	}
	return h
}

var statusName = needle.MustCompile(`\b(?:CU[A-Z]+|HIP[A-Z]+|ROC[A-Z]+|MIOPEN)_STATUS_\w+`)

var startWord = needle.MustCompile(`(?i)free ?memory: |total ?memory: `)

// growsOnDemand reports whether a setting leaves the library room, because the framework then
// takes memory as it needs it: of JAX's gpu_memory_allocation page and TensorFlow's guide.
func growsOnDemand(name, value string) bool {
	switch name {
	case "XLA_PYTHON_CLIENT_PREALLOCATE":
		return value == "false" || value == "False" || value == "0"
	case "TF_FORCE_GPU_ALLOW_GROWTH":
		return value == "true"
	case "XLA_PYTHON_CLIENT_ALLOCATOR":
		return value == "platform" || value == "cuda_async"
	}
	return false
}

// Quotes is what the lines show.
func (h *Library) Quotes(more ...statement.Evidence) []statement.Evidence {
	reading := h.Name + " could not " + h.what()
	switch {
	case h.Memory:
		reading += ": the status says that memory was missing"
	case strings.HasSuffix(h.Status, "_SUCCESS"): // a check for it, that failed
	case h.Status != "":
		reading += ": " + h.Status + " is printed for missing memory and for a broken library alike"
	}
	q := []statement.Evidence{h.St.Quoted(reading)}
	if h.From != nil {
		q = append(q, h.From.Quoted(Say("%v of %v was free (%d %%)", h.Left, h.Total, percent(h.Left, h.Total))))
	}
	return append(q, more...)
}

func (h *Library) what() string {
	if h.Call {
		return "do its work"
	}
	return "make its handle"
}

// Starved reports whether so little was free that a library cannot start.
func (h *Library) Starved() bool { return h.From != nil && h.Left < FirstLibrary }

// Plenty reports whether memory cannot be what was missing: more is free than the default
// pool leaves, and more than any library takes.
func (h *Library) Plenty() bool {
	return h.From != nil && h.Left > 2*FirstLibrary && float64(h.Left) > (defaultLeft+.05)*float64(h.Total)
}

// scarce reports whether what was free is near to what libraries need.
func (h *Library) scarce() bool { return h.From != nil && !h.Starved() && h.Left < 2*FirstLibrary }

// Starts reports whether it is cuBLAS that could not start, and no call of it that failed.
func (l *Library) Starts() bool { return l.Name == "cuBLAS" && !l.Call }

// Short reports whether memory was missing, as far as the text alone says.
func (h *Library) Short() bool { return !h.Tried && !h.Plenty() && (h.Memory || h.Starved()) }

// Open reports whether the text leaves memory and library open.
func (h *Library) Open() bool {
	return !h.Plenty() && !h.Short() && h.undecided()
}

// undecided reports whether what was free is unknown, or so little that it may have been too little.
func (h *Library) undecided() bool {
	return h.From == nil || h.scarce() || h.Tried || h.Left < h.Total*15/100
}

// Certain is what is sure of the failure.
func (h *Library) Certain() []string {
	c := []string{h.Name + " could not " + h.what()}
	if h.Early {
		c = []string{"memory was refused by the driver, not by " + h.Name}
	}
	if h.From != nil {
		c = append(c, Say("%v of %v was free (%d %%)", h.Left, h.Total, percent(h.Left, h.Total)))
		if h.Starved() {
			c = append(c, fmt.Sprintf("less was free than the %s that cuDNN takes with its first convolution",
				Human(FirstLibrary)))
		}
	}
	return c
}

// OwnPool explains what is free, or that little can be, by the program's own pool, where its
// setting or its own word shows how large that is.
func (e *Case) OwnPool(h *Library) (statement.Evidence, bool) {
	for _, name := range []string{newFraction, oldFraction} {
		f, err := strconv.ParseFloat(e.Env[name], 64)
		if err != nil || !(f > 0 && f <= 1) {
			continue
		}
		q := statement.Evidence{Text: "process.env: " + name + "=" + e.Env[name]}
		if seen, ok := e.envFrom[name]; ok {
			q = seen
		}
		if q.Reading = e.poolLeaves(h, uint64(f*float64(h.Total))); q.Reading != "" {
			return q, true
		}
	}
	for _, st := range e.Statements() {
		if t := st.Topic("announced"); t != nil {
			if reading := e.poolLeaves(h, statement.SizeOf(t.Name)); reading != "" {
				return st.Quoted(reading), true
			}
		}
	}
	return statement.Evidence{}, false
}

// poolLeaves is what a pool of these bytes shows of a GPU: that it and a context leave what was
// free, or, where what was free is not told, nothing for a library. A pool of two thirds of the
// GPU is what has the rest, whatever a desktop takes beside it.
func (e *Case) poolLeaves(h *Library, pool uint64) string {
	if h.From == nil {
		if total := e.Total().Bytes; pool > 0 && pool <= total && total-pool < 2*FirstLibrary {
			return Say("%v of %v is the program's own pool; what it leaves is too little for a context and a library",
				pool, total)
		}
		return ""
	}
	if pool == 0 || pool+h.Left > h.Total+statement.Mib {
		return ""
	}
	if rest := Less(h.Total, pool+h.Left); rest >= ContextMost && (rest > pool/4 || pool < h.Total*2/3) {
		return ""
	}
	return Say("%v of %v is the program's own pool; that and a context leave what was free", pool, h.Total)
}

// A Mismatch is a library that is missing, or of another version.
type Mismatch struct {
	St         *statement.Statement
	Name, Said string
}

// Mismatch is the first text that names one, and nil.
func (e *Case) Mismatch() *Mismatch {
	for _, st := range e.Statements() {
		t := st.Topic("missing", "symbol", "version", "image")
		if t == nil || st.Topic("cubin") != nil {
			continue
		}
		switch t.Id {
		case "version":
			said := "the library that is loaded is not the one that the program was built for"
			if have, want, ok := strings.Cut(t.Value, " "); ok {
				said += ": " + have + " is loaded, and " + want + " is wanted"
			}
			return &Mismatch{st, "a library of another version", said}
		case "image":
			return &Mismatch{st, "no code for this GPU", "the build has no code that this GPU can run"}
		case "symbol":
			return &Mismatch{st, "a symbol is missing",
				"the loaded library lacks a symbol that the program needs: it is of another version"}
		}
		if needed := t.Name == "" || cudaLibraries.MatchString(t.Name); needed && !e.Fatal() {
			return &Mismatch{st, "a library is missing",
				cmp.Or(t.Name, "cuDNN") + " is not where the loader looks; no amount of memory starts it"}
		}
	}
	return nil
}
