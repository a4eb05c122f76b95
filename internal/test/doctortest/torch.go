// Cases of PyTorch. Its message always carries a hint at fragmentation; the
// numbers in the same message report whether that is the cause.
package doctortest

import (
	"fmt"
	"strings"
)

const (
	idOtherAllocator = "other_allocator_same_process"
	idGraph          = "cuda_graph_headroom"
	idRace           = "startup_race"
	idUnified        = "unified_memory"
)

// A torchMessage is what PyTorch tells when it is out of memory, in bytes.
type torchMessage struct {
	want, total, free   uint64
	allocated, reserved uint64 // reserved counts what is allocated
	allowed             uint64 // by a limit of the process; 0 none
	process             uint64 // all that the process holds, PyTorch's or not; 0 not told
	others              []row  // processes that the message lists; may include its own
	graphs              uint64 // of what is allocated, in private pools; 0 not told
}

// old prints the message as releases before 2.1 did.
func (m torchMessage) old(class string) string {
	allowed := ""
	if m.allowed > 0 {
		allowed = torchSize(m.allowed) + " allowed; "
	}
	return fmt.Sprintf("%s: CUDA out of memory. Tried to allocate %s (GPU 0; %s total capacity; %s already allocated; %s free; %s%s reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n",
		class, torchSize(m.want), torchSize(m.total), torchSize(m.allocated), torchSize(m.free), allowed, torchSize(m.reserved))
}

// modern prints the message as releases since 2.1 do; capacity is the word as
// that release spells it, and setting the name of the variable in its hint.
func (m torchMessage) modern(class, capacity, setting string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: CUDA out of memory. Tried to allocate %s. GPU 0 has a total %s of %s of which %s is free. ", class, torchSize(m.want), capacity, torchSize(m.total), torchSize(m.free))
	for _, p := range m.others {
		fmt.Fprintf(&b, "Process %d has %s memory in use. ", p.pid, torchSize(p.used))
	}
	if m.process > 0 {
		fmt.Fprintf(&b, "Including non-PyTorch memory, this process has %s memory in use. ", torchSize(m.process))
	}
	if m.allowed > 0 {
		fmt.Fprintf(&b, "%s allowed; ", torchSize(m.allowed))
	}
	private := ""
	if m.graphs > 0 {
		private = fmt.Sprintf("with %s allocated in private pools (e.g., CUDA Graphs), ", torchSize(m.graphs))
	}
	fmt.Fprintf(&b, "Of the allocated memory %s is allocated by PyTorch, %sand %s is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting %s=expandable_segments:True to avoid fragmentation.\n",
		torchSize(m.allocated), private, torchSize(m.reserved-m.allocated), setting)
	return b.String()
}

// spellings are the releases' classes, words and variables.
var spellings = [][3]string{
	{"torch.cuda.OutOfMemoryError", "capacty", "PYTORCH_CUDA_ALLOC_CONF"},
	{"torch.OutOfMemoryError", "capacity", "PYTORCH_CUDA_ALLOC_CONF"},
	{"torch.OutOfMemoryError", "capacity", "PYTORCH_ALLOC_CONF"},
}

// torchContext is what a process holds beside PyTorch's pool.
const torchContext = 420 * mib

// torchShapes are the five things that the numbers can say of a card.
func torchShapes(c card) []struct {
	id, why string
	message torchMessage
} {
	t := c.total
	fragmented := torchMessage{want: part(t, 17), total: t, allocated: part(t, 58), reserved: part(t, 90)}
	fragmented.graphs = 46 * mib
	fragmented.process = fragmented.reserved + torchContext
	fragmented.free = t - fragmented.process

	full := torchMessage{want: part(t, 14), total: t, allocated: part(t, 90), reserved: part(t, 91)}
	full.process = full.reserved + torchContext
	full.free = t - full.process

	huge := torchMessage{want: part(t, 230), total: t, allocated: part(t, 6), reserved: part(t, 7)}
	huge.process = huge.reserved + torchContext
	huge.free = t - huge.process

	capped := torchMessage{want: part(t, 6), total: t, allocated: part(t, 37), reserved: part(t, 38), allowed: part(t, 40)}
	capped.process = capped.reserved + torchContext
	capped.free = t - capped.process

	return []struct {
		id, why string
		message torchMessage
	}{
		{idFragment, fmt.Sprintf("%s is reserved and not used, more than the %s asked for", torchSize(fragmented.reserved-fragmented.allocated), torchSize(fragmented.want)), fragmented},
		{idTooBig, fmt.Sprintf("PyTorch's own tensors hold %s of %s, and only %s is reserved and not used", torchSize(full.allocated), torchSize(t), torchSize(full.reserved-full.allocated)), full},
		{idTooBig, fmt.Sprintf("the request of %s is larger than the card's %s", torchSize(huge.want), torchSize(t)), huge},
		{idLimit, fmt.Sprintf("%s are allowed and %s reserved, while %s of the card is free", torchSize(capped.allowed), torchSize(capped.reserved), torchSize(capped.free)), capped},
	}
}

