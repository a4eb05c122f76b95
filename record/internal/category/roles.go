package category

// What the program does at an event, as a stack says it. The frames are PyTorch's own: every
// module is called by Module._call_impl, every optimizer's step goes through a wrapper in
// optimizer.py, and the backward pass runs in the engine's threads (torch 1.13 to 2.11), so
// it does not matter which model, optimizer or trainer was used.

import (
	"strings"
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
	if !strings.Contains(stack, ".py:") && !strings.Contains(stack, " (<") {
		if strings.Contains(stack, "autograd::Engine") || strings.Contains(stack, "PythonEngine") || strings.Contains(stack, engineSpan) {
			return backward
		}
		return unsaid
	}
	found := plain
	for frame := range strings.SplitSeq(stack, "\n") {
		switch r := roleOfFrame(frame); {
		case r == unsaid:
		case r == backward && found == forward:
			return again
		case found == plain:
			found = r
		}
		if found != plain && found != forward || strings.HasPrefix(frame, "closure (") {
			break
		}
	}
	return found
}

// roleOfFrame returns what one frame says.
func roleOfFrame(frame string) role {
	name, file, _ := strings.Cut(frame, " (")
	file = strings.ReplaceAll(file, `\`, "/")
	base, _, _ := strings.Cut(file[strings.LastIndexByte(file, '/')+1:], ":")
	switch {
	case name == "_call_impl" && base == "module.py":
		return forward
	case name == "_engine_run_backward", name == "backward", name == "unpack_hook", strings.HasPrefix(name, engineSpan):
		return backward
	case name == "deepcopy" && base == "copy.py":
		return copied
	case name == "wrapper" && base == "optimizer.py", strings.Contains(file, "/optim/"), strings.Contains(base, "optim") && (name == "step" || name == "__init__"):
		return update
	case base == "distributed.py" && (name == "_pre_forward" || name == "_ddp_init_helper"):
		return bucket
	case strings.Contains(file, "/fsdp/"), strings.Contains(base, "_fsdp"), base == "_flat_param.py", base == "partition_parameters.py":
		return gather
	case name == "_apply" && base == "module.py", name == "__init__" && strings.Contains(file, "/torch/nn/modules/"):
		return load
	}
	return unsaid
}
