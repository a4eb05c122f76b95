// Cases of the pools of XLA and TensorFlow: their reports in three layouts, and
// what the numbers in them say.
package doctortest

import "fmt"

const (
	idLimit    = "pool_limit"
	idFragment = "fragmentation"
	idTooBig   = "program_too_big"
	idRemat    = "remat_insufficient"
	bfcFile    = "xla/tsl/framework/bfc_allocator.cc"
)

// A pool is what a report tells of a BFC pool, in bytes.
type pool struct {
	want     uint64 // of the request that failed
	limit    uint64 // that the pool may reach
	reserved uint64 // taken from the driver so far
	inUse    uint64
	largest  uint64 // free block
}

// stats is the block of figures that ends a report. In the oldest layout it has
// five lines, then eight with whole bytes, today nine with sizes for people.
func (p pool) stats(e era) string {
	show := func(n uint64) string { return fmt.Sprint(n) }
	if e == era2026 {
		show = xla
	}
	text := fmt.Sprintf("Limit:            %20s\nInUse:            %20s\nMaxInUse:         %20s\nNumAllocs:        %20d\nMaxAllocSize:     %20s\n",
		show(p.limit), show(p.inUse), show(p.inUse), 48213, show(p.inUse/9))
	if e == era2018 {
		return text
	}
	largest := uint64(0) // the layouts before 2026 always print 0
	if e == era2026 {
		largest = p.largest
	}
	text += fmt.Sprintf("Reserved:         %20s\nPeakReserved:     %20s\n", show(p.reserved), show(p.reserved))
	if e == era2026 {
		text += fmt.Sprintf("PeakAllocated:        %20s\n", show(p.reserved))
	}
	return text + fmt.Sprintf("LargestFreeBlock: %20s\n", show(largest))
}

// report is the log of a failed request, and the pieces that decide.
func (p pool) report(e era) (log string, quotes []string) {
	rounded := (p.want + 255) &^ 255
	var first, totals string
	switch e {
	case era2018:
		first = fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s.", xla(p.want))
		log = e.at("W", "common_runtime/bfc_allocator.cc", 273, first+"  Current allocation summary follows.")
	case era2022, era2025:
		first = fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s (rounded to %d)requested by op ", xla(p.want), rounded)
		log = e.at("W", bfcFile, 497, first) +
			"If the cause is memory fragmentation maybe the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. \nCurrent allocation summary follows.\n"
		totals = fmt.Sprintf("Total bytes in pool: %d memory_limit_: %d available bytes: %d curr_region_allocation_bytes_: %d", p.reserved, p.limit, p.limit-p.reserved, 2*p.limit)
	default:
		first = fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s (rounded to %d) from the lower end requested by op ", xla(p.want), rounded)
		log = e.at("W", bfcFile, 512, first) +
			"  If this is caused by memory fragmentation, the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' may improve the situation.\n  Current allocation summary follows.\n"
		totals = fmt.Sprintf("Allocator memory summary: rounded request %s, total free in pool %s, largest free chunk usable by lower end %s, unallocated bytes %s, pool size %s, pool limit %s",
			xla(rounded), xla(p.reserved-p.inUse), xla(p.largest), xla(p.limit-p.reserved), xla(p.reserved), xla(p.limit))
	}
	log += e.at("I", bfcFile, 1071, "Sum Total of in-use chunks: "+xla(p.inUse))
	quotes = []string{first}
	if totals != "" {
		log += e.at("I", bfcFile, 1078, totals)
		quotes = append(quotes, totals)
	}
	quotes = append(quotes, lines(p.stats(e))[:2]...)
	return log + e.at("I", bfcFile, 1082, "Stats: ") + p.stats(e) + "\n" + p.exception(e), quotes
}

// exception is what the Python user sees, by era.
func (p pool) exception(e era) string {
	switch e {
	case era2018:
		return fmt.Sprintf("RuntimeError: Resource exhausted: Out of memory while trying to allocate %d bytes.\n", p.want)
	case era2022:
		return fmt.Sprintf("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate %d bytes.\n", p.want)
	case era2025:
		return fmt.Sprintf("jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate %s.\n", xla(p.want))
	default:
		return fmt.Sprintf("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate %s with allocator GPU_0_bfc on device 0.\n", xla(p.want))
	}
}

