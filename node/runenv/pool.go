// The environment of a program whose memory the driver library serves from a pool: the
// library in the linker's way, what it reads, and the frameworks sent to the driver for
// each block. No framework has a limit then. The library counts every byte against the
// lease, for all processes together.

package runenv

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
	"gpumem/policy/torchconf"
	"gpumem/size"
)

// Pool describes the driver library and the pool that it makes.
type Pool struct {
	Name   string // of the policy, such as "elastic"
	Folder string // the library's, absolute
	Driver string // the real driver's library, absolute
	NVML   string // the real NVML, absolute; "" if there is none

	Lend  time.Duration // without work after which a process lends its memory; 0: it lends nothing
	Turns time.Duration // of a turn, or ledger.AutoQuantum; 0: there are none
	// LendPinned keeps what a process lends in pinned memory of the host, which it does not give back.
	LendPinned bool
}

// EnvPool is the variable with the name of the pool that a program's memory is served
// from; "" and "off" mean none.
const EnvPool = "GPUMEM_POOL"

// EnvLedger is the variable with the ledgers of the leases, one for each GPU, with
// LedgerSeparator between.
const (
	EnvLedger       = ledgerVar
	LedgerSeparator = ":"
)

// EnvParts is the variable with the parts of the leases that a program is in, see
// ledger.FormatParts, in the order of EnvLedger.
const EnvParts = "GPUMEM_LEDGER_PARTS"

// EnvOutside is the variable with the bytes that a process is taken to hold outside of its
// pool, and EnvOff the one that has the library pass every call on.
const (
	EnvOutside = outsideVar
	EnvOff     = offVar
)

// What the driver library reads, and what the linker does.
const (
	libraryVar = "GPUMEM_LIB"
	policyVar  = "GPUMEM_POLICY"
	driverVar  = "GPUMEM_LIBCUDA"
	nvmlVar    = "GPUMEM_LIBNVML"
	ledgerVar  = "GPUMEM_LEDGER"
	outsideVar = "GPUMEM_OUTSIDE"
	contextVar = "GPUMEM_CONTEXT"
	freesVar   = "GPUMEM_FREES"
	offVar     = "GPUMEM_OFF"
	lendVar    = "GPUMEM_LEND"
	turnsVar   = "GPUMEM_TURNS"
	pinnedVar  = "GPUMEM_LEND_PINNED"
	searchVar  = "LD_LIBRARY_PATH"

	// The driver's stream-ordered allocator in the words of each framework.
	jaxAsync                 = "cuda_async"
	tensorflowAsync          = "cuda_malloc_async"
	torchBackend, torchAsync = "backend", "cudaMallocAsync"
)

// noPool removes the library of a lease around this one, and what was set for it.
func (e *editor) noPool() {
	if !e.has(EnvPool) {
		return
	}
	const why = "of another lease"
	if folder := e.get(libraryVar); folder != "" {
		if rest := without(e.get(searchVar), folder); rest != "" {
			e.set(searchVar, rest, "without the pool library of another lease")
		} else {
			e.unset(searchVar, why)
		}
	}
	for _, name := range []string{EnvPool, policyVar, libraryVar, driverVar, nvmlVar, ledgerVar, EnvParts, outsideVar, contextVar, freesVar, lendVar, turnsVar, pinnedVar} {
		e.unset(name, why)
	}
	for _, line := range []string{
		allocatorVar + "=" + jaxAsync, tfAllocatorVar + "=" + tensorflowAsync,
		torchLists[0] + "=" + torchBackend + ":" + torchAsync, torchLists[1] + "=" + torchBackend + ":" + torchAsync,
	} {
		if name, value, _ := strings.Cut(line, "="); e.get(name) == value {
			e.unset(name, "for the pool library of another lease")
		}
	}
}

// without removes a folder from the value of LD_LIBRARY_PATH.
func without(value, folder string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(value, ":"), func(f string) bool { return f == folder }), ":")
}