func torchCases() []Case {
	var cases []Case
	for i, c := range []card{gtx1080, t4, rtx4090, h100} {
		spelling := spellings[i%len(spellings)]
		quote := fmt.Sprintf("GPU 0 has a total %s of %s", spelling[1], torchSize(c.total))
		show := func(m torchMessage) string {
			return "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\n" + m.modern(spelling[0], spelling[1], spelling[2])
		}
		for k, s := range torchShapes(c) {
			cases = append(cases, cause(s.id, fmt.Sprintf("torch-%d-%s", k, c.key), show(s.message), s.why, quote))
		}

		// Others hold it: a list of processes, one of which is the program itself.
		m := torchMessage{want: part(c.total, 14), total: c.total, allocated: part(c.total, 20), reserved: part(c.total, 21)}
		mine := m.reserved + torchContext
		m.others = []row{{pid: 4121, used: part(c.total, 55)}, {pid: ownPID, used: mine}, {pid: 4377, used: part(c.total, 11)}}
		m.free = c.total - mine - m.others[0].used - m.others[2].used
		cases = append(cases, cause(idOccupied, "torch-list-"+c.key, show(m),
			fmt.Sprintf("the listed processes but its own hold %s; %s reserved and not used is too little for the hint to hold", torchSize(m.others[0].used+m.others[2].used), torchSize(m.reserved-m.allocated)),
			"Process 4121 has"))
		m.others, m.process = []row{m.others[0], m.others[2]}, mine
		cases = append(cases, cause(idOccupied, "torch-own-"+c.key, show(m),
			fmt.Sprintf("this process has %s, and two others hold %s", torchSize(mine), torchSize(m.others[0].used+m.others[1].used)), "Process 4121 has"))

		// The process holds far more than PyTorch does.
		m = torchMessage{want: part(c.total, 3), total: c.total, allocated: part(c.total, 4), reserved: part(c.total, 5), process: part(c.total, 98.5)}
		m.free = c.total - m.process
		cases = append(cases, cause(idOtherAllocator, "torch-"+c.key, show(m),
			fmt.Sprintf("this process has %s, of which PyTorch reserved only %s", torchSize(m.process), torchSize(m.reserved)), "Including non-PyTorch memory"))

		// Enough is free for the driver to serve it: something in the process says no.
		m = torchMessage{want: part(c.total, 5), total: c.total, allocated: part(c.total, 28), reserved: part(c.total, 29), process: part(c.total, 29) + torchContext}
		m.free = c.total - m.process
		k := cause(idLimit, "torch-unsaid-"+c.key, show(m),
			fmt.Sprintf("%s is free and %s was asked for, so the wall is the process's own 30 %%", torchSize(m.free), torchSize(m.want)), quote)
		cases = append(cases, withState(k, state{Process: &stateProcess{Frameworks: []string{"torch"}, Fraction: 0.3}}, FactFraction)...)
	}
	return cases
}

func torchOldCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, gtx1080, a100x40} {
		class := []string{"RuntimeError", "RuntimeError", "torch.cuda.OutOfMemoryError"}[i]
		quote := torchSize(c.total) + " total capacity"
		for k, s := range torchShapes(c) {
			cases = append(cases, cause(s.id, fmt.Sprintf("torch-old-%d-%s", k, c.key), s.message.old(class), s.why, quote))
		}
		m := torchMessage{want: part(c.total, 1), total: c.total, free: part(c.total, 0.6), allocated: part(c.total, 3), reserved: part(c.total, 4)}
		why := fmt.Sprintf("PyTorch reserved %s of the %s in use", torchSize(m.reserved), torchSize(c.total-m.free))
		k := cause(idOccupied, "torch-old-"+c.key, m.old(class), why+", and the rest is another process's", quote)
		k.State = state{Devices: []stateDevice{c.device(other("python3", c.total-m.free-m.reserved-torchContext), own(m.reserved+torchContext, "torch"))}}.json()
		cases = append(cases, k)
		k.Name, k.Causes, k.Why = idOtherAllocator+"/torch-old-"+c.key, []string{idOtherAllocator}, why+", and the process alone is on the card"
		k.State = state{Devices: []stateDevice{c.device(own(c.total-m.free, "torch", "jax"))}, Process: &stateProcess{Frameworks: []string{"torch", "jax"}}}.json()
		cases = append(cases, k)
	}
	return cases
}

// vllmCases are engines that measure the card while they start.
func vllmCases() []Case {
	var cases []Case
	for i, c := range []card{t4, rtx4090, h100, h200} {
		none := "No available memory for the cache blocks."
		before := part(c.total, 85.5)
		measured := fmt.Sprintf("Memory profiling results: total_gpu_memory=%sGiB initial_memory_usage=%sGiB", gigabytes(c.total), gigabytes(before))
		cases = append(cases, cause(idRace, "vllm-before-"+c.key, measured+"\nValueError: "+none+"\n",
			fmt.Sprintf("%s was in use before this engine loaded anything, and it counts that as its own", xla(before)), measured, none))
		grew := fmt.Sprintf("Error in memory profiling. Initial free memory %s GiB, current free memory %s GiB.", gigabytes(part(c.total, 31)), gigabytes(part(c.total, 58)))
		cases = append(cases, cause(idRace, "vllm-grew-"+c.key, "AssertionError: "+grew+"\n",
			"more was free after loading than before, so another process released memory meanwhile", grew))
		share := 0.9 - 0.05*float64(i%2)
		free := part(c.total, 22)
		less := fmt.Sprintf("Free memory on device cuda:0 (%s/%s GiB) on startup is less than desired GPU memory utilization (%.2f, %s GiB)",
			gigabytes(free), gigabytes(c.total), share, gigabytes(uint64(share*float64(c.total))))
		cases = append(cases, cause(idOccupied, "vllm-start-"+c.key, "ValueError: "+less+".\n",
			fmt.Sprintf("somebody holds %s: a program that stays, or one that is just leaving", xla(c.total-free)), less))

		// A refused request while graphs are captured, after the cache took its part.
		m := torchMessage{want: 136 * mib, total: c.total, free: 118 * mib, allocated: part(c.total, 91), reserved: c.total - 118*mib - torchContext, process: c.total - 118*mib}
		m.allocated = m.reserved - 40*mib
		capture := "Capturing CUDA graph shapes:  " + fmt.Sprint(11*(i+1)) + "%"
		cases = append(cases, cause(idGraph, "vllm-"+c.key,
			fmt.Sprintf("INFO 03-05 10:11:12 [gpu_worker.py:277] Available KV cache memory: %s GiB\n%s\n", gigabytes(part(c.total, 30)), capture)+
				m.modern(spellings[2][0], spellings[2][1], spellings[2][2]),
			fmt.Sprintf("the cache was sized to leave %s, and capturing graphs asks for %s more", torchSize(m.free), torchSize(m.want)), capture, "Tried to allocate"))
	}
	for i, name := range []string{"NVIDIA GB10", "NVIDIA GB10", "Orin", "NVIDIA Thor"} {
		total := []uint64{130661433344, 128496123904, 65890131968, 131853336576}[i]
		text := fmt.Sprintf("Free memory on device cuda:0 (%s/%s GiB) on startup is less than desired GPU memory utilization (0.90, %s GiB)",
			gigabytes(part(total, 84)), gigabytes(total), gigabytes(part(total, 90)))
		named := "Using device 0: " + name
		cases = append(cases, cause(idUnified, fmt.Sprint("vllm-", i), "INFO "+named+"\nValueError: "+text+".\n",
			"this device shares the host's memory, and its free memory is what the host can spare", named, text))
	}
	return cases
}
