package cause

// not_memory: this is no failure of memory.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
)

func notMemory(c *view) (all []Explanation) {
	all = append(c.neverRan(), c.saidOtherwise()...)
	l := c.Library
	plenty := l != nil && l.Plenty() && !c.oldDriver()
	if plenty {
		all = append(all, sure(385, "a library fails on a free GPU", leaveSettings, l.Quotes()...).only().certainly(l.Certain()...))
	}
	for i := range all {
		all[i].Verdict = "not_memory"
	}
	if l != nil && !plenty && l.Tried {
		all = append(all, fits(333, "a smaller pool did not help", leaveSettings, c.decideLibrary(l),
			l.Quotes()...).and(l.TriedBy).only())
	}
	if st := c.About("sessions"); st != nil && c.bare != nil && c.bare.Want == 0 {
		all = append(all, fits(320, "too many sessions", steps(
			"count the encode sessions on the machine: nvidia-smi encodersessions; consumer cards allow a few at a time",
			"end other encoders, or update the driver"),
			"nvidia-smi encodersessions; nvidia-smi    # while it fails: are the sessions all taken, or is the memory?",
			st.Quoted("the encoder says so where a session is refused, for their number or for memory")))
	}
	return all
}

// neverRan are failures before the program could ask for memory, and those after which every call
// fails.
func (c *view) neverRan() (all []Explanation) {
	if st := c.Sticky; st != nil && !c.refusedBefore(st) {
		x := sure(975, "an error after which every call fails", otherRemedy(st),
			st.Quoted("the failure is "+st.Topic("other").Name+": after it every call of this process fails, whichever library makes it"))
		x.Alone = true
		all = append(all, x)
	}
	if st := c.About("busy"); st != nil && st.Topic("busy").Name == "scheduler" {
		all = append(all, sure(970, "no GPU to give", placePod(st),
			st.Quoted("no node is fit for the pod: the program did not start, and asked for no memory")))
	}
	if st := c.driverStart(); st != nil {
		x := sure(966, "the driver did not start", repairDriver,
			st.Quoted(
				"the driver itself could not be initialised: "+
					"that takes nothing of the GPU's memory for the program, whatever its status says"))
		x.Alone = true
		all = append(all, x)
	}
	return all
}

// saidOtherwise are failures whose words or numbers say that memory is not to blame.
func (c *view) saidOtherwise() (all []Explanation) {
	if st := c.About("profiling"); st != nil && !freeRose(st) {
		all = append(all, sure(821, "a check that failed by itself", steps(
			"update the engine: the two readings are the same, so that nobody released memory; no setting of memory helps"),
			st.Quoted("free memory is the same before and after, as far as it is printed: nobody released any")))
	}
	if st := c.About("notype"); st != nil && c.bare != nil && st.Line <= c.bare.St.Line+8 {
		all = append(all, sure(296, "no type of memory fits",
			steps("update the driver, or DXVK: no memory of the GPU has the properties that were asked for, "+
				"so that not a byte of it can be given"), c.bare.St.Quoted(c.bare.Refused()),
			st.Quoted("the driver names no type of memory that fits")))
	}
	if bytes, st := c.AbsurdRequest(); bytes > 0 {
		all = append(all, sure(695, "a size that no program means", steps(
			"see which line asks for it, and print the shapes before it: an index or a size there is wrong, or passed 2^31",
			"no setting of memory, and no larger GPU, helps"), quote(st, "%v in one piece: a wrong shape, or a number "+
			"that overflowed", bytes)))
	}
	if _, memory, other := c.ncclLines(); memory == nil && other != nil && !c.fatal {
		all = append(all, sure(870, "NCCL fails for another reason",
			steps(
				"see NCCL's own reason: NCCL_DEBUG=INFO; use one version on all nodes; "+
					"NCCL_CUMEM_ENABLE=0 and NCCL_P2P_DISABLE=1 show whether the path between GPUs is to blame"),
			other.Quoted("NCCL's error is not about memory")))
	}
	if st := c.About("cubin"); st != nil && !st.Refused && !codeNamed(st) && strings.Contains(st.Text, "CUDA_ERROR_") {
		all = append(all, sure(838, "compiled code that was refused", otherFailure,
			st.Quoted("the driver's status is not out of memory")))
	}
	if st := c.otherFailure(); st != nil && st.Topic("other").Name == "no GPU" {
		all = append(all, sure(390, "no GPU here", withoutGPU, st.Quoted("the program finds no GPU that it can use: no memory failed")))
	} else if st != nil {
		all = append(all, sure(390, "another failure", otherRemedy(st),
			st.Quoted("the failure is "+st.Topic("other").Name+", not a lack of GPU memory")))
	}
	return all
}