// pool sets what the library and the frameworks read.
func (e *editor) pool(lim Limits, command []string) error {
	p := lim.Pool
	const stale = "of another lease: the pool library counts all of it"
	for _, name := range []string{hookLimitVar, hookFractionVar, hookTorchVar} {
		e.unset(name, stale)
	}
	if !lim.CPUTensorFlow {
		e.unset(hookCPUVar, stale)
	}
	search := p.Folder
	if old := without(e.get(searchVar), p.Folder); old != "" {
		search += ":" + old
	}
	e.set(searchVar, search, "the folder of the pool library, which is in the place of libcuda.so.1")
	e.set(EnvPool, p.Name, "the pool that the library serves GPU memory from")
	kind, err := frameworks.Parse(p.Name)
	if err != nil {
		return err
	}
	text, err := json.Marshal(kind)
	if err != nil {
		return fmt.Errorf("--pool %s: %w", p.Name, err)
	}
	e.set(policyVar, string(text), "the same, as the library reads it")
	e.set(libraryVar, p.Folder, "the folder of the pool library, for programs that gpumem run starts in this one")
	e.set(driverVar, p.Driver, "the driver's own library, behind it")
	if p.NVML != "" {
		e.set(nvmlVar, p.NVML, "the real NVML, behind it")
	} else {
		e.unset(nvmlVar, "there is no NVML library")
	}
	if err := e.ledgers(lim); err != nil {
		return err
	}
	e.turns(p)
	var names []string
	found := map[string][]string{} // releases by framework
	for _, f := range packages {
		for _, name := range f.packages {
			found[f.framework] = append(found[f.framework], versionsOf(name, command, e.get)...)
		}
		if len(found[f.framework]) > 0 {
			names = append(names, f.framework)
		}
	}
	if err := e.outside(lim, names); err != nil {
		return err
	}
	if off := e.get(offVar); off != "" && off != "0" {
		e.keep(offVar, "the pool library forwards every call to the driver: nothing is served from the pool, and the lease is not enforced")
	}
	e.jaxPool(found["jax"])
	e.frees(names)
	e.tensorflowPool(lim, found["tensorflow"])
	e.torchPool(found["pytorch"])
	e.gomlxPool()
	e.recordPool(lim)
	return nil
}

// packages are the Python packages of each framework, as their folders have them.
var packages = []struct {
	framework string
	packages  []string
}{
	{"jax", []string{"jax"}},
	{"tensorflow", []string{"tensorflow", "tensorflow_gpu", "tf_nightly"}},
	{"pytorch", []string{"torch"}},
	{"cupy", []string{"cupy", "cupy_cuda11x", "cupy_cuda12x", "cupy_cuda13x"}},
}

// ledgers names the files that count the lease's bytes, and the parts of the leases that
// the program is: its own, inside those of the program around it.
func (e *editor) ledgers(lim Limits) error {
	outer := map[string][]ledger.Part{}
	around, err := ledger.ParseParts(e.get(EnvParts))
	if err != nil {
		return fmt.Errorf("%s: %w", EnvParts, err)
	}
	for i, path := range strings.Split(e.get(ledgerVar), LedgerSeparator) {
		if i < len(around) {
			outer[path] = around[i]
		}
	}
	var paths []string
	var parts [][]ledger.Part
	any := false
	for _, l := range lim.Leases {
		if !filepath.IsAbs(l.Ledger) || strings.Contains(l.Ledger, LedgerSeparator) {
			return fmt.Errorf("GPU %d: ledger %q: want an absolute path without %q; set GPUMEM_RUN_DIR to another folder", l.Ordinal, l.Ledger, LedgerSeparator)
		}
		paths = append(paths, l.Ledger)
		in := outer[l.Ledger]
		for _, own := range []ledger.Part{{ID: l.TurnsPart, Limit: max(l.Bytes, l.Within)}, {ID: l.Part, Limit: l.Bytes}} {
			isThere := func(p ledger.Part) bool { return p.ID == own.ID }
			if own.ID == 0 || slices.ContainsFunc(in, isThere) {
				continue
			}
			if in = append(slices.Clip(in), own); len(in) > ledger.MaxParts {
				return fmt.Errorf("GPU %d: %d runs inside a lease, one in the other, are too many; start this one outside of the last", l.Ordinal, len(in))
			}
		}
		parts = append(parts, in)
		any = any || len(in) > 0
	}
	if any {
		e.set(EnvParts, ledger.FormatParts(parts), "the part of the lease that all processes of the program have together, as each ledger counts it")
	} else {
		e.unset(EnvParts, "of another lease")
	}
	e.set(ledgerVar, strings.Join(paths, LedgerSeparator), "what all processes of the lease hold together is counted there, of each GPU")
	return nil
}

