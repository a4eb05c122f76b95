package cause

// What would decide where several causes fit: a command to run, or a fact to learn.

import "gpumem/doctor/internal/account"

// A Command would tell. Behind "    # " it says what to look for.
type Command string

const (
	seeProcesses Command = "nvidia-smi    # while it fails: is another process on the GPU?"
	giveState    Command = "gpumem ps --json > state.json; gpumem doctor --state state.json LOG"
	tryGrowing   Command = "XLA_PYTHON_CLIENT_PREALLOCATE=false python PROGRAM" +
		"    # if it runs now, memory was the cause; if not, the library"
	tryBoth Command = "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true python PROGRAM" +
		"    # JAX reads one, TensorFlow the other: if it runs now, memory was the cause"
	tryFraction Command = "XLA_PYTHON_CLIENT_MEM_FRACTION=.5 python PROGRAM" +
		"    # if it runs now, memory was the cause; if not, the library"
	tryTensorFlow Command = "TF_FORCE_GPU_ALLOW_GROWTH=true python PROGRAM" +
		"    # if it runs now, memory was the cause; if not, the library"
	seeFull Command = "nvidia-smi" +
		"    # before the program starts: is the GPU full? If not, install the library anew, in a build for this machine"
	seeRise Command = "nvidia-smi -l 1    # while it runs: how far does the program itself rise before it fails?"
	relaxed Command = "UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1 python PROGRAM" +
		"    # if it runs now, the limit on one allocation was the wall"
	seeVersions Command = "nvidia-smi; python -m torch.utils.collect_env" +
		"    # is the GPU full, and do the versions fit?"
	seeCopies Command = "nvidia-smi; ldconfig -p | grep -i -E 'cudnn|cublas|cusolver'" +
		"    # is the GPU full, and are the libraries there?"
	seeCuDNN Command = `python -c 'import ctypes; c = ctypes.CDLL("libcudnn.so.9"); print(c.cudnnGetVersion())'; pip list | grep -i -E 'jax|cudnn'` +
		"    # is cuDNN there, and the version that jaxlib was built for?"
	seeLibraries Command = "pip list | grep -i -E 'jax|nvidia'; ldconfig -p | grep -i -E 'cudnn|cublas|cusolver'" +
		"    # are the libraries there, and of the versions that jaxlib was built for?"
	seeFree Command = "python -c 'import torch; print(torch.cuda.mem_get_info())'" +
		"    # if that is less than nvidia-smi shows, something caps the process"
	seeCap Command = "nvidia-smi" +
		"    # beside what the program is told to be free: less means that something caps the process"
	seeSummary Command = "print(torch.cuda.memory_summary())" +
		"    # to be put into the program, where it fails (except torch.OutOfMemoryError): what is inactive and split is holes"
	seeActive Command = "print(torch.cuda.memory_summary())" +
		"    # to be put into the program, where it fails: active far above allocated waits for a stream; inactive and split is holes"
	seeMetal Command = "print(torch.mps.driver_allocated_memory(), torch.mps.current_allocated_memory())" +
		"    # to be put into the program, before it fails: what the driver has above PyTorch's own"
	seeLive Command = "print(sum(x.nbytes for x in jax.live_arrays()))" +
		"    # to be put into the program, before it fails: if it is much, the program holds the memory itself; if little, another process does"
	seeReport Command = "TF_CPP_MIN_LOG_LEVEL=0 python PROGRAM 2>&1 | tee log; gpumem doctor log" +
		"    # the pool then prints its report before the error"
	seeProcess Command = "gpumem doctor --pid PID LOG" +
		"    # while the program runs: it sees both libraries in the process"
	withoutHAMi Command = "CUDA_DISABLE_CONTROL=true python PROGRAM" +
		"    # without HAMi: if it runs now, the quota was the limit"
	withoutShare   Command = "run it without nvshare: unset LD_PRELOAD"
	seeBoth        Command = "free -h; nvidia-smi    # which of the two is full while it fails?"
	seeKernel      Command = "dmesg | grep -i -A2 'killed process'"
	seeNCCL        Command = "NCCL_DEBUG=INFO python PROGRAM    # NCCL then says which call failed, and why"
	largeAddresses Command = "WINE_LARGE_ADDRESS_AWARE=1 wine PROGRAM" +
		"    # a 32-bit program then has 4 GiB of addresses: if it runs now, they were short; else another release of the driver"
	waitAndSee Command = "sleep 30; nvidia-smi    # if it is free by now, it was a start-up race"
)

