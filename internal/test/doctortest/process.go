// Cases in which somebody holds the memory: another process, another framework
// in the same process, or the same process's first pool.
package doctortest

import (
	"fmt"
	"slices"
	"strings"
)

// sorted gives cases in the order of their names.
func sorted(cases []Case) []Case {
	slices.SortStableFunc(cases, func(a, b Case) int { return strings.Compare(a.Name, b.Name) })
	return cases
}

// refused is a region that the driver would not give, as each era prints it.
func refused(e era, n uint64) (line, quote string) {
	quote = fmt.Sprintf("failed to allocate %s (%d bytes) from device: CUDA_ERROR_OUT_OF_MEMORY", oldG(n), n)
	if e != era2018 {
		quote = fmt.Sprintf("failed to allocate %s (%d bytes) from device: CUDA_ERROR_OUT_OF_MEMORY", xla(n), n)
	}
	return e.at("I", driverFile, 1571, quote+": out of memory"), quote
}

func processCases() []Case {
	var cases []Case
	for i, c := range []card{gtx1080, t4, rtx4090, h100} {
		e := eras[1+i%3] // JAX is younger than the oldest
		cases = append(cases, neighbourCases(e, c)...)
		cases = append(cases, requestCases(e, c)...)
		cases = append(cases, startCases(eras[i], c)...)
		cases = append(cases, secondPoolCases(e, c)...)
	}
	for i, c := range []card{rtx2070, a100x40, h100} {
		cases = append(cases, jaxAndTensorFlow(eras[1+i], c)...)
	}
	return cases
}

// neighbourCases are a JAX process that meets another process's memory.
func neighbourCases(e era, c card) []Case {
	first := part(c.total, 75) + 300*mib
	const free = 210 * mib
	mine := c.total - first - free
	log, usage := dnnLog(e, "INTERNAL_ERROR", free, c.total)
	multi := cause(idMulti, "cudnn-"+c.key, log,
		fmt.Sprintf("%s of %s is free, well below the quarter that one preallocation leaves, and another JAX process holds %s", xla(free), xla(c.total), xla(first)), usage)
	twoJAX := state{Devices: []stateDevice{c.device(other("python3", first, "jax"), own(mine, "jax"))}, Process: jaxProcess(nil)}
	cases := withState(multi, twoJAX, FactProcesses, idStarves, idOccupied)

	before := "There was an error before creating cudnn handle (2): cudaErrorMemoryAllocation : out of memory"
	multi = cause(idMulti, "before-handle-"+c.key, e.at("E", dnnFile, 413, before),
		"the runtime's own code is a refused allocation, and another JAX process is on the card", before)
	multi.State = twoJAX.json()
	cases = append(cases, multi)

	rows := []row{{30552, "python3", first}, {ownPID, "python3", mine}}
	multi = cause(idMulti, "smi-"+c.key, log+smi(c, rows...),
		fmt.Sprintf("the table shows two Python processes, of which one holds %s: 75 %% of the card, the size of a default pool", xla(first)),
		usage, smiRow(rows[0])[:70])
	cases = append(cases, multi)

	// A server that is no JAX holds nearly all.
	held := c.total - free - 200*mib
	log, usage = dnnLog(e, "ALLOC_FAILED", free, c.total)
	occupied := cause(idOccupied, "cudnn-"+c.key, log,
		fmt.Sprintf("another program holds %s of %s", xla(held), xla(c.total)), usage)
	cases = append(cases, withState(occupied, state{Devices: []stateDevice{c.device(other("ollama", held), own(200*mib, "jax"))}, Process: jaxProcess(nil)},
		FactProcesses, idStarves, idMulti)...)

	text := fmt.Sprintf("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: %d", c.total)
	occupied = cause(idOccupied, "context-"+c.key, e.at("W", "xla/service/platform_util.cc", 200, "unable to create StreamExecutor for CUDA:0: failed initializing StreamExecutor for CUDA device ordinal 0: INTERNAL: "+text),
		"not even a context fits, and the processes on the card are others", text)
	holder := other("python3", c.total-90*mib)
	holder.ParentGone = e == era2022
	return append(cases, withState(occupied, state{Devices: []stateDevice{c.device(holder)}, Process: jaxProcess(nil)}, FactProcesses, idMulti)...)
}

// ladder is a pool that backs off: each request nine tenths of the one before.
func ladder(e era, n uint64, steps int) (log string, quotes []string) {
	for range steps {
		line, quote := refused(e, n)
		log, quotes = log+line, append(quotes, quote)
		n = part(n, 90)
	}
	return log, quotes
}