// outside sets what one process holds outside of the pool: as measured in earlier runs
// of the program, else by the table for the largest of the frameworks that it may import.
func (e *editor) outside(lim Limits, names []string) error {
	why := "held by each process outside of the pool (CUDA context, kernels, libraries), "
	var measured []string
	for _, l := range lim.Leases {
		for _, f := range lim.Measured {
			if f.GPU == l.GPU && !slices.Contains(measured, f.Framework) {
				measured = append(measured, f.Framework)
			}
		}
	}
	switch {
	case lim.Overhead != nil:
		why += "as given (--overhead)"
	case len(measured) > 0:
		names = measured
		why += "as measured in an earlier run (gpumem ps --overhead)"
	case len(names) > 0:
		why += "estimated for " + strings.Join(names, ", ")
	default:
		names = []string{"cuda"}
		why += "estimated"
	}
	var most, context uint64
	for _, l := range lim.Leases {
		var here uint64
		for _, name := range names {
			here = max(here, lim.outside(name, l))
		}
		if lim.Overhead != nil {
			here = *lim.Overhead
		}
		if here+leastPool > l.Bytes {
			return &TooSmallError{l.Ordinal, l.Bytes, here + leastPool, here}
		}
		most, context = max(most, here), max(context, overhead.Context(l.gpu()))
	}
	e.set(outsideVar, strconv.FormatUint(most, 10), why)
	e.set(contextVar, strconv.FormatUint(min(context, most), 10), "held by each further context that a process makes")
	return nil
}

// TooSmallError is the error of a lease that leaves no pool beside what a process holds
// outside of it. All sizes are bytes.
type TooSmallError struct {
	Ordinal int    // of the GPU
	Bytes   uint64 // of the lease
	Least   uint64 // that a lease needs
	Outside uint64 // of that, for the CUDA context and libraries of one process
}

func (e *TooSmallError) Error() string {
	return fmt.Sprintf("GPU %d: the lease of %s is too small for a pool, which needs at least %s, %s of that outside of it (CUDA context, libraries); take a larger --mem, or set that part with --overhead",
		e.Ordinal, size.Format(e.Bytes), size.Format(e.Least), size.Format(e.Outside))
}

// reading returns what a release makes of the environment, with a variable set; ok is
// false if the release is unknown.
func (e *editor) reading(name, version, variable, value string) (a explain.Answer, ok bool) {
	env := append(slices.DeleteFunc(e.lines(), func(l string) bool { return strings.HasPrefix(l, variable+"=") }), variable+"="+value)
	a, err := explain.Environment(policy.Environ(env), frameworks.Release{Name: name, Version: version}, policy.Device{})
	return a, err == nil
}

// turns sets after how long a process lends its memory, and how long its turns last. What a run
// around this one has set holds.
func (e *editor) turns(p *Pool) {
	if p.Lend > 0 {
		e.set(lendVar, strconv.FormatInt(int64(p.Lend), 10), "nanoseconds without work after which a process lends its memory")
	}
	switch {
	case p.Turns == ledger.AutoQuantum:
		e.set(turnsVar, "auto", "its turns last ten times what a way out and in takes")
	case p.Turns > 0:
		e.set(turnsVar, strconv.FormatInt(int64(p.Turns), 10), "nanoseconds that its turns last")
	}
	if p.LendPinned {
		e.set(pinnedVar, "1", "what leaves the GPU lies in pinned memory of the host, which the process keeps")
	}
}

// jaxPool sends JAX to the driver's stream-ordered allocator, and has it allocate on
// demand.
func (e *editor) jaxPool(releases []string) {
	switch value := e.get(allocatorVar); {
	case value != "" && value != jaxAsync:
		e.keep(allocatorVar, "as the user has it: JAX's own pool takes large pieces from the pool library, if it is one")
	default:
		choice, why := jaxAsync, "JAX takes each block by cuMemAllocFromPoolAsync, which the pool library serves, in stream order"
		for _, v := range releases {
			if a, ok := e.reading("jax", v, allocatorVar, jaxAsync); ok && a.Allocator != jaxAsync && len(a.Errors) > 0 {
				choice, why = "platform", "JAX takes each block by cuMemAlloc, which the pool library serves; JAX "+v+" has no "+jaxAsync
			}
		}
		e.set(allocatorVar, choice, why)
	}
	if strings.Contains(e.get(createVar), "allocator:") {
		e.keep(createVar, "as the user has it: its allocator goes before "+allocatorVar)
	}
	if value := e.get(preallocateVar); value != "" && !slices.Contains([]string{"false", "False", "0"}, value) {
		e.keep(preallocateVar, "as the user has it: JAX takes its fraction of the GPU at its start, which the lease must have")
		return
	}
	e.set(preallocateVar, "false", "JAX allocates on demand: the pool library keeps what is freed")
}

