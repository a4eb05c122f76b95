package sim

import (
	_ "embed" // costs.txt
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"gpumem/internal/table"
)

// Costs is what the simulated driver's calls take: modelled time, which no call
// really waits for. The zero value means the model of an H100-class card, costs.txt, which
// says of each field what it is and what it rests on.
type Costs struct {
	SmallAlloc, BlockAlloc, AllocPerMiB              time.Duration // plain memory, in the driver's blocks of 2 MiB
	SmallFree, BlockFree, FreePerMiB                 time.Duration
	MemInfo                                          time.Duration
	Copy, CopyPerMiB, Fill, FillPerMiB               time.Duration // that the host waits for
	AddressReserve, AddressReserveLarge, AddressFree time.Duration // virtual memory
	MemCreate, MemCreatePerMiB                       time.Duration
	MemMap                                           time.Duration
	MemSetAccess, MemSetAccessPerMiB                 time.Duration
	MemUnmap, MemUnmapPerMiB                         time.Duration
	MemRelease, MemReleasePerMiB                     time.Duration
	Async                                            AsyncCosts
}

// AsyncCosts are what calls on streams, events and pools take on the host, and
// what queued work takes on the device.
type AsyncCosts struct {
	Launch, StreamCreate, StreamDestroy    time.Duration
	EventCreate, EventDestroy, EventRecord time.Duration
	WaitEvent, Query, Synchronize          time.Duration
	CopyPerMiB, FillPerMiB                 time.Duration // on the device
	PoolAlloc, PoolFree                    time.Duration
	PoolGrow, PoolGrowPerMiB               time.Duration
	PoolRelease, PoolReleasePerMiB         time.Duration
	PoolManage                             time.Duration
}

//go:embed costs.txt
var costsText string

// defaultCosts is costs.txt.
var defaultCosts = sync.OnceValue(func() Costs {
	c, err := readCosts(costsText)
	if err != nil {
		panic(err) // a test rules it out
	}
	return c
})

// readCosts reads the format of costs.txt: entries FIELD DURATION. The error names the line.
func readCosts(text string) (c Costs, err error) {
	entries, err := table.Read("costs.txt", text, "about", "measured")
	for _, e := range entries {
		name, value, _ := strings.Cut(e.Name, " ")
		of := reflect.ValueOf(&c).Elem()
		if async, ok := strings.CutPrefix(name, "Async."); ok {
			of, name = of.FieldByName("Async"), async
		}
		field := of.FieldByName(name)
		cost, err := time.ParseDuration(value)
		if err != nil || cost <= 0 || !field.IsValid() || field.Kind() != reflect.Int64 || !field.IsZero() {
			return c, fmt.Errorf("costs.txt:%d: %q: want a field of Costs, once, and what it takes, such as 2us", e.Line, e.Name)
		}
		field.SetInt(int64(cost))
	}
	return c, err
}

// driverBlock is the unit in which the driver opens memory for plain
// allocations: requests share a block until it is full, and larger ones are
// rounded up to it (signalnine/q27#1: 98.44 and 100 MiB use the same).
const driverBlock = 2 << 20

// ofSize is a cost that grows past the first block: base for up to 2 MiB, then
// perMiB more for each further MiB of the blocks that hold the bytes. Sizes
// past a petabyte cost the same as one, so that the product cannot overflow.
func ofSize(base, perMiB time.Duration, bytes uint64) time.Duration {
	blocks := (min(bytes, 1<<50) + driverBlock - 1) / driverBlock
	if blocks <= 1 {
		return base
	}
	return base + time.Duration(blocks-1)*(driverBlock>>20)*perMiB
}

// byMiB is a cost that goes by the bytes: perMiB for each MiB and its share for
// the rest. Sizes past a petabyte cost the same as one.
func byMiB(perMiB time.Duration, bytes uint64) time.Duration {
	bytes = min(bytes, 1<<50)
	return time.Duration(bytes>>20)*perMiB + time.Duration(bytes%(1<<20))*perMiB>>20
}