// neutral asks the question that is always open: the program, a neighbour, or a limit?
const neutral Command = "nvidia-smi; free -h    # while it fails: is it the GPU's memory or the host's, " +
	"and who has it: the program, a neighbour, or neither (then it is a limit, or not memory)?"

func (c Command) String() string { return string(c) }

// A Need is a fact that would decide, as a state file names it.
type Need string

const (
	NeedProcesses  Need = "devices.processes: who holds memory on the GPU"
	needTotal      Need = "devices.total_bytes: how much memory the GPU has"
	needFrameworks Need = "process.frameworks: whether the process loads TensorFlow beside JAX"
	needFraction   Need = "process.per_process_memory_fraction: whether the program, or a setting, caps PyTorch's memory"
	needRecreated  Need = "process.backend_recreated: whether the program made its backend a second time (clear_backends)"
	needEnv        Need = "process.env: the program's memory settings"
	needReport     Need = "the pool's report: the lines of the allocator before the error (Limit, InUse, chunks)"
	needKernel     Need = "the kernel's log: dmesg says who was killed and why"
	needNCCL       Need = "NCCL's own warning: run with NCCL_DEBUG=INFO"
	needLog        Need = "the whole log: all that the program printed, on stderr as well"
)

// Known reports whether a fact that would decide is known already.
func Known(e *account.Case, n Need) bool {
	switch n {
	case needTotal:
		return e.Total().Bytes > 0
	case NeedProcesses:
		_, told := e.Others()
		return told
	case needFrameworks:
		return e.FrameworksTold()
	}
	return false
}

// Apart are the facts of a state that tell apart causes with the same text.
func Apart(e *account.Case, fitting []Explanation) (list []Need) {
	if !Known(e, NeedProcesses) {
		list = append(list, NeedProcesses)
	}
	for _, x := range fitting {
		if x.Cause == "jax_plus_tf" && !Known(e, needFrameworks) {
			return append(list, needFrameworks)
		}
	}
	return list
}

// tryLess tries a smaller pool, where the framework has one.
func (c *view) tryLess() Command {
	switch {
	case c.OnTensorFlow():
		return tryTensorFlow
	case c.onJAX() && c.sharedCode():
		return tryBoth
	case c.onJAX():
		return tryGrowing
	}
	return c.processes()
}

// onPool is a command of PyTorch's where the program is that.
func (c *view) onPool(torch Command) Command {
	if c.usesFramework("torch") {
		return torch
	}
	return c.processes()
}

// seeWall shows whether somebody caps what the program sees.
func (c *view) seeWall() Command {
	if c.usesFramework("torch") {
		return seeFree
	}
	return seeCap
}

// needCap is what would tell of a cap that the program set.
func (c *view) needCap() []Need {
	if c.usesFramework("torch") {
		return []Need{needFraction}
	}
	return []Need{needEnv}
}

// seeHeld shows what the program itself holds.
func (c *view) seeHeld() Command {
	if c.onJAX() {
		return seeLive
	}
	return c.processes()
}

// processes is the command that lists who is on the GPU.
func (c *view) processes() Command { return seeProcesses }

// Unknown is what would help where no cause is found: facts, and a command. It is what the process
// sees of a GPU that was not full, else the state of the machine.
func Unknown(e *account.Case) (missing []string, decide string) {
	if e.Roomy() != nil {
		return []string{"whether the program is a 32-bit one, and how much of its address space is in use"}, string(largeAddresses)
	}
	if e.Said || e.Library != nil || e.ReportPiece().Line > 0 {
		for _, n := range []Need{needTotal, NeedProcesses} {
			if !Known(e, n) {
				missing = append(missing, string(n))
			}
		}
		if p := e.Pool; p != nil && p.InUse.Bytes == 0 {
			missing = append(missing, string(needReport))
		}
	}
	if len(missing) == 0 {
		missing = []string{string(needLog)}
	}
	c := &view{Case: e, vendor: e.Vendor()}
	command := giveState
	switch lead := e.Lead(); {
	case e.Library != nil && !e.Said:
		command = c.decideLibrary(e.Library)
	case !e.Said && e.LastError != nil:
		command = neutral
	case !e.Said:
		return missing, ""
	case e.OnlyBytes():
		command = seeFull
	case lead != nil && lead.HasFree && lead.Free > lead.Want && e.Uses("torch"):
		command = seeFree
	}
	return missing, fitted(string(command), c.here())
}
