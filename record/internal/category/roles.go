package category

// What the program does at an event, as a stack says it. The frames are PyTorch's own: every
// module is called by Module._call_impl, every optimizer's step goes through a wrapper in
// optimizer.py, and the backward pass runs in the engine's threads (torch 1.13 to 2.11), so
// it does not matter which model, optimizer or trainer was used.

import (
	"strings"

	"gpumem/record/internal/stacks"
)

// A role is what the program does.
type role uint8

const (
	unsaid   role = iota // the stack does not say, or there is none
	plain                // code of the program, outside of what follows
	load                 // a module's memory is made or moved
	forward              // a module is called
	backward             // the autograd engine runs
	again                // a module is called by the engine: what was forgotten is computed again
	copied               // an object is copied whole, such as a model for an average of it
	gather               // shards of parameters become whole
	bucket               // the memory of many gradients is made
	update               // the optimizer's step, or its construction
)

// engineSpan is how the spans begin in which PyTorch's profiler has an operation of the backward
// pass. In its traces the stack of the forward pass follows.
const engineSpan = "autograd::engine::evaluate_function: "

// roleOf returns the role of a stack. The innermost frame that says something decides.
func roleOf(stack string) role {
	if stack == "" {
		return unsaid
	}
	if !isPython(stack) {
		if strings.Contains(stack, "autograd::Engine") || strings.Contains(stack, "PythonEngine") || strings.Contains(stack, engineSpan) {
			return backward
		}
		return unsaid
	}
	found := plain
	inner := "" // the function that the frame calls
	for text := range strings.SplitSeq(stack, "\n") {
		f := frameOf(text)
		r := f.role()
		if f.name == "apply" && f.base == "function.py" && inner == "backward" { // of a function of one's own
			r = backward
		}
		switch {
		case r == backward && found == forward:
			return again
		case r != unsaid && found == plain:
			found = r
		}
		if found != plain && found != forward || f.name == "closure" { // an optimizer calls that
			break
		}
		inner = f.name
	}
	return found
}

// A fact is what else a stack says.
type fact struct {
	said   bool // there is one
	own    bool // the innermost frame is of the program's own files
	byHand bool // the program's own code made it within an optimizer's step: an optimizer or a hook of its own
	cublas bool // PyTorch made it as a workspace of cuBLAS
}

func factsOf(stack string) fact {
	f := fact{
		said:   stack != "",
		cublas: strings.Contains(stack, "getCurrentCUDABlasHandle") || strings.Contains(stack, "getCUDABlasLtWorkspace"),
	}
	own := stacks.OwnFrame(stack)
	python := 0
	for text := range strings.SplitSeq(stack, "\n") {
		if !isPython(text) {
			continue
		}
		python++
		if text == own {
			f.own, f.byHand = python == 1, true
			return f
		}
		if frameOf(text).isOptimizer() {
			return f
		}
	}
	return f
}

// isPython reports whether a stack or a frame has one of Python: of a file, or of code without one.
func isPython(stack string) bool {
	return strings.Contains(stack, ".py:") || strings.Contains(stack, " (<")
}

// A frame is a function, its file with "/" between directories, and that without them.
type frame struct{ name, file, base string }

func frameOf(text string) frame {
	name, file, _ := strings.Cut(text, " (")
	file = strings.ReplaceAll(file, `\`, "/")
	base, _, _ := strings.Cut(file[strings.LastIndexByte(file, '/')+1:], ":")
	return frame{name, file, base}
}

// role returns what one frame says. A recording that was saved without directories has
// the names of files alone.
func (f frame) role() role {
	switch {
	case f.name == "_call_impl" && f.base == "module.py":
		return forward
	case f.isEngine():
		return backward
	case f.name == "deepcopy" && f.base == "copy.py":
		return copied
	case f.isOptimizer():
		return update
	case f.base == "distributed.py" && (f.name == "_pre_forward" || f.name == "_ddp_init_helper"):
		return bucket
	case f.isSharding():
		return gather
	case f.name == "_apply" && f.base == "module.py", f.name == "__init__" && strings.Contains(f.file, "/torch/nn/modules/"):
		return load
	}
	return unsaid
}

// isEngine reports whether a frame calls the autograd engine, or is called by it.
func (f frame) isEngine() bool {
	switch {
	case f.name == "_engine_run_backward", f.name == "unpack_hook", strings.HasPrefix(f.name, engineSpan):
		return true
	}
	return f.name == "backward" && (f.base == "_tensor.py" || f.base == "checkpoint.py" || strings.Contains(f.file, "/torch/autograd/"))
}

// isOptimizer reports whether a frame is of an optimizer: every step goes through PyTorch's
// wrapper, and optimizers of packages lie in a folder optim.
func (f frame) isOptimizer() bool {
	if f.name == "wrapper" && f.base == "optimizer.py" {
		return true
	}
	if strings.Contains(f.file, "/torch/optim/") || strings.Contains(f.file, "-packages/") && strings.Contains(f.file, "/optim/") {
		return true
	}
	return strings.Contains(f.base, "optim") && (f.name == "step" || f.name == "__init__")
}

// isSharding reports whether a frame makes shards of parameters whole: of FSDP, first and second, or of
// DeepSpeed's ZeRO.
func (f frame) isSharding() bool {
	return strings.Contains(f.file, "/torch/distributed/fsdp/") || strings.HasPrefix(f.base, "_fsdp_") ||
		f.base == "_flat_param.py" || f.base == "partition_parameters.py"
}