// poolCases are reports that the arithmetic of one pool decides.
func poolCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, gtx1080, rtx4090, h100} {
		e := eras[i]
		limit := part(c.total, 75)

		// Fragmentation: enough is free in the pool, none of it in one piece.
		p := pool{want: part(limit, 21), limit: limit, reserved: limit, inUse: part(limit, 61), largest: part(limit, 8)}
		log, quotes := p.report(eras[1+i%3]) // the oldest layout does not tell what is reserved
		cases = append(cases, cause(idFragment, "pool-"+c.key, log,
			fmt.Sprintf("%s of the pool's %s is free, more than the %s asked for, so the holes are too small", xla(limit-p.inUse), xla(limit), xla(p.want)), quotes...))

		// Too big: the request is larger than the pool may ever be, and than the card.
		p = pool{want: part(c.total, 160), limit: limit, reserved: limit, inUse: part(limit, 12), largest: part(limit, 88)}
		log, quotes = p.report(e)
		k := cause(idTooBig, "pool-"+c.key, log,
			fmt.Sprintf("one buffer of %s is larger than the whole card's %s", xla(p.want), xla(c.total)), quotes...)
		k.State = state{Devices: []stateDevice{c.device(own(limit, "jax"))}, Process: jaxProcess(nil)}.json()
		cases = append(cases, k)

		// The wall is the limit: full, and the card has the rest.
		p = pool{want: part(c.total, 8), limit: limit, reserved: limit, inUse: part(limit, 96), largest: part(limit, 3)}
		log, quotes = p.report(e)
		k = cause(idLimit, "pool-"+c.key, log,
			fmt.Sprintf("the pool's %s are full, and %s of the card lie outside it, more than the %s asked for", xla(limit), xla(c.total-limit), xla(p.want)), quotes...)
		s := state{Devices: []stateDevice{c.device(own(limit+300*mib, "jax"))}, Process: jaxProcess(nil)}
		cases = append(cases, withState(k, s, FactTotal, idTooBig)...)
	}
	for i, c := range []card{t4, rtx4090, a100x40} {
		// TensorFlow gives regions back because no large one is free.
		line, quote := refused(eras[i], part(c.total, 14))
		collect := "Garbage collection: deallocate free memory regions"
		cases = append(cases, cause(idFragment, "regions-"+c.key,
			line+eras[i].at("W", "tensorflow/core/common_runtime/bfc_allocator.cc", 343, collect+" (i.e., allocations) so that we can re-allocate a larger region")+
				fmt.Sprintf("ResourceExhaustedError: OOM when allocating tensor with shape[16,%d,512,512] and type float on /device:GPU:0 by allocator GPU_0_bfc\n", 64<<i),
			"the pool holds free regions, each too small, and releases them to ask for a larger one", quote, collect))
	}
	return cases
}

// shapeCases are TensorFlow's tensors whose shape alone is larger than its device.
func shapeCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, t4, rtx4090} {
		e := eras[1+i]
		memory := part(c.total, 85)
		side := uint64(1024)
		for side*side*4 <= memory*2 {
			side += 1024
		}
		created := fmt.Sprintf("Created device /job:localhost/replica:0/task:0/device:GPU:0 with %d MB memory:", memory/mib)
		text := fmt.Sprintf("OOM when allocating tensor with shape[%d,%d] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc", side, side)
		cases = append(cases, cause(idTooBig, "shape-"+c.key,
			e.at("I", "tensorflow/core/common_runtime/gpu/gpu_device.cc", 1613, created+"  -> device: 0, name: "+c.name)+
				"tensorflow.python.framework.errors_impl.ResourceExhaustedError: "+text+"\n",
			fmt.Sprintf("%d x %d floats of 4 bytes are %s, and the device has %s", side, side, xla(side*side*4), xla(memory)), created, text))
	}
	return cases
}

