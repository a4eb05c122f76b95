// Package runenv makes the environment of a program in a lease, so that an unchanged
// program stays within it: environment variables, and a folder on PYTHONPATH whose
// Python files limit the frameworks that no variable can limit, see package hook.
//
// It starts nothing and reads no device. Which framework a program uses is not known
// before it runs, so the environment has what each of them needs:
//
//   - JAX: one fraction of the GPU, under the one name that all releases read;
//   - TensorFlow: growth by a variable, and a limit by the hook;
//   - PyTorch: a fraction by the hook, and in its list of settings where the
//     release that is installed knows it there;
//   - CuPy: a limit in bytes;
//   - GoMLX: options in its backend's text, where the user names a CUDA backend.
//
// Each of them may fill the lease. A program that uses two of them at once can
// exceed it: for JAX beside TensorFlow there is [Limits].CPUTensorFlow. Where the driver
// library serves the memory, see [Pool], it counts all of them together instead.
//
// A lease counts everything that the program holds, and a framework's limit only
// its pool. So the limit is the lease less what is held outside of the pool, see
// package overhead.
package runenv

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/node/internal/overhead"
	"gpumem/policy"
	"gpumem/size"
)

// Lease describes the program's lease on one GPU.
type Lease struct {
	// Visible is the GPU's name for CUDA_VISIBLE_DEVICES: a UUID ("GPU-...",
	// "MIG-...") or an ordinal as the driver counts. Empty on all leases leaves
	// that variable alone.
	Visible string
	ID      string // of the lease, or of the enclosing one, by which its processes are counted; "" counts none
	Path    string // of the lease's record, for programs that read it; "" for none
	Ledger  string // the file that counts its bytes, see [Limits].Pool; absolute
	Ordinal int    // number of the GPU, for messages
	Bytes   uint64 // of the lease, from 1 to Total
	Within  uint64 // bytes of the enclosing lease of which this is a part; 0: it is no part
	Part    uint64 // identity of the part in the ledger; 0: it is no part
	// TurnsPart is the identity of the lease, or of the enclosing one, in a ledger of several by turns; 0: the
	// ledger is its own.
	TurnsPart uint64
	Total     uint64 // bytes of the GPU, as CUDA reports them
	CCMajor   int    // compute capability, such as 9 of 9.0; 0: not known
	GPU       string // its model and size, by which [Limits].Measured has figures
	// Context is the bytes of a CUDA context on this GPU; 0: by the table of package
	// overhead, or none where the GPU is simulated.
	Context   uint64
	Simulated bool // nothing is held outside of the pool but Context
}

// Limits describes the leases of a program and the settings wanted with them.
type Limits struct {
	Leases    []Lease // at least one, each of another GPU, in the order in which the program is to see them
	Allocator string  // JAX's and GoMLX's: bfc, platform, address, cuda_async, vmm; "" leaves it as it is
	// Growth allocates memory on demand instead of preallocating it. The limit still
	// applies.
	Growth        bool
	CPUTensorFlow bool // TensorFlow keeps off the GPUs
	// Overhead is the memory outside of the pool on each GPU, in bytes, for every
	// framework; nil: as in Measured, else as package overhead estimates it.
	Overhead *uint64
	// Measured is the memory outside of the pool that was measured in earlier runs of the
	// program. Used are figures for the GPU of a lease, by the name [Lease].GPU, and for the
	// releases that the program's Python has.
	Measured []Measured
	// Procs is the number of processes of the program that use a GPU at once; 0
	// means 1. Each gets an equal part of the lease.
	Procs int
	// Copies is the number of programs, each with its own Leases, that are parts of one
	// enclosing lease; 0 means 1.
	Copies int
	// Hook is the folder of the Python hook, see [hook.Install]; "" for none: then
	// TensorFlow has no limit, nor has PyTorch before 2.10.
	Hook string
	// Record is the absolute path of a file to which the program's memory is
	// recorded, see [For]; "" for no recording.
	Record string
	// Remat is the limit with which JAX compiles by plans of gpumem remat: bytes, a part such
	// as 60%, or auto; "" for none. Command is the path of the command gpumem.
	Remat, Command string
	// Pool has the driver library serve the program's memory and enforce the leases.
	// Frameworks are then given no limit; Allocator, Growth and Procs are not used, and
	// Hook for CPUTensorFlow, Record and Remat alone. Nil: no library.
	Pool *Pool
}

