package async

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/size"
)

// What XLA logs on a refusal (GpuCudaMallocAsyncAllocator::AllocateRaw and
// PrintAllocatorStatistics), and our account of it. doctor reads the former in users'
// logs, so that its odd forms are kept.

// refusal is how XLA writes the driver's CUDA_ERROR_OUT_OF_MEMORY. Nothing
// stands between the colons: the call has no more to say.
const refusal = "RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory"

// poolLines are the attributes in XLA's report, in its order.
var poolLines = []struct {
	name      string
	attribute device.PoolAttribute
}{
	{"RESERVED_MEM_CURRENT", device.PoolReservedCurrent},
	{"USED_MEM_CURRENT", device.PoolUsedCurrent},
	{"RESERVED_MEM_HIGH", device.PoolReservedHigh},
	{"USED_MEM_HIGH", device.PoolUsedHigh},
}

// Report is what XLA logs when the driver has refused twice, record for record:
// the request, the statistics, how many live blocks there are of each size, and
// what the pool says of itself. It asks the driver for five numbers; what that
// does not report is printed as unknown, where XLA prints what happens to lie
// there.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	var out alloc.Report
	line := func(format string, args ...any) {
		out = append(out, alloc.Message{Severity: alloc.Error, Text: fmt.Sprintf(format, args...)})
	}
	memory := "unknown"
	if free, total, err := a.dev.MemInfo(); err == nil {
		memory = fmt.Sprintf("%d/%d", free, total)
	}
	line("%s cuMemAllocAsync failed to allocate %d bytes: %s\n Reported by CUDA: Free memory/Total memory: %s", a.name, r.Bytes, refusal, memory)
	line("Stats: %s", a.statsText())
	line("Histogram of current allocation: (allocation_size_in_bytes, nb_allocation_of_that_sizes), ...;")
	count := map[uint64]int{}
	for c := range a.blocks.Walk {
		count[c.Requested]++
	}
	for _, n := range slices.Sorted(maps.Keys(count)) {
		line("%d, %d", n, count[n])
	}
	if !a.found {
		return out
	}
	for _, l := range poolLines {
		n, err := a.dev.PoolGetAttribute(a.pool, l.attribute)
		if err != nil {
			line("Error while fetching extra cudaMallocAsync pool attribute: %v", err)
			continue
		}
		line("CU_MEMPOOL_ATTR_%s: %d", l.name, n)
	}
	return out
}

// Why says what stands in a refused request's way. Where the pool's free memory
// lies only the driver knows.
func (a *Allocator) Why(r alloc.Request, deviceFree int64) []string {
	s := a.Stats()
	if r.Bytes > a.info.Total {
		return []string{fmt.Sprintf("It is more than the device's %s; no free would help.", size.Format(a.info.Total))}
	}
	out := []string{fmt.Sprintf("The driver's pool holds %s, of which %s is allocated; where the rest lies is unknown. It has no piece as large, nor could it grow by that much.",
		size.Format(s.PoolBytes), size.Format(s.BytesInUse))}
	if deviceFree >= 0 {
		out = append(out, fmt.Sprintf("The device has %s free beside the pool.", size.Format(uint64(deviceFree))))
	}
	return out
}

// statsText is XLA's table of statistics, which has nothing of the pool's own.
func (a *Allocator) statsText() string {
	s := &a.blocks.Count
	var b strings.Builder
	bytes := func(label string, n uint64) {
		fmt.Fprintf(&b, "%-18s%20s\n", label, size.XLA(int64(min(n, math.MaxInt64))))
	}
	bytes("Limit:", s.BytesLimit)
	bytes("InUse:", s.BytesInUse)
	bytes("MaxInUse:", s.PeakBytesInUse)
	fmt.Fprintf(&b, "%-18s%20s\n", "NumAllocs:", strconv.FormatInt(s.NumAllocs, 10))
	bytes("MaxAllocSize:", s.LargestAllocSize)
	bytes("Reserved:", 0)
	bytes("PeakReserved:", 0)
	fmt.Fprintf(&b, "%-22s%20s\n", "PeakAllocated:", size.XLA(0)) // four columns off in the original
	bytes("LargestFreeBlock:", 0)
	return b.String()
}
