// What the hook does beside limits. The recording of a program's memory: PyTorch's by the hook,
// that of the pools of JAX and TensorFlow by a variable. And plans for less memory in JAX.

package runenv

import (
	"fmt"
	"path/filepath"
	"strings"
)

const (
	hookRecordVar = "GPUMEM_RECORD" // see node/internal/hook/gpumem_record.py
	hookRematVar  = "GPUMEM_REMAT"  // see node/internal/hook/gpumem_remat.py
	commandVar    = "GPUMEM_COMMAND"

	// The BFC allocator of XLA and TensorFlow writes to FILE_POOL.MICROSECONDS
	// what it holds each time that it cannot serve a request (TensorFlow since 2.1,
	// JAX's plugin in all releases on PyPI, 0.4.23 to 0.12.0.1).
	dumpVar = "TF_BFC_MEMORY_DUMP"
)

// record has the program's memory recorded.
func (e *editor) record(lim Limits) error {
	if lim.Record == "" {
		e.unset(hookRecordVar, "of another lease")
		return nil
	}
	if !filepath.IsAbs(lim.Record) || strings.ContainsRune(lim.Record, 0) {
		return fmt.Errorf("cannot record to %q: want an absolute path, for the program may work in another folder", lim.Record)
	}
	if e.get(dumpVar) != "" {
		e.keep(dumpVar, "as the user has it: JAX's and TensorFlow's pools write what they hold there when they are out of memory")
	} else {
		e.set(dumpVar, lim.Record, "JAX's and TensorFlow's pools write what they hold to a file of this name with _POOL.TIME behind it whenever they are out of memory")
	}
	if lim.Hook == "" {
		e.keep(hookRecordVar, "there is no hook to read it: PyTorch is not recorded")
		return nil
	}
	e.set(hookRecordVar, lim.Record, "the hook has PyTorch record its events, and writes them there when memory runs out and when the program ends")
	return nil
}

// remat has JAX compile with plans for less memory.
func (e *editor) remat(lim Limits) {
	if lim.Remat == "" {
		e.unset(hookRematVar, "of another lease")
		return
	}
	e.set(hookRematVar, lim.Remat, "the hook has JAX compile each function with a plan of gpumem remat for this limit")
	e.set(commandVar, lim.Command, "what makes the plans")
}