// Measured is what a program held outside of its pool in earlier runs, see [overhead.Store].
type Measured = overhead.Figure

// Change describes what was done with one variable of the environment.
type Change struct {
	Name string
	Old  string // value before; "" also if it was not set
	New  string // value now; "" also if it is not set
	Set  bool   // it is set now
	Kept bool   // nothing was changed
	// Remark is set if Why is a remark on a variable that is kept, such as that it
	// defeats the lease. Otherwise a kept variable has the wanted value already.
	Remark bool
	Why    string // one line
}

// String returns the change as a shell would write it.
func (c Change) String() string {
	switch {
	case c.Kept && !c.Set:
		return "# " + c.Name
	case c.Kept:
		return "# " + c.Name + "=" + c.New
	case c.Set:
		return c.Name + "=" + c.New
	}
	return "unset " + c.Name
}

// Environment is the environment of a program in a lease.
type Environment struct {
	Env     []string // complete, each name once, for execve
	Changes []Change // in order
}

// For returns the environment of a program in a lease. env is its environment without
// the lease: lines NAME=value, of which the first of a name counts, as in C and in
// Python. command is the program and its arguments. Its interpreter's folders are
// searched for PyTorch; nothing is run.
//
// Values that the user set are kept if they are stricter than the lease. A value that a
// framework refuses is kept too, so that the framework reports it, with a remark.
//
// Limits.Record has PyTorch's events of the whole run written to that file, through
// the hook, and what a pool of JAX or TensorFlow holds whenever it is out of
// memory to files whose names begin with it and "_".
//
// The error names the part of the limits that makes no sense, or a lease that leaves no
// pool beside the memory outside of it.
func For(env []string, command []string, lim Limits) (Environment, error) {
	if err := lim.check(); err != nil {
		return Environment{}, err
	}
	e := newEditor(env)
	lim.Measured = e.ofInstalled(lim.Measured, command)
	e.visible(lim)
	e.processes(lim)
	if lim.Pool != nil {
		if err := e.pool(lim, command); err != nil {
			return Environment{}, err
		}
		e.remat(lim)
		if lim.CPUTensorFlow || lim.Remat != "" {
			e.hook(lim, command)
		}
		return Environment{Env: e.lines(), Changes: e.changes}, nil
	}
	e.noPool()
	for _, set := range []func(Limits) error{e.jax, e.gomlx, e.tensorflow, func(lim Limits) error { return e.torch(lim, command) }, e.cupy, e.record} {
		if err := set(lim); err != nil {
			return Environment{}, err
		}
	}
	e.remat(lim)
	e.hook(lim, command)
	return Environment{Env: e.lines(), Changes: e.changes}, nil
}

func (lim Limits) check() error {
	if len(lim.Leases) == 0 {
		return fmt.Errorf("limits without a lease; want at least one")
	}
	if lim.Procs < 0 || lim.Procs > maxProcs {
		return fmt.Errorf("%d processes in a lease; want from 1 to %d", lim.Procs, maxProcs)
	}
	seen := map[string]bool{}
	for _, l := range lim.Leases {
		switch {
		case l.Bytes == 0 || l.Bytes > l.Total:
			return fmt.Errorf("GPU %d: a lease of %d bytes on a GPU of %d; want from 1 to all of it", l.Ordinal, l.Bytes, l.Total)
		case strings.ContainsAny(l.Visible, ", \x00"):
			return fmt.Errorf("GPU %d: %q is not one GPU for %s; want a UUID or an ordinal", l.Ordinal, l.Visible, visibleVar)
		case l.Visible != "" && seen[l.Visible]:
			return fmt.Errorf("GPU %d: two leases on %s; want one for each GPU", l.Ordinal, l.Visible)
		case (l.Visible == "") != (lim.Leases[0].Visible == ""):
			return fmt.Errorf("GPU %d: one lease names its GPU for %s and another does not; name all or none", l.Ordinal, visibleVar)
		}
		seen[l.Visible] = true
	}
	return nil
}

// maxProcs is the most processes in a lease: as many as the hook counts.
const maxProcs = 1024

// each returns a process's part of a lease, in bytes.
func (lim Limits) each(l Lease) uint64 { return l.Bytes / uint64(max(lim.Procs, 1)) }

// part names a process's part of a lease.
func (lim Limits) part(l Lease) string {
	if lim.Procs > 1 {
		return fmt.Sprintf("1/%d of the lease of %s, %s,", lim.Procs, size.Format(l.Bytes), size.Format(lim.each(l)))
	}
	return "the lease of " + size.Format(l.Bytes)
}