// requestCases are refusals that only what is known of the card can explain.
func requestCases(e era, c card) []Case {
	first := part(c.total, 75)
	log, quotes := ladder(e, first, 11)
	rows := []row{{30552, "python3", first + 300*mib}, {ownPID, "python3", 310 * mib}}
	table := smiRow(rows[0])[:70]
	ladderCase := cause(idMulti, "ladder-smi-"+c.key, log+smi(c, rows...),
		fmt.Sprintf("the first request is 75 %% of %s, and another Python process holds as much already", xla(c.total)), append(slices.Clone(quotes), table)...)
	cases := []Case{ladderCase}
	ladderCase.Name, ladderCase.Log, ladderCase.Quotes = idMulti+"/ladder-state-"+c.key, log, quotes
	ladderCase.State = state{Devices: []stateDevice{c.device(other("python3", rows[0].used, "jax"), own(rows[1].used, "jax"))}, Process: jaxProcess(nil)}.json()
	cases = append(cases, ladderCase)

	request := func(n uint64) string {
		return fmt.Sprintf("RESOURCE_EXHAUSTED: Failed to allocate request for %s (%dB) on device ordinal 0", xla(n), n)
	}
	text := request(part(c.total, 140))
	big := cause(idTooBig, "request-"+c.key, "jaxlib.xla_extension.XlaRuntimeError: "+text+"\n",
		fmt.Sprintf("one request is larger than the card's %s", xla(c.total)), text)
	cases = append(cases, withState(big, state{Devices: []stateDevice{{Name: c.name, Total: c.total}}, Process: jaxProcess(nil)}, FactTotal, idOccupied)...)
	text = request(part(c.total, 9))
	rows = []row{{2203, "/usr/bin/ollama", part(c.total, 92)}, {ownPID, "python3", 310 * mib}}
	return append(cases, cause(idOccupied, "request-smi-"+c.key, "jaxlib.xla_extension.XlaRuntimeError: "+text+"\n"+smi(c, rows...),
		fmt.Sprintf("the table shows %s in another program's hands", xla(rows[0].used)), text, smiRow(rows[0])[:70]))
}

// startCases are TensorFlow's own readings of a card that is full before it starts.
func startCases(e era, c card) []Case {
	free := part(c.total, 2.1)
	line, quote := refused(e, free)
	totalLine, freeLine := "Total memory: "+xla(c.total), "Free memory: "+xla(free)
	cases := []Case{cause(idOccupied, "start-"+c.key,
		fmt.Sprintf("%s\n%s\n%s", totalLine, freeLine, e.at("I", "common_runtime/gpu/gpu_device.cc", 975, "Creating TensorFlow device (/gpu:0) -> (device: 0, name: "+c.name+", pci bus id: 0000:01:00.0)"))+line,
		fmt.Sprintf("%s of %s was free before the program took any", xla(free), xla(c.total)), totalLine, freeLine, quote)}
	both := fmt.Sprintf("totalMemory: %s freeMemory: %s", xla(c.total), xla(free))
	cases = append(cases, cause(idOccupied, "start-one-line-"+c.key,
		e.at("I", "common_runtime/gpu/gpu_device.cc", 1392, "Found device 0 with properties: name: "+c.name)+both+"\n"+line,
		fmt.Sprintf("%s of %s was free before the program took any", xla(free), xla(c.total)), both, quote))
	implicit := "CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory"
	used := smiMemory(part(c.total, 98.6), c.total)
	return append(cases, cause(idOccupied, "implicit-"+c.key,
		"tensorflow.python.framework.errors_impl.InternalError: "+implicit+"\n"+strings.TrimSpace(used)+"\n",
		"the card is all but full while this program has not even a context", implicit, strings.TrimSpace(used)))
}

// secondPoolCases are a backend that was made again while its first pool lives.
func secondPoolCases(e era, c card) []Case {
	pool := part(c.total, 75)
	line, quote := refused(e, pool)
	second := cause("same_process_second_pool", "state-"+c.key, line,
		fmt.Sprintf("%s is 75 %% of %s, a whole pool, and the backend was made a second time", xla(pool), xla(c.total)), quote)
	s := state{Devices: []stateDevice{{Name: c.name, Total: c.total}}, Process: &stateProcess{Frameworks: []string{"jax"}, BackendRecreated: true}}
	cases := withState(second, s, FactBackendRecreated, idMulti, idOccupied)
	announced := e.at("I", "xla/pjrt/gpu/gpu_helpers.cc", 114, fmt.Sprintf("XLA backend allocating %d bytes on device 0 for BFCAllocator.", pool))
	text := fmt.Sprintf("XLA backend allocating %d bytes on device 0 for BFCAllocator.", pool)
	return append(cases, cause("same_process_second_pool", "announced-twice-"+c.key, announced+"jax.extend.backend.clear_backends()\n"+announced+line,
		"the same process announces the same pool twice, and clears its backends between", text, "clear_backends()", quote))
}

// jaxAndTensorFlow are logs in which both speak.
func jaxAndTensorFlow(e era, c card) []Case {
	created := fmt.Sprintf("Created device /job:localhost/replica:0/task:0/device:GPU:0 with %d MB memory:", part(c.total, 91)/mib)
	head := e.at("I", "tensorflow/core/common_runtime/gpu/gpu_device.cc", 1510, created+"  -> device: 0, name: "+c.name)
	why := "TensorFlow's device takes nine tenths of the card in the log of a program that fails in JAX"
	text := blasHandle + "CUBLAS_STATUS_ALLOC_FAILED"
	fail := "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to determine best cudnn convolution algorithm for:"
	return []Case{
		cause(idJAXTF, "log-cublas-"+c.key, head+e.at("E", blasFile, 219, text)+"jaxlib.xla_extension.XlaRuntimeError: INTERNAL: a matrix product could not run\n", why, created, text),
		cause(idJAXTF, "log-convolution-"+c.key, head+fail+"\n", why, created, fail),
	}
}
