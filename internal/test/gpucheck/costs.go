//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpumem/internal/table"
)

// Costs of the driver's calls, beside device/sim/costs.txt. cuda.test measures and writes a
// table, a row a call; a cost of the model is one of the rows, or a slope between two.

// cost is how an entry of costs.txt follows from the medians of rows, in us.
type cost struct {
	field string
	row   string
	// A cost per MiB is the difference from row to large, divided by the MiB between.
	large      string
	betweenMiB float64
}

// measuredCosts are the entries that the rows determine.
var measuredCosts = []cost{
	{field: "SmallAlloc", row: "cuMemAlloc 4096 B, a block held open"},
	{field: "BlockAlloc", row: "cuMemAlloc 2 MiB, alone"},
	{field: "AllocPerMiB", row: "cuMemAlloc 2 MiB, alone", large: "cuMemAlloc 1 GiB, alone", betweenMiB: 1022},
	{field: "SmallFree", row: "cuMemFree 4096 B, a block held open"},
	{field: "BlockFree", row: "cuMemFree 2 MiB, alone"},
	{field: "FreePerMiB", row: "cuMemFree 2 MiB, alone", large: "cuMemFree 1 GiB, alone", betweenMiB: 1022},
	{field: "MemInfo", row: "cuMemGetInfo"},
	{field: "Copy", row: "write 4096 B"},
	{field: "CopyPerMiB", row: "write 4096 B", large: "write 67108864 B", betweenMiB: 64},
	{field: "Fill", row: "fill 4096 B"},
	{field: "FillPerMiB", row: "fill 4096 B", large: "fill 268435456 B", betweenMiB: 256},
	{field: "AddressReserve", row: "cuMemAddressReserve 2 MiB"},
	{field: "AddressReserveLarge", row: "cuMemAddressReserve 1 GiB"},
	{field: "AddressFree", row: "cuMemAddressFree 2 MiB"},
	{field: "MemCreate", row: "cuMemCreate 2 MiB"},
	{field: "MemCreatePerMiB", row: "cuMemCreate 2 MiB", large: "cuMemCreate 1 GiB", betweenMiB: 1022},
	{field: "MemMap", row: "cuMemMap 2 MiB"},
	{field: "MemSetAccess", row: "cuMemSetAccess 2 MiB"},
	{field: "MemSetAccessPerMiB", row: "cuMemSetAccess 2 MiB", large: "cuMemSetAccess 1 GiB", betweenMiB: 1022},
	{field: "MemUnmap", row: "cuMemUnmap 2 MiB"},
	{field: "MemUnmapPerMiB", row: "cuMemUnmap 2 MiB", large: "cuMemUnmap 1 GiB", betweenMiB: 1022},
	{field: "MemRelease", row: "cuMemRelease 2 MiB"},
	{field: "MemReleasePerMiB", row: "cuMemRelease 2 MiB", large: "cuMemRelease 1 GiB", betweenMiB: 1022},
	{field: "Async.Launch", row: "queue a fill of 4096 B"},
	{field: "Async.WaitEvent", row: "cuStreamWaitEvent"},
	{field: "Async.CopyPerMiB", row: "cuCtxSynchronize, idle", large: "queue a copy of 268435456 B, and wait", betweenMiB: 256},
	{field: "Async.FillPerMiB", row: "cuCtxSynchronize, idle", large: "queue a fill of 268435456 B, and wait", betweenMiB: 256},
	{field: "Async.StreamCreate", row: "cuStreamCreate"},
	{field: "Async.StreamDestroy", row: "cuStreamDestroy"},
	{field: "Async.EventCreate", row: "cuEventCreate"},
	{field: "Async.EventDestroy", row: "cuEventDestroy"},
	{field: "Async.EventRecord", row: "cuEventRecord"},
	{field: "Async.Query", row: "cuStreamQuery, idle"},
	{field: "Async.Synchronize", row: "cuStreamSynchronize, idle"},
	{field: "Async.PoolAlloc", row: "cuMemAllocFromPoolAsync 1 MiB, threshold 0xffffffffffffffff"},
	{field: "Async.PoolFree", row: "cuMemFreeAsync 1 MiB, threshold 0xffffffffffffffff"},
	{field: "Async.PoolGrow", row: "cuMemAllocFromPoolAsync 32 MiB, threshold 0x0"},
	{field: "Async.PoolGrowPerMiB", row: "cuMemAllocFromPoolAsync 32 MiB, threshold 0x0",
		large: "cuMemAllocFromPoolAsync 1 GiB, threshold 0x0", betweenMiB: 992},
	{field: "Async.PoolRelease", row: "cuStreamSynchronize after it 32 MiB, threshold 0x0"},
	{field: "Async.PoolReleasePerMiB", row: "cuStreamSynchronize after it 32 MiB, threshold 0x0",
		large: "cuStreamSynchronize after it 1 GiB, threshold 0x0", betweenMiB: 992},
}