// withoutGPU is what to do where the machine has no GPU, or the program cannot use it.
var withoutGPU = steps(
	"to try the program without a GPU: gpumem run --simulate T4 -- COMMAND, on a simulated one; "+
		"to see whether it fits a card: gpumem fit --card T4 -- COMMAND",
	"where there is one: nvidia-smi lists it; in a container it wants --gpus all; CUDA_VISIBLE_DEVICES must name it")

// placePod is what to do about a pod without a node, by the reasons that the scheduler gives.
func placePod(st *statement.Statement) Remedy {
	said := func(words, step string) string { return when(strings.Contains(st.Text, words), step) }
	return steps(
		"see which GPUs are given out, and to whom: kubectl describe nodes | grep -A8 'Allocated resources'",
		said("unschedulable", "a cordoned node takes no pods: kubectl get nodes; kubectl uncordon NODE"),
		said("taint", "a tainted node takes pods that tolerate it: kubectl describe node NODE | grep Taints, and the pod's tolerations"),
		said("selector", "compare the pod's nodeSelector and affinity with the nodes' labels: kubectl get nodes --show-labels"),
		"ask for fewer, wait, or add a node; a GPU that the device plugin does not report is not there for the scheduler")
}

// driverStart is the line of a refusal in cuInit, which comes before any memory.
func (c *view) driverStart() *statement.Statement {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost })
	if r != nil && r.Want == 0 && driverInit.MatchString(r.St.Text) {
		return r.St
	}
	if h := c.Last(func(r *account.Refusal) bool { return !r.Mild && deviceFile.MatchString(r.St.Text) }); h != nil {
		return h.St
	}
	return nil
}

// deviceFile is a file of a driver that could not be opened.
var deviceFile = needle.MustCompile(`open\w*\(.*/dev/(?:kfd|nvidia|dri)`)

var driverInit = needle.MustCompile(`\b(?:cuInit|hipInit|nvmlInit(?:_v2)?|cudaGetDeviceCount)\b`)

var repairDriver = steps(
	"see that the driver answers at all: nvidia-smi; "+
		"in WSL the Windows driver and the kernel of WSL have to fit (wsl --update), and its memory limit is .wslconfig's",
	"see that the program finds the right libcuda (ldconfig -p | grep libcuda), and that the host has memory: free -h")

// refusedBefore reports whether memory of the GPU was refused before a line: what fails after that
// may follow from it, as an access through a pointer that was not checked does.
func (c *view) refusedBefore(st *statement.Statement) bool {
	return c.Last(func(r *account.Refusal) bool {
		return !r.Mild && r.Layer != statement.LayerHost && r.St.Line <= st.Line
	}) != nil
}

// otherFailure is the line of a failure that is none of memory, if no memory was refused and no
// library's failure comes before it.
func (c *view) otherFailure() *statement.Statement {
	st, l := c.About("other"), c.Library
	switch {
	case st == nil, c.fatal && !c.saidFor(st):
		return nil
	case l != nil && (l.St.Line < st.Line || l.Memory):
		return nil
	}
	return st
}

// saidFor reports whether the last refusal is only what a program prints for the status st of its
// call, whichever it is: a few bytes, and no code of memory.
func (c *view) saidFor(st *statement.Statement) bool {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	if r == nil || r.Want == 0 || r.Want >= statement.Mib || r.St.DeviceCode() {
		return false
	}
	return st.Line <= r.St.Line && st.Line+3 > r.St.Line
}