// frees sets the order of frees. They are in stream order only for a program that takes
// memory by XLA alone: XLA frees a buffer when its last use is in the stream, and a
// general program may rely on cuMemFree to wait for the GPU.
func (e *editor) frees(names []string) {
	switch {
	case e.get(freesVar) != "":
		e.keep(freesVar, "as the user has it")
	case slices.Equal(names, []string{"jax"}) && e.get(allocatorVar) == "platform":
		e.set(freesVar, "stream", "XLA frees in stream order, and the program's Python has no other framework: cuMemFree need not wait for the GPU")
	}
}

// tensorflowPool sends TensorFlow to the driver's stream-ordered allocator, and has it
// allocate on demand.
func (e *editor) tensorflowPool(lim Limits, releases []string) {
	if lim.CPUTensorFlow {
		e.set(hookCPUVar, "1", "the hook hides the GPUs from TensorFlow")
		return
	}
	known := true
	for _, v := range releases {
		if a, ok := e.reading("tensorflow", v, tfAllocatorVar, tensorflowAsync); ok && a.Allocator != "cuda_async" {
			known = false
		}
	}
	switch value := e.get(tfAllocatorVar); {
	case value != "" && value != tensorflowAsync:
		e.keep(tfAllocatorVar, "as the user has it: TensorFlow's own pool takes large pieces from the pool library, if it is one")
	case known:
		e.set(tfAllocatorVar, tensorflowAsync, "TensorFlow takes each block by cuMemAllocFromPoolAsync, which the pool library serves, in stream order")
	}
	if value := e.get(tfGrowthVar); value != "" && value != "true" {
		e.keep(tfGrowthVar, "as the user has it: TensorFlow takes its fraction of the GPU at its start, which the lease must have")
		return
	}
	e.set(tfGrowthVar, "true", "TensorFlow allocates on demand: the pool library keeps what is freed")
}

var torchBackendIn = regexp.MustCompile(`(?:^|,)\s*backend\s*:\s*([A-Za-z]+)`)

// torchPool sends PyTorch to the driver's stream-ordered allocator.
func (e *editor) torchPool(releases []string) {
	for _, name := range torchLists {
		if m := torchBackendIn.FindStringSubmatch(e.get(name)); m != nil && m[1] != torchAsync {
			e.keep(name, "as the user has it: PyTorch's own pool takes segments from the pool library")
			return
		}
	}
	if len(releases) == 0 { // each release that knows the setting reads it there
		releases = []string{"2.0.0"}
	}
	name, text := "", ""
	for _, v := range releases {
		n, t, err := torchconf.Merge(e.environment(), v, torchBackend, torchAsync)
		if err != nil || name != "" && (n != name || t != text) {
			e.keep(torchLists[0], fmt.Sprintf("left as it is: PyTorch's own pool takes segments from the pool library, since not every release that was found (%s) takes backend:%s with it", strings.Join(releases, ", "), torchAsync))
			return
		}
		name, text = n, t
	}
	e.set(name, text, "PyTorch takes each block by cudaMallocAsync, which the pool library serves, in stream order")
}

// gomlxPool does for GoMLX what jaxPool does for JAX.
func (e *editor) gomlxPool() {
	text := e.get(gomlxVar)
	if !strings.HasPrefix(text, "xla:cuda") {
		return
	}
	for _, option := range []string{"allocator=cuda_async", "preallocate=false"} {
		name, _, _ := strings.Cut(option, "=")
		if !strings.Contains(text, ","+name+"=") {
			text += "," + option
		}
	}
	e.set(gomlxVar, text, "as for JAX; GoMLX up to 0.26.0 knows no such options, and only logs that")
}

// recordPool has the library record the program's memory.
func (e *editor) recordPool(lim Limits) {
	if lim.Record == "" {
		e.unset(hookRecordVar, "of another lease")
		return
	}
	e.set(hookRecordVar, lim.Record, "the pool library writes every allocation and free there; each further process has a separate file, with its number behind the name")
}