// costFigure is what begins the name of a figure that an entry of costs.txt can be remade from.
const costFigure = "cost."

// within is the factor by which a cost may be off: the model is to tell a cheap policy from an
// expensive one.
const within = 2

// costs measures, and compares with the model. A row of waits and amounts is kept in the log.
func costs(c *call) error {
	rounds, most := 30, uint64(16<<30)
	if c.simulated { // its fills take the host's time
		rounds, most = 4, 1<<30
	}
	table := filepath.Join(c.logFolder(), "costs.table.md")
	var once sync.Once
	compare := func(isWhole bool) (err error) {
		once.Do(func() { err = c.compareTable(table, isWhole) })
		return err
	}
	c.beforeQuit(func() { _ = compare(false) })
	isWhole, err := c.runTest("cuda.test", []string{"TestRealCosts"}, "-costs", table,
		"-costs-rounds", fmt.Sprint(rounds), "-costs-most", fmt.Sprint(most),
		fmt.Sprintf("-costs-waits=%v", !c.simulated))
	return errors.Join(err, compare(isWhole))
}

// compareTable compares the rows of a table with the model. It is whole unless cuda.test failed or was
// killed, which has been said: then it has the rows until then, or is not there.
func (c *call) compareTable(path string, isWhole bool) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && !isWhole {
		return nil
	}
	if err != nil {
		return err
	}
	model, err := readModel(filepath.Join(c.root, "costs.txt"))
	if err != nil {
		return err
	}
	c.compareCosts(readMedians(string(text)), model, isWhole)
	return nil
}

// compareCosts compares medians of rows with the model's costs, both in us. Calls of the simulated GPU cost
// what this program does, which no figure could be compared with. Of a table that is not whole, rows may be missing.
func (c *call) compareCosts(medians, model map[string]float64, isWhole bool) {
	missing := 0
	factor := float64(within)
	if c.simulated {
		factor = math.Inf(1)
	}
	for _, m := range measuredCosts {
		us, ok := m.from(medians)
		if !ok && !isWhole {
			missing++
			continue
		}
		if !ok {
			c.fault("%s%s: cuda.test measured no %q", costFigure, m.field, m.row)
			continue
		}
		if model[m.field] == 0 {
			c.fault("%s%s: costs.txt has no such entry", costFigure, m.field)
			continue
		}
		c.estimate(costFigure+m.field, us, model[m.field], "us", factor)
	}
	if missing > 0 {
		c.note("%d of %d costs are not compared, for cuda.test did not come to measure them", missing, len(measuredCosts))
	}
}

// from works the cost out, in us; false without its rows. A slope that the noise makes negative is 0.
func (m cost) from(medians map[string]float64) (float64, bool) {
	us, ok := medians[m.row]
	if !ok || m.large == "" {
		return us, ok
	}
	large, ok := medians[m.large]
	return max(0, large-us) / m.betweenMiB, ok
}

// readModel reads costs.txt: what each entry costs, in us.
func readModel(path string) (map[string]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	entries, err := table.Read(path, string(text), "about", "measured")
	model := map[string]float64{}
	for _, e := range entries {
		name, value, _ := strings.Cut(e.Name, " ")
		d, err := time.ParseDuration(value)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, e.Line, err)
		}
		model[name] = float64(d) / float64(time.Microsecond)
	}
	return model, err
}

// readMedians reads the rows `| call | n | least | median | p99 | most |`.
func readMedians(text string) map[string]float64 {
	medians := map[string]float64{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 6 {
			continue
		}
		if us, err := strconv.ParseFloat(strings.TrimSpace(cells[3]), 64); err == nil {
			medians[strings.TrimSpace(cells[0])] = us
		}
	}
	return medians
}