// otherSteps are what to do about a failure that is none of memory, by what it is.
var otherSteps = map[string][]string{
	"an illegal address": {
		"find the call that fails: CUDA_LAUNCH_BLOCKING=1 before the program; then the access: compute-sanitizer PROGRAM. " +
			"An index out of range, or a kernel that does not fit the library's version, is usual",
		"restart the process: nothing works in it after this"},
	"an assertion in a kernel": {
		"see what was asserted, in the lines above: " +
			"an index out of range most often, such as a label against the number of classes, or a token against the " +
			"size of the vocabulary",
		"run one step on the CPU, which says which line it is; or CUDA_LAUNCH_BLOCKING=1"},
	"a timeout": {
		"see which call, or which rank, did not come: " +
			"the first failure of the other ranks, a kernel that never ends, a display that shares the GPU",
		"on Windows the driver ends work of more than two seconds (TDR): less at once, a newer driver, no overclocking"},
	"a device that is missing, lost or faulty": {
		"see that the driver has it: nvidia-smi; dmesg | grep -i -E 'xid|nvrm'. " +
			"One that fell off the bus, or has an ECC error, wants a reset, a reboot, or other hardware (power, slot, cable)",
		"see that CUDA_VISIBLE_DEVICES names only GPUs that are there"},
	"a kernel's shared memory": {"make the kernel's block smaller, or use fewer stages: BLOCK sizes and num_stages in Triton",
		"a kernel from a library: take a release that knows this GPU, or a smaller head or tile size"},
	"a kernel's registers": {"launch fewer threads in a block, or compile with __launch_bounds__ or -maxrregcount"},
	"a collective operation that timed out": {
		"find the rank that did not come: its own log has the first failure, or it is slower, or takes another branch",
		"if it only takes long: a longer timeout in init_process_group; " +
			"TORCH_NCCL_TRACE_BUFFER_SIZE=2000 records what each rank did (PyTorch)"},
	"a fabric that is not ready": {
		"start the fabric manager of the driver's release: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric"},
	"CUDA in a forked process": {
		"start workers by spawn: torch.multiprocessing.set_start_method('spawn'); and use no GPU before they are started"},
	"a quota of a service":   {"wait, or raise the quota of the service that answered; nothing on this machine is short"},
	"a database's own limit": {"raise the limit in the database's own configuration, as the line names it"},
	"thread-local storage":   {"import the library that the line names first, before the others; or LD_PRELOAD it"},
	"the size of a message":  {"raise the limit of the messages' size (gRPC: grpc.max_receive_message_length), or send less at once"},
	"a driver that does not fit": {
		"see the driver's version and the newest CUDA that it runs: nvidia-smi. " +
			"Update the driver, or take a build for an older CUDA; after an update reboot",
		"in a container leave libraries of cuda-compat out of LD_LIBRARY_PATH: the host's driver counts"},
	"a full disk": {
		"see which is full: df -h; df -i. /dev/shm and /tmp may be separate: docker run --shm-size 8g, TMPDIR"},
	"too many open files": {
		"raise the limit: ulimit -n; in PyTorch also torch.multiprocessing.set_sharing_strategy('file_system')"},
	"too many processes or threads": {
		"raise the limit: ulimit -u, the container's pids limit; or start fewer workers and threads (OMP_NUM_THREADS)"},
	"an argument that was refused": {
		"see which call it was, and what it was given: the lines above it; of a kernel its shapes, strides and types, with " +
			"CUDA_LAUNCH_BLOCKING=1"},
	"an argument that NCCL refused": {
		"see which call, and why: NCCL_DEBUG=INFO; use the same version on all nodes; NCCL_CUMEM_ENABLE=0"},
	"a scheduler that has no node for what the pod requests": {
		"see what the nodes have left: kubectl describe nodes | grep -A8 'Allocated resources'; request less, or add a node"},
}

// otherRemedy is what to do about it.
func otherRemedy(st *statement.Statement) Remedy {
	name := st.Topic("other").Name
	if name == "an argument that was refused" && st.HasAny("nccl", "rccl") {
		name = "an argument that NCCL refused"
	}
	switch name {
	case "an assertion":
		name = "an assertion in a kernel"
	case "a failed launch", "a wrong address space", "an illegal instruction":
		name = "an illegal address"
	case "a GPU that is not there", "an ECC error":
		name = "a device that is missing, lost or faulty"
	}
	if all := otherSteps[name]; all != nil {
		return steps(all...)
	}
	return otherFailure
}

var otherFailure = steps("look for the failure that this line names; memory settings do not change it")

var leaveSettings = steps("leave the memory settings as they are",
	"compare the library's version with the one that the framework was built for: pip list | grep -i -E 'cudnn|cublas|nvidia'",
	"look for a second copy of the library: ldconfig -p | grep -i cudnn; echo $LD_LIBRARY_PATH")
