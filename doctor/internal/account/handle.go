package account

// A library that could not start. Its words are the same whether memory was missing or the
// installation is broken; what is free, who is on the GPU and what was tried tell them apart.

import (
	"fmt"
	"gpumem/doctor/internal/statement"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A handle is a library's failure, read.
type handle struct {
	st      *statement.Statement
	library string              // cuDNN, cuBLAS, ...
	memory  bool                // the status can only be memory
	call    bool                // a call failed, not the making of a handle
	early   bool                // memory was refused before the library asked for any
	conv    bool                // no algorithm for a convolution was found
	status  string              // CUDNN_STATUS_..., empty if none is named
	From    *statement.Statement // the driver's reading, nil if there is none
	Left    uint64              // free, by it
	Total   uint64
	tried   bool // a smaller pool was tried and did not help
	helped  bool // a setting of the pool was tried and helped
	TriedBy statement.Evidence
	torch   bool
	bare    bool // its framework preallocates nothing
}

// preallocateNothing are frameworks whose pools grow as needed.
var preallocateNothing = []string{"cupy", "rmm", "numba", "julia", "xgboost", "onnxruntime", "mxnet", "tensorrt", "llama.cpp", "comfyui", "rust"}

// handle is the library's failure that the log ends with, and nil.
func (e *Facts) handle() *handle {
	h := &handle{}
	for _, st := range e.statements.all() {
		if st.Library == "" || st.Mild || st.Layer == statement.LayerModule || st.Layer == statement.LayerNCCL || st.Topic("hami", "other", "cleared") != nil {
			continue
		}
		call := !st.Handle
		// The making of a handle tells more than the calls that fail after it.
		switch {
		case h.st == nil, h.call && !call, call == h.call && st.Memory && !h.memory:
			h.st, h.library, h.call = st, st.Library, call
		}
		h.memory = h.memory || st.Memory
	}
	if h.st == nil {
		return nil
	}
	st := h.st
	h.early = st.Words["before"] && st.Words["creating"]
	h.conv = st.Words["convolution"]
	h.status = statusName.FindString(st.Text)
	if !h.memory {
		for _, m := range e.statements.all() {
			if t := m.Topic("missing", "symbol"); t != nil && (t.Id == "symbol" || t.Name == "" || cudaLibraries.MatchString(t.Name)) {
				return nil
			}
		}
	}
	h.torch = st.HasAny("calling") || st.Words["torch"] || e.OnTorch()
	h.bare = st.Words["cupy"] || e.Uses("cupy") || !e.Uses("jax", "tensorflow") && e.Uses(preallocateNothing...)
	if from, free, total := e.free(); from != nil && (from.Words["usage"] || from.Line > st.Line-3) && from.Words["memory"] && !startWord.MatchString(from.Text) {
		h.From, h.Left, h.Total = from, free, total
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
					h.TriedBy = statement.Evidence{Text: "tried: " + name + "=" + value, Reading: "it helped: memory was the cause, and not the library"}
				case !t.Helped && (part && f <= .55 || grow):
					h.tried = true
					h.TriedBy = statement.Evidence{Text: "tried: " + name + "=" + value, Reading: "it left the library room enough, and did not help"}
				}
			}
		}
	}
	return h
}

var statusName = regexp.MustCompile(`\b(?:CU[A-Z]+|HIP[A-Z]+|ROC[A-Z]+|MIOPEN)_STATUS_\w+`)

var startWord = regexp.MustCompile(`(?i)free ?memory: |total ?memory: `)

// quotes is what the lines show.
func (h *handle) quotes(more ...statement.Evidence) []statement.Evidence {
	reading := h.library + " could not " + h.what()
	switch {
	case h.memory:
		reading += ": its status is that of memory"
	case h.status != "":
		reading += ": " + h.status + " is printed for missing memory and for a broken library alike"
	}
	q := []statement.Evidence{h.st.Quoted(reading)}
	if h.From != nil {
		q = append(q, h.From.Quoted(fmt.Sprintf("%s of %s was free (%d %%)", Human(h.Left), Human(h.Total), percent(h.Left, h.Total))))
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
func (h *handle) starved() bool { return h.From != nil && h.Left < FirstLibrary }

// plenty reports whether memory cannot be what was missing: more is free than the default
// pool leaves, and more than any library takes.
func (h *handle) plenty() bool {
	return h.From != nil && h.Left > 2*FirstLibrary && float64(h.Left) > (defaultLeft+.05)*float64(h.Total)
}

// scarce reports whether what was free is near to what libraries need.
func (h *handle) scarce() bool { return h.From != nil && !h.starved() && h.Left < 2*FirstLibrary }

// short reports whether memory was missing, as far as the text alone says.
func (h *handle) short() bool { return !h.tried && !h.plenty() && (h.memory || h.starved()) }

// open reports whether the text leaves memory and library open.
func (h *handle) open() bool {
	return !h.plenty() && !h.short() && (h.From == nil || h.scarce() || h.tried)
}

// certain is what is sure of the failure.
func (h *handle) certain() []string {
	c := []string{h.library + " could not " + h.what()}
	if h.early {
		c = []string{"memory was refused by the driver, not by " + h.library}
	}
	if h.From != nil {
		c = append(c, fmt.Sprintf("%s of %s was free (%d %%)", Human(h.Left), Human(h.Total), percent(h.Left, h.Total)))
		if h.starved() {
			c = append(c, fmt.Sprintf("less was free than the %s that cuDNN takes with its first convolution", Human(FirstLibrary)))
		}
	}
	return c
}

// ownPool explains what is free by the program's own setting, where the log or the state
// shows one.
func (e *Facts) ownPool(h *handle) (statement.Evidence, bool) {
	if h.From == nil {
		return statement.Evidence{}, false
	}
	for _, name := range []string{newFraction, oldFraction} {
		f, err := strconv.ParseFloat(e.Env[name], 64)
		if err != nil || !(f > 0 && f <= 1) {
			continue
		}
		pool := uint64(f * float64(h.Total))
		if pool+h.Left <= h.Total+statement.Mib && h.Total-pool-h.Left < ContextMost {
			q := statement.Evidence{Text: "process.env: " + name + "=" + e.Env[name]}
			if seen, ok := e.envFrom[name]; ok {
				q = seen
			}
			q.Reading = fmt.Sprintf("%s of %s is the program's own pool; that and a context leave what was free", Human(pool), Human(h.Total))
			return q, true
		}
	}
	for _, st := range e.statements.all() {
		if t := st.Topic("announced"); t != nil {
			if pool := statement.SizeOf(t.Name); pool+h.Left <= h.Total+statement.Mib && h.Total-pool-h.Left < ContextMost {
				return st.Quoted(fmt.Sprintf("%s of %s is the program's own pool; that and a context leave what was free", Human(pool), Human(h.Total))), true
			}
		}
	}
	return statement.Evidence{}, false
}

// decideLibrary is the name of the command that tells memory from a broken library.
func (e *Facts) decideLibrary(h *handle) string {
	switch {
	case e.OnTensorFlow():
		return "growth"
	case h.torch:
		return "versions"
	case h.bare:
		return "copies"
	case h.tried && h.library == "cuDNN":
		return "cudnn"
	case h.tried:
		return "libraries"
	case h.library == "cuDNN" && h.call:
		return "fraction"
	}
	return "prealloc"
}