// outside returns the memory outside of a framework's pool, in bytes.
func (lim Limits) outside(framework string, l Lease) uint64 {
	if lim.Overhead != nil {
		return *lim.Overhead
	}
	if bytes, ok := lim.measured(framework, l); ok {
		return bytes
	}
	return overhead.Of(framework, l.gpu(), len(lim.Leases))
}

// Outside returns the parts of the estimate of what a program with a framework ("jax", "tensorflow",
// "pytorch", "cupy", or "cuda" for any other) holds outside of its pool on each of its gpus GPUs, in bytes:
// "context", "kernels", "cuBLAS", "cuDNN" and "NCCL", those of them that it has. Their sum is what a
// program's first run is given.
func (l Lease) Outside(framework string, gpus int) map[string]uint64 {
	parts := map[string]uint64{}
	for _, p := range overhead.Parts(framework, l.gpu(), gpus) {
		parts[p.What] = p.Bytes
	}
	return parts
}

// measured returns the largest figure of earlier runs with a framework on a lease's GPU.
func (lim Limits) measured(framework string, l Lease) (bytes uint64, ok bool) {
	for _, f := range lim.Measured {
		if f.Framework == framework && f.GPU == l.GPU {
			bytes, ok = max(bytes, f.Bytes), true
		}
	}
	return bytes, ok
}

// ofInstalled returns those figures whose release is installed for the command, where that is
// known.
func (e *editor) ofInstalled(all []Measured, command []string) (list []Measured) {
	installed := map[string][]string{}
	for _, p := range packages {
		for _, name := range p.packages {
			if slices.ContainsFunc(all, func(f Measured) bool { return f.Framework == p.framework }) {
				installed[p.framework] = append(installed[p.framework], versionsOf(name, command, e.get)...)
			}
		}
	}
	for _, f := range all {
		if there := installed[f.Framework]; len(there) == 0 || f.Release == "" || slices.Contains(there, f.Release) {
			list = append(list, f)
		}
	}
	return list
}

// gpu describes the GPU of a lease for package overhead.
func (l Lease) gpu() overhead.GPU {
	return overhead.GPU{Total: l.Total, CCMajor: l.CCMajor, Context: l.Context, Simulated: l.Simulated}
}

// leastPool is the smallest pool that any framework can use: JAX has rounded up to it
// since 0.10.2, and the first device allocation of every framework is as large.
const leastPool = 2 << 20

// pool returns the limit of a framework's pool on one GPU, in bytes.
func (lim Limits) pool(framework string, l Lease) (uint64, error) {
	if room := lim.outside(framework, l); room+leastPool > lim.each(l) {
		outside, remedy := "", "take a larger --mem"
		if room > 0 {
			outside = ", " + size.Format(room) + " of that outside of the pool (CUDA context, libraries)"
			if remedy += ", or set that part with --overhead"; lim.Overhead != nil {
				remedy = "take a larger --mem, or a smaller --overhead"
			}
		}
		return 0, fmt.Errorf("GPU %d: %s is too small for %s, which needs at least %s%s; %s", l.Ordinal, strings.TrimSuffix(lim.part(l), ","), framework, size.Format(room+leastPool), outside, remedy)
	}
	return lim.each(l) - lim.outside(framework, l), nil
}

// fractions returns the limit of a framework's pool as a fraction of each GPU, each the
// largest 32-bit float that does not exceed the lease. round is in bytes.
func (lim Limits) fractions(framework string, round uint64) ([]float64, error) {
	var list []float64
	for _, l := range lim.Leases {
		bytes, err := lim.pool(framework, l)
		if err != nil {
			return nil, err
		}
		f := policy.FractionFor(bytes, policy.Policy{RoundLimit: round}, policy.Device{Total: l.Total})
		if f == 0 { // bytes above, but less than one step of round
			return nil, fmt.Errorf("GPU %d: a lease of %s leaves no pool for %s; ask for more", l.Ordinal, size.Format(l.Bytes), framework)
		}
		list = append(list, math.Min(f, 1))
	}
	return list, nil
}