// dumpCases are BufferAssignment's report of a program.
func dumpCases() []Case {
	var cases []Case
	for i, c := range []card{gtx1080, t4, a100x40} {
		limit := part(c.total, 75)
		temp, parameters := part(limit, 84), part(limit, 20)
		all := temp + parameters + 26*mib
		total := "                 total allocation: " + xla(all)
		fail := fmt.Sprintf("RESOURCE_EXHAUSTED: Out of memory while trying to allocate %d bytes.", temp)
		log := "jaxlib.xla_extension.XlaRuntimeError: " + fail + "\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n" +
			"             parameter allocation: " + xla(parameters) + "\n              constant allocation: " + xla(36*kib) +
			"\n        maybe_live_out allocation: " + xla(26*mib) + "\n     preallocated temp allocation: " + xla(temp) +
			"\n  preallocated temp fragmentation: 0B (0.00%)\n" + total + "\n"
		k := cause(idLimit, "program-"+c.key, log,
			fmt.Sprintf("the program needs %s: more than the pool's %s, less than the card's %s", xla(all), xla(limit), xla(c.total)), fail, total)
		env := map[string]string{"XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"}
		if i == 1 {
			env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
		}
		cases = append(cases, withState(k, state{Devices: []stateDevice{{Index: 0, Name: c.name, Total: c.total}}, Process: jaxProcess(env)}, FactTotal, idTooBig)...)
	}
	return cases
}

// programCases are programs that do not fit: rematerialization's own words, and
// one buffer against its limit.
func programCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, rtx4090, a100x40, h100} {
		e := eras[1+i%3]
		limit, before := part(c.total, 62.5), part(c.total, 190)
		for _, v := range []struct {
			name  string
			saved float64 // percent of the need that the pass could save
		}{{"little", 3}, {"half", 31}} {
			after := part(before, 100-v.saved)
			text := fmt.Sprintf("Can't reduce memory use below %s by rematerialization; only reduced to %s, down from %s originally", xlaLong(limit), xlaLong(after), xlaLong(before))
			cases = append(cases, cause(idRemat, v.name+"-"+c.key, e.at("W", "xla/service/hlo_rematerialization.cc", 3005, text),
				fmt.Sprintf("%s of %s can be saved, and %s would have to be", xla(before-after), xla(before), xla(before-limit)), text))
		}
		// Nothing saved, and one buffer alone is over the limit.
		text := fmt.Sprintf("Can't reduce memory use below %s by rematerialization; only reduced to %s, down from %s originally", xlaLong(limit), xlaLong(before), xlaLong(before))
		p := pool{want: part(c.total, 90)}
		first := fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s (rounded to %d)requested by op ", xla(p.want), p.want)
		cases = append(cases, cause(idTooBig, "one-buffer-"+c.key,
			e.at("W", "xla/service/hlo_rematerialization.cc", 3005, text)+e.at("W", bfcFile, 497, first)+p.exception(e),
			fmt.Sprintf("one buffer of %s is over the limit of %s, and recomputing saves nothing", xla(p.want), xla(limit)), text, first))
	}
	return cases
}

// SmallDump is the dump of a pool of 8 KiB with two free blocks.
const SmallDump = `Allocator (GPU_0_bfc) ran out of memory trying to allocate 6.00KiB (rounded to 6144)requested by op
Next region of size 8192
InUse at 7f0000000000 of size 2048 next 1
Free  at 7f0000000800 of size 1024 next 2
InUse at 7f0000000c00 of size 1024 next 3
Free  at 7f0000001000 of size 4096 next 18446744073709551615
     Summary of in-use Chunks by size:
1 Chunks of size 1024 totalling 1.0KiB
1 Chunks of size 2048 totalling 2.0KiB
Sum Total of in-use chunks: 3.0KiB
Total bytes in pool: 8192 memory_limit_: 8192 available bytes: 0 curr_region_allocation_bytes_: 16384
Stats:
Limit:                            8192
InUse:                            3072
MaxInUse:                         8192
NumAllocs:                           4
MaxAllocSize:                     4096
Reserved:                            0
PeakReserved:                        0
LargestFreeBlock:                    0
`
