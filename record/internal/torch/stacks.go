package torch

// The sites of a snapshot, made of its stacks.

import (
	"strings"

	"gpumem/record/internal/tape"
)

// stacks makes sites of PyTorch frames. Frames and lists of frames are
// shared in the pickle, so each is looked at once.
type stacks struct {
	b      *tape.Builder
	byDict map[*dict]frame
	byList map[*list]uint32
}

type frame struct {
	number uint32
	python bool
	noise  bool
	cublas bool // PyTorch makes a workspace for cuBLAS
}

func newStacks(b *tape.Builder) *stacks {
	return &stacks{b: b, byDict: make(map[*dict]frame), byList: make(map[*list]uint32)}
}

// site returns the number for a value that should be a list of frames,
// innermost first; 0 if it is not, or is empty.
//
// A stack with Python frames keeps only those: what lies between and below them
// is the interpreter and the dispatcher. But a workspace for cuBLAS, which no line of Python asks for,
// keeps the frame that says so. A stack without (the backward pass runs
// in C++ threads) keeps everything but the allocator's own frames at its top.
func (m *stacks) site(v any) uint32 {
	l, ok := v.(*list)
	if !ok || len(l.items) == 0 {
		return 0
	}
	if s, ok := m.byList[l]; ok {
		return s
	}
	var python, other []uint32
	hasPython := false
	for _, it := range l.items {
		d, ok := it.(*dict)
		if !ok {
			continue
		}
		f := m.frame(d)
		hasPython = hasPython || f.python
		switch {
		case f.python && len(python) < tape.MaxFrames, f.cublas && len(python) == 0:
			python = append(python, f.number)
		case !f.python && len(other) < tape.MaxFrames && (!f.noise || len(other) > 0):
			other = append(other, f.number)
		}
	}
	if hasPython {
		other = python
	}
	s := m.b.Stack(other)
	m.byList[l] = s
	return s
}

// frame reads {'name', 'filename', 'line'}; what is missing is left out.
func (m *stacks) frame(d *dict) frame {
	if f, ok := m.byDict[d]; ok {
		return f
	}
	name := stringField(d, "name")
	file := stringField(d, "filename")
	v, _ := d.get("line")
	line, _ := v.(int64)
	f := frame{
		number: m.b.Frame(name, file, line),
		python: isPython(file),
		noise:  isNoise(name),
		cublas: isWorkspace(name),
	}
	m.byDict[d] = f
	return f
}

// isPython: a Python source file, or code that Python made itself, such as
// "<frozen runpy>" and "<eval_with_key>.12".
func isPython(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<")
}

// isWorkspace: the functions of CublasHandlePool.cpp that make workspaces, from PyTorch 1.11 on.
func isWorkspace(name string) bool {
	return strings.Contains(name, "getCurrentCUDABlasHandle") || strings.Contains(name, "getCUDABlasLtWorkspace")
}

// isNoise: frames of unwinding the stack and of the caching allocator, which
// are on top of every C++ stack. The prefixes are those of PyTorch 2.x.
func isNoise(name string) bool {
	for _, prefix := range []string{
		"torch::unwind::",
		"torch::CapturedTraceback::",
		"torch::cuda::(anonymous namespace)::gather",
		"c10::cuda::",
		"c10::CachingAllocator::",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