// why describes the origin of a limit: the lease number i, which has the least, or each
// GPU's lease if i is below 0.
func (lim Limits) why(framework string, i int) string {
	const outside = " for what is held outside of the pool"
	if i < 0 && len(lim.Leases) > 1 {
		if lim.Procs > 1 {
			return fmt.Sprintf("1/%d of each GPU's lease, less the room", lim.Procs) + outside
		}
		return "each GPU's lease, less the room" + outside
	}
	l := lim.Leases[max(i, 0)]
	text := lim.part(l)
	if room := lim.outside(framework, l); room > 0 {
		text += " less " + size.Format(room) + outside
	}
	if len(lim.Leases) > 1 {
		text += fmt.Sprintf(" (GPU %d, which has the least of %d)", l.Ordinal, len(lim.Leases))
	}
	return text
}

// least returns the smallest element of a list and its index.
func least[T cmp.Ordered](list []T) (T, int) {
	smallest := slices.Min(list)
	return smallest, slices.Index(list, smallest)
}

// EnvLeaseID is the variable with the ID of the lease that a program runs in, the first
// of several. A part of a lease has the lease's ID, a dot, and more.
const EnvLeaseID = "GPUMEM_LEASE_ID"

const (
	visibleVar = "CUDA_VISIBLE_DEVICES"

	// What the hook reads to count the processes of a lease, see
	// node/internal/hook/gpumem_hook.py.
	leasePathVar = "GPUMEM_LEASE" // share.EnvLease
	partVar      = "GPUMEM_LEASE_PART"
	procsVar     = "GPUMEM_PROCS"
)

// Shares returns the bytes that one process may use of each lease of its environment,
// by the lease's ID. It is empty outside of a lease.
func Shares(env []string) map[string]uint64 {
	parts := map[string]uint64{}
	for entry := range strings.SplitSeq(newEditor(env).get(partVar), ",") {
		words := strings.Fields(entry)
		if len(words) < 3 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil && n > 0 {
			parts[words[0]] = n
		}
	}
	return parts
}

// processes names the lease for the hook, with the part of each process. A part
// of an enclosing lease is counted with all that runs in that lease.
func (e *editor) processes(lim Limits) {
	l := lim.Leases[0]
	if l.Path == "" {
		e.unset(leasePathVar, "of another lease")
	} else {
		e.set(leasePathVar, l.Path, "the record of the lease, of several the first, for programs that read it")
	}
	if l.ID == "" {
		for _, name := range []string{EnvLeaseID, partVar, procsVar} {
			e.unset(name, "of another lease")
		}
		return
	}
	if lim.Pool != nil {
		id := l.ID
		if outer := e.get(EnvLeaseID); l.Within > 0 && strings.HasPrefix(outer, id) {
			id = outer
		}
		e.set(EnvLeaseID, id, "the lease, by which the processes are found that the program leaves behind")
		for _, name := range []string{partVar, procsVar} {
			e.unset(name, "of another lease")
		}
		return
	}
	id, procs := l.ID, max(lim.Procs, 1)
	if l.Within > 0 {
		procs *= max(lim.Copies, 1)
		if _, ours := Shares(e.lines())[l.ID]; ours { // the environment is the enclosing lease's
			id = cmp.Or(e.get(EnvLeaseID), id)
			if outer, err := strconv.Atoi(e.get(procsVar)); err == nil && outer > 0 && outer <= maxProcs {
				procs *= outer
			}
		}
	}
	var parts []string
	for _, l := range lim.Leases {
		name := l.Visible
		if l.Bytes == l.Total {
			name = cmp.Or(name, "-") + " whole"
		}
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %d %d %s", cmp.Or(l.ID, "-"), lim.each(l), max(l.Within, l.Bytes), name)))
	}
	e.set(EnvLeaseID, id, "the hook counts the processes of this lease that use a GPU, and says so where their parts are more than the lease")
	e.set(partVar, strings.Join(parts, ","), "of each GPU the lease, a process's bytes of it, its bytes, the GPU's name, and whether that is all of it")
	e.set(procsVar, strconv.Itoa(procs), "the number of processes that the limits below are made for (--procs)")
}

// visible names the GPUs. JAX allocates on every GPU that it sees, and a GPU that is not
// seen needs no limit.
func (e *editor) visible(lim Limits) {
	var names []string
	for _, l := range lim.Leases {
		names = append(names, l.Visible)
	}
	switch {
	case names[0] != "":
		e.set(visibleVar, strings.Join(names, ","), "the program sees the GPUs of its leases and no others")
	case lim.Leases[0].Simulated:
		e.unset(visibleVar, "it has chosen the simulated GPU of the lease, which is the only one that the program sees")
	}
}
