//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/gpucheck/report"
)

// Comparisons: of what is right no fault is found, and of what is wrong the fault that is written here.

// A comparison is one call of a method with what was measured. What is noted is among the faults, as "note: ".
type comparison struct {
	name   string
	do     func(*call)
	faults []string
}

// compared is a call whose events can be read back. It is on a GPU unless the name begins with "simulated".
func compared(t *testing.T, name string) (c *call, events func() []event) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "events"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b := &bundle{scratch: t.TempDir(), root: t.TempDir()}
	b.simulated, b.python = strings.HasPrefix(name, "simulated"), "python3"
	if err := os.Mkdir(b.logFolder(), 0o755); err != nil {
		t.Fatal(err)
	}
	c = &call{check: check{name: "test"}, bundle: b, events: f, until: time.Now().Add(time.Minute)}
	return c, func() []event {
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		return readEvents(io.NopCloser(f))()
	}
}

// compareAll runs comparisons.
func compareAll(t *testing.T, list []comparison) {
	t.Helper()
	for _, tc := range list {
		t.Run(tc.name, func(t *testing.T) {
			c, events := compared(t, tc.name)
			tc.do(c)
			var faults []string
			figures := 0
			for _, e := range events() {
				if e.Fault != "" {
					faults = append(faults, e.Fault)
				}
				if e.Note != "" {
					faults = append(faults, "note: "+e.Note)
				}
				if e.Figure != nil {
					figures++
				}
			}
			if diff := cmp.Diff(tc.faults, faults); diff != "" {
				t.Errorf("the faults differ (-want +got):\n%s", diff)
			}
			if figures == 0 && len(faults) == 0 && !strings.HasSuffix(tc.name, "nothing") {
				t.Error("nothing was measured")
			}
		})
	}
}

func TestCompare(t *testing.T) {
	compare := func(value, tolerance float64) func(*call) {
		return func(c *call) { c.compare("f", value, 100, "us", tolerance) }
	}
	estimate := func(value float64) func(*call) {
		return func(c *call) { c.estimate("f", value, 100, "us", 2) }
	}
	says := func(is string) []string { return []string{"f: measured " + is + ", the documents say 100 us"} }
	compareAll(t, []comparison{
		{"equal", compare(100, 0), nil},
		{"one more", compare(101, 0), says("101 us")},
		{"one less", compare(99, 0), says("99 us")},
		{"within", compare(119, .2), nil},
		{"above", compare(121, .2), says("121 us")},
		{"below", compare(79, .2), says("79 us")},
		{"estimate", estimate(100), nil},
		{"estimate, twice", estimate(200), nil},
		{"estimate, half", estimate(50), nil},
		{"estimate, above twice", estimate(201), says("201 us")},
		{"estimate, below half", estimate(49), says("49 us")},
		{"a line of two", func(c *call) { c.fault("a\nb") }, []string{"a | b"}},
		{"equal as printed", func(c *call) { c.compare("f", 10<<20+1, 10<<20, "bytes", 0) },
			[]string{"f: measured 10485761 bytes, the documents say 10485760 bytes"}},
	})
}

// TestMust refuses a program whose status is not 0, and one that does not end.
func TestMust(t *testing.T) {
	c, _ := compared(t, "a GPU")
	sh := func(text string) process { return process{args: []string{"sh", "-c", text}} }
	if e, err := c.must(sh("echo out; echo err >&2")); err != nil || e.stdout != "out\n" || e.stderr != "err\n" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := c.must(sh("echo why >&2; exit 3")); err == nil || err.Error() != "sh -c echo why >&2; exit 3: exit status 3: why" {
		t.Errorf("status 3: %v", err)
	}
	if e, err := c.exec(sh("exit 3")); err != nil || e.status != 3 {
		t.Errorf("exec: %+v, %v", e, err)
	}
	c.until = time.Now().Add(margin + 200*time.Millisecond)
	begun := time.Now()
	if _, err := c.must(sh("sleep 30")); err == nil || !strings.Contains(err.Error(), "no end after") || time.Since(begun) > 10*time.Second {
		t.Errorf("a program without an end: %v after %v", err, time.Since(begun))
	}
}

// TestLeft: no limit inside of a check is later than the check's own.
func TestLeft(t *testing.T) {
	c := &call{until: time.Now().Add(10 * time.Second)}
	if n := c.left(); n > 7*time.Second || n < 6*time.Second {
		t.Errorf("%v are left of 10 s", n)
	}
	if n := c.atMost(time.Minute); n > 7*time.Second {
		t.Errorf("a minute is %v", n)
	}
	if n := c.atMost(time.Second); n != time.Second {
		t.Errorf("a second is %v", n)
	}
	c.until = time.Now()
	if n := c.left(); n <= 0 || n > time.Second {
		t.Errorf("%v are left of nothing", n)
	}
}

func TestCompareGrants(t *testing.T) {
	one := func(what string, requested uint64, bytes int64) func(*call) {
		return func(c *call) { c.compareGrants([]granted{{what, requested, bytes, false}}) }
	}
	wrong := func(name, is, says string) []string {
		return []string{name + ": measured " + is + ", the documents say " + says}
	}
	compareAll(t, []comparison{
		{"alloc", one("alloc", 3<<20, 4<<20), nil},
		{"alloc, not rounded", one("alloc", 3<<20, 3<<20), wrong("alloc 3145728", "3.00 MiB", "4.00 MiB")},
		{"many", one("alloc-4", 4<<20, 8<<20), nil},
		{"many that share a block", one("alloc-4", 4<<20, 4<<20), wrong("alloc-4 4194304", "4.00 MiB", "8.00 MiB")},
		{"page", one("page", 2<<20, 4<<20), wrong("page 2097152", "4.00 MiB", "2.00 MiB")},
		{"pitched", one("pitched", 2<<20, 2<<20), nil},
		{"pitched, more", one("pitched", 2<<20, 4<<20), wrong("pitched 2097152", "4.00 MiB", "2.00 MiB")},
		{"granularity", one("granularity-least", 0, 2<<20), nil},
		{"granularity, less", one("granularity-best", 0, 65536), wrong("granularity-best", "65536 bytes", "2.00 MiB")},
		{"managed", one("managed-untouched", 8<<20, 0), nil},
		{"managed, taken", one("managed-untouched", 8<<20, 2<<20), wrong("managed-untouched 8388608", "2.00 MiB", "0 bytes")},
		{"pool", one("pool", 1<<20, 32<<20), nil},
		{"pool by less", one("pool", 1<<20, 2<<20), wrong("pool 1048576", "2.00 MiB", "32.00 MiB")},
		{"reserved", one("pool-reserved", 33<<20, 64<<20), nil},
		{"reserved, less", one("pool-reserved", 33<<20, 33<<20), wrong("pool-reserved 34603008", "33.00 MiB", "64.00 MiB")},
		{"kept nothing", one("pool-kept", 32<<20, 0), nil},
		{"kept", one("pool-kept", 32<<20, 32<<20), wrong("pool-kept 33554432", "32.00 MiB", "0 bytes")},
		{"kept, and the pool grows by less", func(c *call) {
			c.compareGrants([]granted{{"pool-kept", 1, 32 << 20, false}, {"pool", 33 << 20, 32 << 20, false}})
		}, wrong("pool-kept 1", "32.00 MiB", "0 bytes")},
		{"something else", one("context", 0, 1), nil},
	})
}

// TestGrantsAreAll: a row that c/grants does not print is a fault, and of one that failed it is the call's error.
func TestGrantsAreAll(t *testing.T) {
	run := func(change func([]string) []string) func(*call) {
		return func(c *call) {
			var lines []string
			for _, name := range askedGrants(granule) {
				lines = append(lines, name+" 0")
			}
			writeScript(t, filepath.Join(c.root, "c/grants"), "cat <<'END'\n"+strings.Join(change(lines), "\n")+"\nEND\n")
			rows, err := c.askGrants()
			if err != nil {
				t.Fatal(err)
			}
			c.figure("rows", float64(len(rows)), "")
			c.allGrants(rows)
		}
	}
	without := func(names ...string) func([]string) []string {
		return func(lines []string) []string {
			return slices.DeleteFunc(lines, func(line string) bool { return slices.Contains(names, strings.TrimSuffix(line, " 0")) })
		}
	}
	compareAll(t, []comparison{
		{"all", run(without()), nil},
		{"two are missing", run(without("alloc 3145728", "pool-kept 1024")), []string{"c/grants says nothing of alloc 3145728, pool-kept 1024"}},
		{"one failed", run(func(lines []string) []string {
			return append(without("managed-untouched 16777216")(lines), "managed-untouched 16777216 error 801")
		}), []string{"managed-untouched 16777216 error 801"}},
		{"smaller pages", run(func(lines []string) []string {
			return append(without("granularity-least 1", "page 33554432")(lines), "granularity-least 1 524288", "page 524288 0")
		}), []string{"c/grants says nothing of page 33554432"}},
	})
	c, events := compared(t, "a GPU")
	writeScript(t, filepath.Join(c.root, "c/grants"), "echo context 1 1")
	if err := grants(c); err != nil {
		t.Fatal(err)
	}
	all := events()
	isMissed := func(e event) bool { return strings.HasPrefix(e.Fault, "c/grants says nothing of alloc 1, alloc 512") }
	if !slices.ContainsFunc(all, isMissed) {
		t.Errorf("%+v: the check holds without rows", all)
	}
}

// writeScript makes a script of the shell.
func writeScript(t *testing.T, path, text string) {
	t.Helper()
	from := filepath.Join(t.TempDir(), "script")
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(from, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	if err == nil {
		err = copyProgram(from, path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCompareContext(t *testing.T) {
	const before, context = 100 * mib, 552 * mib
	rows := func(bytes int64) func(*call) {
		return func(c *call) {
			c.compareContext([]granted{{"alloc", 1, 1, false}, {"context", 0, bytes, false}}, gpu{UsedBytes: before})
		}
	}
	compareAll(t, []comparison{
		{"as said", rows(before + context), nil},
		{"a fifth more", rows(before + context*12/10 - mib), nil},
		{"too much", rows(before + context*12/10 + mib),
			[]string{"outside.context.9.any: measured 663.40 MiB, the documents say 552.00 MiB"}},
		{"too little", rows(before + context*8/10 - mib),
			[]string{"outside.context.9.any: measured 440.60 MiB, the documents say 552.00 MiB"}},
		{"less than before", rows(before - mib), []string{"outside.context.9.any: measured -1.00 MiB, the documents say 552.00 MiB"}},
		{"one that failed", func(c *call) { c.compareContext([]granted{{what: "context", failed: true}}, gpu{}) },
			[]string{"c/grants says nothing of a context"}},
		{"none", func(c *call) { c.compareContext(nil, gpu{}) }, []string{"c/grants says nothing of a context"}},
	})
}

func TestCompareLimits(t *testing.T) {
	const lease = 3 << 30
	two := func(bytes uint64, code int, used float64) func(*call) {
		return func(c *call) {
			c.compareLimits([]*holder{{bytes: lease, code: 2}, {bytes: bytes, code: code}}, used)
		}
	}
	compareAll(t, []comparison{
		{"full", two(lease, 2, 2*lease), nil},
		{"all but a context", two(lease-704*mib, 2, 2*lease), nil},
		{"above the lease", two(lease+1, 2, lease),
			[]string{"program 2 has 3072.00 MiB of a lease of 3 GiB, of which at least 2368.00 MiB are reachable"}},
		{"a block less", two(lease-768*mib, 2, lease),
			[]string{"program 2 has 2304.00 MiB of a lease of 3 GiB, of which at least 2368.00 MiB are reachable"}},
		{"not refused", two(lease, 0, lease), []string{"program 2 was answered 0 above its limit, want 2, out of memory"}},
		{"more in use", two(lease, 2, 2*lease+mib), []string{"two leases of 3 GiB take 6145.00 MiB"}},
	})
	for _, tc := range []struct {
		during, now, bytes uint64
		want               bool
	}{{10, 4, 6, true}, {10, 3, 6, true}, {10, 5, 6, false}, {10, 10, 0, false}, {10, 11, 6, false}} {
		if got := isBack(gpu{UsedBytes: tc.during}, gpu{UsedBytes: tc.now}, tc.bytes); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// someCosts are medians of all rows, and the model that they give.
func someCosts() (medians, model map[string]float64) {
	medians, model = map[string]float64{}, map[string]float64{}
	for _, m := range measuredCosts {
		medians[m.row] = 10
	}
	for _, m := range measuredCosts {
		if m.large != "" {
			medians[m.large] = 10 + 3*m.betweenMiB
		}
	}
	for _, m := range measuredCosts {
		us, _ := m.from(medians)
		model[m.field] = us
	}
	return medians, model
}

func TestCompareSwaps(t *testing.T) {
	const bytes = 256 << 20
	list := func(freed float64) []swapped {
		return []swapped{{time.Second, 2 * time.Second, bytes}, {time.Second, time.Second, freed}, {time.Second, time.Second, bytes + 4096}}
	}
	compareAll(t, []comparison{
		{name: "all is free", do: func(c *call) { c.compareSwaps(256, list(bytes)) }},
		{name: "a page is kept", do: func(c *call) { c.compareSwaps(256, list(bytes-2<<20)) },
			faults: []string{"256 MiB left the GPU, and 254.00 MiB are free that were not"}},
	})
}

func TestCompareCosts(t *testing.T) {
	medians, model := someCosts()
	with := func(row string, us float64) func(*call) {
		return func(c *call) {
			changed := map[string]float64{}
			for name, value := range medians {
				changed[name] = value
			}
			if changed[row] = us; us == 0 {
				delete(changed, row)
			}
			c.compareCosts(changed, model, true)
		}
	}
	without := func(n int) string {
		return fmt.Sprintf("note: %d of %d costs are not compared, for cuda.test did not come to measure them", n, len(measuredCosts))
	}
	compareAll(t, []comparison{
		{"as the model", with("cuMemGetInfo", 10), nil},
		{"above twice", with("cuMemGetInfo", 20.1), []string{"cost.MemInfo: measured 20.1 us, the documents say 10 us"}},
		{"below half", with("cuMemGetInfo", 4.9), []string{"cost.MemInfo: measured 4.9 us, the documents say 10 us"}},
		{"simulated, 100 times", with("cuMemGetInfo", 1000), nil},
		{"no row", with("cuMemGetInfo", 0), []string{`cost.MemInfo: cuda.test measured no "cuMemGetInfo"`}},
		{"no entry", func(c *call) {
			c.compareCosts(medians, map[string]float64{"MemInfo": 10}, true)
		}, noEntry()},
		{"a part of the table", func(c *call) {
			c.compareCosts(map[string]float64{"cuMemGetInfo": 10, "cuStreamCreate": 10}, model, false)
		}, []string{without(len(measuredCosts) - 2)}},
		{"a part of the table, and above twice", func(c *call) {
			c.compareCosts(map[string]float64{"cuMemGetInfo": 30}, model, false)
		}, []string{"cost.MemInfo: measured 30 us, the documents say 10 us", without(len(measuredCosts) - 1)}},
		{"the whole table as a part", func(c *call) { c.compareCosts(medians, model, false) }, nil},
	})
}

// makeCosts puts a cuda.test into a bundle that writes a table with the first rows, all if there are fewer,
// and then does what a script says; and a costs.txt that it agrees with.
func makeCosts(t *testing.T, b *bundle, rows int, script string) {
	t.Helper()
	medians, model := someCosts()
	var table, entries strings.Builder
	for _, name := range slices.Sorted(maps.Keys(medians))[:min(rows, len(medians))] {
		fmt.Fprintf(&table, "| %s | 1 | 0 | %f | 0 | 0 |\n", name, medians[name])
	}
	for name, us := range model {
		fmt.Fprintf(&entries, "%s %fus\n\tabout: made up\n\n", name, us)
	}
	path := filepath.Join(b.root, "table")
	err := errors.Join(os.WriteFile(path, []byte(table.String()), 0o644),
		os.WriteFile(filepath.Join(b.root, "costs.txt"), []byte(entries.String()), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	const write = "while [ \"$1\" != -costs ]; do shift; done\n[ -s '%[1]s' ] && cat '%[1]s' >\"$2\"\n"
	writeScript(t, filepath.Join(b.root, "cuda.test"), fmt.Sprintf(write, path)+script)
}

// TestCostsOfATestThatFails: what was measured before cuda.test failed, or was killed, is compared.
func TestCostsOfATestThatFails(t *testing.T) {
	const passes = "echo '--- PASS: TestRealCosts (1.00s)'"
	all := len(measuredCosts)
	for _, tc := range []struct {
		name, script string
		rows         int
		costs        int // compared
		says         []string
	}{
		{"whole", passes, 1000, all, nil},
		{"killed", "exec sleep 1000", 1000, all, []string{"error: no end after"}},
		{"killed in between", "exec sleep 1000", 20, -1, []string{"error: no end after", "note: "}},
		{"killed before the first row", "exec sleep 1000", 0, 0, []string{"error: no end after"}},
		{"failed in between", "echo '--- FAIL: TestRealCosts (1.00s)'; exit 1", 20, -1, []string{"TestRealCosts: it says nothing", "note: "}},
		{"passed without a table", passes, 0, 0, []string{"error: open "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, events := compared(t, "a GPU")
			if c.until = time.Now().Add(time.Minute); strings.HasPrefix(tc.name, "killed") {
				c.until = time.Now().Add(margin + 2*time.Second)
			}
			makeCosts(t, c.bundle, tc.rows, tc.script)
			err := costs(c)
			var says []string
			n := 0
			for _, e := range events() {
				switch {
				case e.Figure != nil && strings.HasPrefix(e.Figure.Name, costFigure):
					n++
				case e.Fault != "":
					says = append(says, e.Fault)
				case e.Note != "":
					says = append(says, "note: "+e.Note)
				}
			}
			if err != nil {
				text := strings.TrimPrefix(err.Error(), c.root+"/")
				if at := strings.Index(text, "no end after"); at >= 0 {
					text = text[at:]
				}
				says = append([]string{"error: " + text}, says...)
			}
			isPart := tc.costs < 0 && n > 0 && n < all
			if !isPart && n != tc.costs {
				t.Errorf("%d costs are compared of %d, want %d", n, all, tc.costs)
			}
			if !slices.EqualFunc(says, tc.says, strings.HasPrefix) {
				t.Errorf("%q, want %q", says, tc.says)
			}
		})
	}
}

// TestCostsWhenTheTimeIsUp: a check that is told to quit compares what it has.
func TestCostsWhenTheTimeIsUp(t *testing.T) {
	b := testBundle(t)
	makeCosts(t, b, 1000, "exec sleep 1000")
	c, _ := find("planted-costs")
	r := b.one(t.Context(), c, 5*time.Second)
	if r.Outcome != report.NotReached || len(r.Figures) != len(measuredCosts) || r.Faults != nil {
		t.Errorf("%s, %q, %d figures, want it to be not reached with %d: %q", r.Outcome, r.Why, len(r.Figures), len(measuredCosts), r.Faults)
	}
}

// noEntry is what is said of a model that has MemInfo alone.
func noEntry() (faults []string) {
	for _, m := range measuredCosts {
		if m.field != "MemInfo" {
			faults = append(faults, "cost."+m.field+": costs.txt has no such entry")
		}
	}
	return faults
}

// TestMeasuredCosts has the call that each entry of costs.txt is measured by, and of a cost per MiB the
// sizes that it is a slope between, in MiB.
func TestMeasuredCosts(t *testing.T) {
	calls := map[string]string{
		"SmallAlloc": "cuMemAlloc 4096 B", "BlockAlloc": "cuMemAlloc 2 MiB", "AllocPerMiB": "cuMemAlloc 2 1024",
		"SmallFree": "cuMemFree 4096 B", "BlockFree": "cuMemFree 2 MiB", "FreePerMiB": "cuMemFree 2 1024",
		"MemInfo": "cuMemGetInfo", "Copy": "write 4096 B", "CopyPerMiB": "write 0 64", "Fill": "fill 4096 B", "FillPerMiB": "fill 0 256",
		"AddressReserve": "cuMemAddressReserve 2 MiB", "AddressReserveLarge": "cuMemAddressReserve 1 GiB", "AddressFree": "cuMemAddressFree 2 MiB",
		"MemCreate": "cuMemCreate 2 MiB", "MemCreatePerMiB": "cuMemCreate 2 1024", "MemMap": "cuMemMap 2 MiB",
		"MemSetAccess": "cuMemSetAccess 2 MiB", "MemSetAccessPerMiB": "cuMemSetAccess 2 1024",
		"MemUnmap": "cuMemUnmap 2 MiB", "MemUnmapPerMiB": "cuMemUnmap 2 1024",
		"MemRelease": "cuMemRelease 2 MiB", "MemReleasePerMiB": "cuMemRelease 2 1024",
		"Async.Launch": "queue a fill of 4096 B", "Async.WaitEvent": "cuStreamWaitEvent",
		"Async.CopyPerMiB": "queue a copy of 0 256", "Async.FillPerMiB": "queue a fill of 0 256",
		"Async.StreamCreate": "cuStreamCreate", "Async.StreamDestroy": "cuStreamDestroy",
		"Async.EventCreate": "cuEventCreate", "Async.EventDestroy": "cuEventDestroy", "Async.EventRecord": "cuEventRecord",
		"Async.Query": "cuStreamQuery", "Async.Synchronize": "cuStreamSynchronize, idle",
		"Async.PoolAlloc": "cuMemAllocFromPoolAsync 1 MiB", "Async.PoolFree": "cuMemFreeAsync 1 MiB",
		"Async.PoolGrow": "cuMemAllocFromPoolAsync 32 MiB", "Async.PoolGrowPerMiB": "cuMemAllocFromPoolAsync 32 1024",
		"Async.PoolRelease": "cuStreamSynchronize after it 32 MiB", "Async.PoolReleasePerMiB": "cuStreamSynchronize after it 32 1024",
	}
	for _, m := range measuredCosts {
		want := calls[m.field]
		delete(calls, m.field)
		if m.large == "" {
			if !strings.HasPrefix(m.row, want) || want == "" {
				t.Errorf("%s is measured by %q, want %q", m.field, m.row, want)
			}
			continue
		}
		words := strings.Fields(want)
		call := strings.Join(words[:len(words)-2], " ")
		var small, large float64
		if _, err := fmt.Sscan(words[len(words)-2]+" "+words[len(words)-1], &small, &large); err != nil {
			t.Fatal(err)
		}
		mib := fmt.Sprintf("%s %.0f MiB", call, small)
		if small == 0 { // of a row whose bytes are nothing beside the large one's
			mib = ""
		}
		sizes := []string{fmt.Sprintf("%s %.0f GiB", call, large/1024), fmt.Sprintf("%s %.0f B", call, large*(1<<20))}
		isLarge := slices.ContainsFunc(sizes, func(size string) bool { return strings.HasPrefix(m.large, size) })
		if !strings.HasPrefix(m.row, mib) || !isLarge || m.betweenMiB != large-small {
			t.Errorf("%s is the slope from %q to %q by %v MiB, want %s", m.field, m.row, m.large, m.betweenMiB, want)
		}
	}
	if len(calls) > 0 {
		t.Errorf("not measured are %v", calls)
	}
}

// TestPassed reads what compiled tests print.
func TestPassed(t *testing.T) {
	const good = "=== RUN   TestA\n    a_test.go:1: fine\n--- PASS: TestA (0.00s)\nPASS\n"
	const bad = "=== RUN   TestA\n    a_test.go:1: it is lost\n--- FAIL: TestA (0.00s)\n=== RUN   TestB\n--- FAIL: TestB (0.00s)\nFAIL\n"
	const skip = "=== RUN   TestA\n    a_test.go:1: no GPU\n--- SKIP: TestA (0.00s)\nPASS\n"
	asked := func(tests []string, e ended, killed error, want string) func(*call) {
		return func(c *call) {
			got := ""
			if err := c.passed("a.test", tests, e, killed); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%+v: error %q, want %q", e, got, want)
			}
		}
	}
	passed := func(e ended, killed error, want string) func(*call) { return asked([]string{"TestA"}, e, killed, want) }
	const under = "--- PASS: TestA (0.00s)\n    --- PASS: TestA/cuda:0_bfc (0.00s)\nPASS\n"
	compareAll(t, []comparison{
		{"passed", passed(ended{stdout: good}, nil, ""), nil},
		{"failed", passed(ended{stdout: bad, status: 1}, nil, ""), []string{"TestA: it is lost", "TestB: it says nothing"}},
		{"skipped", passed(ended{stdout: skip}, nil, "no GPU"), nil},
		{"skipped in part", passed(ended{stdout: good + strings.ReplaceAll(skip, "TestA", "TestB")}, nil, ""),
			[]string{"note: TestB is skipped: no GPU"}},
		{"one of two", asked([]string{"TestA", "TestB"}, ended{stdout: good}, nil, ""), []string{"a.test says nothing of TestB"}},
		{"one of three, and a crash", asked([]string{"TestA", "TestB", "TestC"}, ended{stdout: bad, status: 2}, nil, ""),
			[]string{"TestA: it is lost", "TestB: it says nothing", "a.test says nothing of TestC"}},
		{"subtests", asked([]string{"TestA/cuda"}, ended{stdout: under}, nil, ""), nil},
		{"no subtest", asked([]string{"TestA/cuda"}, ended{stdout: good}, nil, ""), []string{"a.test says nothing of TestA/cuda"}},
		{"crashed", passed(ended{stdout: good, stderr: "SIGSEGV", status: 2}, nil, ""), []string{"a.test ends with status 2: SIGSEGV"}},
		{"no test", passed(ended{stdout: "PASS\n"}, nil, ""), []string{"a.test ran no test"}},
		{"killed", passed(ended{stdout: good}, errors.New("no end"), "no end"), nil},
		{"silent nothing", func(c *call) { c.silent(ended{}) }, nil},
		{"silent, with a line", func(c *call) { c.silent(ended{stdout: "wrong\n"}) }, []string{"wrong"}},
		{"silent, with an error", func(c *call) { c.silent(ended{stderr: "why\n", status: 1}) }, []string{"why", "exit status 1"}},
	})
}

// TestCLibrary: the C program finds the library in a folder with nothing else, and leaves a recording.
func TestCLibrary(t *testing.T) {
	const found = `case $LD_LIBRARY_PATH in *:/elsewhere) ;; *) echo "the path is $LD_LIBRARY_PATH" ;; esac
folder=${LD_LIBRARY_PATH%%:*}
[ "$(cat "$folder/libgpumem_c.so")" = library ] || echo "no library in $folder"
[ "$(ls "$folder")" = libgpumem_c.so ] || echo "more in $folder"
[ -z "$LD_PRELOAD" ] || echo "preloaded: $LD_PRELOAD"
`
	t.Setenv("LD_LIBRARY_PATH", "/elsewhere")
	run := func(script string) func(*call) {
		return func(c *call) {
			libraries := filepath.Join(c.scratch, "lib/gpumem")
			err := errors.Join(os.MkdirAll(libraries, 0o755), os.WriteFile(filepath.Join(libraries, "libgpumem_c.so"), []byte("library"), 0o644),
				os.WriteFile(filepath.Join(libraries, "libcuda.so.1"), nil, 0o644))
			if err != nil {
				t.Fatal(err)
			}
			writeScript(t, filepath.Join(c.root, "c/capi"), found+script)
			if err := cLibrary(c); err != nil {
				t.Error(err)
			}
		}
	}
	compareAll(t, []comparison{
		{"good", run(`[ "$1" = cuda:0 ] && echo recorded >"$2"`), nil},
		{"an empty recording", run(`: >"$2"`), []string{"the recording is empty"}},
		{"a line", run(`echo x >"$2"; echo line 3`), []string{"line 3"}},
	})
	c, events := compared(t, "a GPU")
	run("exit 0")(c)
	if all := events(); len(all) != 1 || !strings.HasPrefix(all[0].Fault, "there is no recording: ") {
		t.Errorf("%+v, want that there is no recording", all)
	}
}

func TestEnough(t *testing.T) {
	estimate := map[string]float64{"context": 500 * mib, "cuDNN": 400 * mib, "NCCL": 512 * mib}
	with := func(measured map[string]float64) func(*call) {
		return func(c *call) { c.enough("jax", measured, estimate) }
	}
	compareAll(t, []comparison{
		{"as estimated", with(map[string]float64{"context": 550 * mib, "cuDNN": 350 * mib}), nil},
		{"graphs and NCCL apart", with(map[string]float64{"context": 900 * mib, "graph": 90 * mib, oneRank: 512 * mib}), nil},
		{"more", with(map[string]float64{"context": 550 * mib, "cuDNN": 351 * mib}),
			[]string{"outside.all.jax: 901.00 MiB, and the estimate is 900.00 MiB"}},
		{"more of NCCL", with(map[string]float64{oneRank: 513 * mib}),
			[]string{"outside.NCCL-one-rank.jax: 513.00 MiB, and the estimate for several is 512.00 MiB"}},
	})
}

// TestOutsideIsAll: a part that outside.py does not print is a fault.
func TestOutsideIsAll(t *testing.T) {
	run := func(module string, parts ...string) func(*call) {
		return func(c *call) {
			writeScript(t, c.command(), `echo '{"devices": [{"used_bytes": 1, "total_bytes": 100, "compute_capability": "9.0"}]}'`)
			text := ""
			for _, part := range parts {
				text += fmt.Sprintf("echo '{\"part\": %q, \"bytes\": 1}'\n", part)
			}
			c.python = filepath.Join(c.root, "python")
			writeScript(t, c.python, text)
			if err := outside(module, "jax")(c); err != nil {
				t.Error(err)
			}
		}
	}
	compareAll(t, []comparison{
		{"all", run("cupy", "context", "import", "kernels", "cuBLAS"), nil},
		{"one is missing", run("jax", "context", "import", "kernels", "cuBLAS"), []string{"outside.py says nothing of cuDNN"}},
	})
}

// TestEstimated: the estimate is that of package runenv for the GPU, by parts, with NCCL.
func TestEstimated(t *testing.T) {
	got, err := estimated("jax", gpu{TotalBytes: 141 << 30, CC: "9.0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"context", "kernels", "cuBLAS", "cuDNN", "NCCL"} {
		if got[part] < mib {
			t.Errorf("%s: %v bytes", part, got[part])
		}
	}
	if len(got) != 5 {
		t.Errorf("%v", got)
	}
	older, err := estimated("jax", gpu{TotalBytes: 79 << 30, CC: "8.0"})
	if err != nil || older["cuBLAS"] >= got["cuBLAS"] {
		t.Errorf("cuBLAS before Hopper: %v, %v", older["cuBLAS"], err)
	}
	if _, err := estimated("jax", gpu{}); err == nil {
		t.Error("a GPU of no compute capability is accepted")
	}
}

func TestCompareFit(t *testing.T) {
	const unit = 1000 * mib
	said := predicted{inUse: unit, held: 2 * unit, outside: unit}
	with := func(workspace float64, took consumed) func(*call) {
		return func(c *call) { c.compareFit(fitProgram{"mlp", "1", workspace}, said, took) }
	}
	good := consumed{InUsePeak: unit, HeldPeak: 2 * unit, outside: unit}
	compareAll(t, []comparison{
		{"as said", with(0, good), nil},
		{"2 % more", with(0, consumed{InUsePeak: 1.02 * unit, HeldPeak: 2.04 * unit, outside: unit}), nil},
		{"in use more", with(0, consumed{InUsePeak: 1.03 * unit, HeldPeak: 2 * unit, outside: unit}),
			[]string{"mlp in use: 1030.00 MiB at the peak, and fit says 1000.00 MiB"}},
		{"in use less", with(0, consumed{InUsePeak: .97 * unit, HeldPeak: 2 * unit, outside: unit}),
			[]string{"mlp in use: 970.00 MiB at the peak, and fit says 1000.00 MiB"}},
		{"held more", with(0, consumed{InUsePeak: unit, HeldPeak: 2.05 * unit, outside: unit}),
			[]string{"mlp held: 2050.00 MiB at the peak, and fit says 2000.00 MiB"}},
		{"a workspace", with(512*mib, consumed{InUsePeak: unit + 500*mib, HeldPeak: 2 * unit, outside: unit}), nil},
		{"more than a workspace", with(512*mib, consumed{InUsePeak: unit + 540*mib, HeldPeak: 2 * unit, outside: unit}),
			[]string{"mlp in use: 1540.00 MiB at the peak, and fit says 1000.00 MiB"}},
		{"outside less", with(0, consumed{InUsePeak: unit, HeldPeak: 2 * unit, outside: 1}), nil},
		{"outside more", with(0, consumed{InUsePeak: unit, HeldPeak: 2 * unit, outside: unit + mib}),
			[]string{"mlp outside: 1001.00 MiB, and fit assumes 1000.00 MiB"}},
		{"outside unknown", with(0, consumed{InUsePeak: unit, HeldPeak: 2 * unit}),
			[]string{"note: mlp outside: unknown, for the GPU shows no such process"}},
		{"simulated", with(512*mib, good), nil},
		{"simulated, a byte more", with(512*mib, consumed{InUsePeak: unit + 1, HeldPeak: 2 * unit, outside: unit}),
			[]string{"mlp in use: 1048576001 bytes at the peak, and fit says 1048576000 bytes"}},
	})
}

func TestCompareLosses(t *testing.T) {
	with := func(f framework, alone, pool trained) func(*call) {
		return func(c *call) {
			c.compareLosses(f, []string{"alone", "elastic", "vmm"}, map[string]trained{"alone": alone, "elastic": pool})
		}
	}
	series := func(losses ...string) trained { return trained{Losses: losses, Steps: 10} }
	graph := func(losses ...string) trained {
		return trained{Losses: []string{"0x2p+0", "0x1p+0"}, Replayed: losses, Steps: 9, Replays: 9}
	}
	good, good2 := series("0x2p+0", "0x1p+0"), graph("0x1p-1", "0x1p-2")
	still := good2
	still.Replays = 0
	compareAll(t, []comparison{
		{"equal", with(jax, good, good), nil},
		{"equal, with a graph", with(torch, good2, good2), nil},
		{"another bit", with(jax, good, series("0x2p+0", "0x1.000002p+0")),
			[]string{"elastic: loss 1 is 0x1.000002p+0, and 0x1p+0 alone"}},
		{"another bit of a graph", with(torch, good2, graph("0x1p-1", "0x1p-3")),
			[]string{"elastic: loss of a replayed graph 1 is 0x1p-3, and 0x1p-2 alone"}},
		{"fewer", with(jax, series("0x2p+0", "0x1p+0", "0x1p-1"), good), []string{"elastic: loss: 2 values, and 3 alone"}},
		{"a pool without a training", with(jax, good, series("0x2p+0", "nan")), []string{"elastic: the loss 1 is nan, which is no number"}},
		{"a pool without a graph", with(torch, good2, still), []string{"elastic: no graph was replayed"}},
		{"simulated, without numbers or a graph", with(torch, series("0x0p+0", "nan"), series("0x0p+0")), nil},
		{"alone failed, so nothing", func(c *call) {
			c.compareLosses(jax, []string{"alone", "elastic"}, map[string]trained{"elastic": good})
		}, nil},
	})
}

// TestTrainingAloneIsOne: equal losses of a program that trains nothing hold nothing, and what trains nothing
// without our pools is no fault of theirs.
func TestTrainingAloneIsOne(t *testing.T) {
	good := []string{"0x2p+0", "0x1p+0"}
	for _, tc := range []struct {
		name  string
		f     framework
		alone trained
		why   string
	}{
		{"constant", jax, trained{Losses: []string{"0x1p+0", "0x1p+0"}},
			"the training went nowhere: the loss begins with 0x1p+0 and ends with 0x1p+0"},
		{"no number at the end", jax, trained{Losses: []string{"0x1p+0", "nan"}}, "the loss 1 is nan, which is no number"},
		{"no number in between", jax, trained{Losses: []string{"0x2p+0", "-inf", "0x1p+0"}}, "the loss 1 is -inf, which is no number"},
		{"zeros", jax, trained{Losses: []string{"0x0.0p+0", "0x0.0p+0"}}, "the loss 0 is 0"},
		{"zeros from somewhere on", jax, trained{Losses: []string{"0x1p+0", "-0x0.0p+0"}}, "the loss 1 is 0"},
		{"nothing", jax, trained{}, "the loss has no value"},
		{"no graph", torch, trained{Losses: good, Replayed: good}, "no graph was replayed"},
		{"a graph of zeros", torch, trained{Losses: good, Replayed: []string{"0x0.0p+0"}, Replays: 1}, "the loss of a replayed graph 0 is 0"},
		{"a graph without values", torch, trained{Losses: good, Replays: 1}, "the loss of a replayed graph has no value"},
	} {
		c, events := compared(t, tc.name)
		c.compareLosses(tc.f, []string{"alone", "elastic"}, map[string]trained{"alone": tc.alone, "elastic": tc.alone})
		want := []event{{Failed: "alone: " + tc.why}}
		if diff := cmp.Diff(want, events()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestPoolReport(t *testing.T) {
	with := func(name, used, held string, refused int, peak float64) func(*call) {
		return func(c *call) {
			c.poolReport(name, fmt.Sprintf("gpumem: GPU 0, pool x: peak %s in use, %s reserved; 10 allocations, %d refused, 3 driver calls\n", used, held, refused), peak)
		}
	}
	compareAll(t, []comparison{
		{"good", with("elastic", "1000 MiB", "1164 MiB", 0, 0), nil},
		{"too much", with("elastic", "1000 MiB", "1165 MiB", 0, 0),
			[]string{"elastic: the pool reserved 1165.00 MiB for 1000.00 MiB in use at the peak, more than 1164.00 MiB"}},
		{"of the framework's peak", with("elastic", "1000 MiB", "1164 MiB", 0, 900*mib),
			[]string{"elastic: the pool reserved 1164.00 MiB for 900.00 MiB in use at the peak, more than 1054.00 MiB"}},
		{"of another pool", with("vmm", "1000 MiB", "1165 MiB", 0, 0), nil},
		{"refused", with("vmm", "1 MiB", "2 MiB", 1, 0), []string{"vmm: the pool refused 1 requests in a lease of 3GiB"}},
		{"silent", func(c *call) { c.poolReport("vmm", "Killed\n", 0) },
			[]string{"vmm: the pool library reports nothing at the end: Killed"}},
	})
}

func TestFilledLease(t *testing.T) {
	with := func(bytes uint64) func(*call) { return func(c *call) { c.filledLease("p", bytes) } }
	compareAll(t, []comparison{
		{"full", with(leaseBytes), nil},
		{"half", with(leaseBytes / 2), nil},
		{"more", with(leaseBytes + mib), []string{"p: the program has 3073.00 MiB of a lease of 3GiB"}},
		{"less than half", with(leaseBytes/2 - mib), []string{"p: the program has 1535.00 MiB of a lease of 3GiB"}},
	})
}

func TestOwnError(t *testing.T) {
	with := func(kind, text string, e ended) func(*call) {
		return func(c *call) { c.ownError(torch, "p", refused{Error: kind, Text: text}, e) }
	}
	good := ended{status: 1, stderr: "Traceback\ntorch.OutOfMemoryError: CUDA out of memory\n"}
	const kind, text = "torch.OutOfMemoryError", "CUDA out of memory"
	compareAll(t, []comparison{
		{"good, so nothing", with(kind, text, good), nil},
		{"another error", with("RuntimeError", text, good),
			[]string{"p: the program gets RuntimeError: CUDA out of memory; want torch.OutOfMemoryError with memory"}},
		{"another text", with(kind, "CUDA error", good),
			[]string{"p: the program gets torch.OutOfMemoryError: CUDA error; want torch.OutOfMemoryError with memory"}},
		{"status 0", with(kind, text, ended{stderr: good.stderr}),
			[]string{"p: the program ends with status 0, want 1 and a traceback of torch.OutOfMemoryError: torch.OutOfMemoryError: CUDA out of memory"}},
		{"no traceback", with(kind, text, ended{status: 1, stderr: "Killed"}),
			[]string{"p: the program ends with status 1, want 1 and a traceback of torch.OutOfMemoryError: Killed"}},
	})
}

func TestComparePlans(t *testing.T) {
	plain := []compiled{{Name: "mlp", Temp: 100 * mib, Sums: []string{"a", "a"}, StepSeconds: 1}}
	planned := func(change func(*compiled)) []compiled {
		p := compiled{Name: "mlp", Temp: 60 * mib, Sums: []string{"a", "a"}, StepSeconds: 1.1}
		change(&p)
		return []compiled{p}
	}
	with := func(before, now string, differs bool, change func(*compiled)) func(*call) {
		return func(c *call) {
			differ, err := c.comparePlans(plain, planned(change), [][]string{{"", now, before, "10"}})
			if err != nil || differ != differs {
				t.Errorf("differ %v, want %v; %v", differ, differs, err)
			}
		}
	}
	as := func(*compiled) {}
	fixed := func(base compiled, change func(*compiled)) func(*call) {
		return func(c *call) { c.compareFixed([]compiled{base}, planned(change)) }
	}
	compareAll(t, []comparison{
		{"as said", with("100 MiB", "60 MiB", false, as), nil},
		{"more", with("100 MiB", "60 MiB", false, func(p *compiled) { p.Temp += mib }),
			[]string{"mlp temporaries: XLA takes 61.00 MiB, and run says 60.00 MiB"}},
		{"less", with("100 MiB", "60 MiB", false, func(p *compiled) { p.Temp -= mib }),
			[]string{"mlp temporaries: XLA takes 59.00 MiB, and run says 60.00 MiB"}},
		{"within two digits", with("100 MiB", "60 MiB", false, func(p *compiled) { p.Temp += 10000 }), nil},
		{"without a plan, too", with("101 MiB", "60 MiB", false, as),
			[]string{"mlp temporaries without a plan: XLA takes 100.00 MiB, and run says 101.00 MiB"}},
		{"other results", with("100 MiB", "60 MiB", true, func(p *compiled) { p.Sums = []string{"b", "b"} }), nil},
		{"results that change", with("100 MiB", "60 MiB", true, func(p *compiled) { p.Sums = []string{"a", "b"} }), nil},
		{"simulated, other results", with("100 MiB", "60 MiB", false, func(p *compiled) { p.Sums = []string{"b", "b"} }), nil},
		{"fixed, so nothing", fixed(plain[0], as), nil},
		{"fixed, other results", fixed(plain[0], func(p *compiled) { p.Sums = []string{"b", "b"} }),
			[]string{"mlp: the results with a plan are not those without one, to the bit"}},
		{"fixed, without repetition", fixed(compiled{Name: "mlp", Sums: []string{"a", "b"}}, as),
			[]string{"note: mlp: the results are not compared, for they differ from run to run without a plan"}},
	})
}

// TestPlansAreAll: a program that remat.py does not print is a fault.
func TestPlansAreAll(t *testing.T) {
	run := func(printed, words []string) func(*call) {
		return func(c *call) {
			text := ""
			for _, name := range printed {
				text += fmt.Sprintf("echo '{\"name\": %q, \"sums\": [\"a\", \"a\"]}'\n", name)
			}
			c.python = filepath.Join(c.root, "python")
			writeScript(t, c.python, text)
			if _, _, err := c.compile(nil, nil, words...); err != nil {
				t.Error(err)
			}
		}
	}
	host := []string{"off", "gpumem"}
	compareAll(t, []comparison{
		{"both, so nothing", run([]string{"mlp", "transformer"}, nil), nil},
		{"one of two", run([]string{"mlp"}, nil), []string{"remat.py says nothing of transformer"}},
		{"simulated, so nothing", run([]string{"mlp"}, nil), nil},
		{"with copies to the host, so nothing", run([]string{"dense"}, host), nil},
		{"another with copies to the host", run([]string{"mlp"}, host), []string{"remat.py says nothing of dense"}},
	})
}

func TestHostPlan(t *testing.T) {
	base := compiled{Sums: []string{"a", "a"}, StepSeconds: 1, Link: 1e9}
	with := func(change func(*compiled)) func(*call) {
		return func(c *call) {
			yes := true
			p := compiled{Temp: 50 * mib, HostTemp: 10 * mib, Copies: 4, Sums: []string{"a", "a"}, StepSeconds: 1}
			p.Planned.Legal, p.Planned.Heap, p.Planned.Copied, p.Planned.Values = &yes, 50*mib, 20*mib, 2
			change(&p)
			c.hostPlan("plan", p, base)
		}
	}
	no := false
	compareAll(t, []comparison{
		{"as planned", with(func(*compiled) {}), nil},
		{"temporaries", with(func(p *compiled) { p.Temp++ }),
			[]string{"plan: temporaries: 52428801 bytes by XLA, and the plan says 52428800 bytes"}},
		{"on the host", with(func(p *compiled) { p.HostTemp = 20 * mib }),
			[]string{"plan: on the host: 20.00 MiB by XLA, and the plan says 10.00 MiB"}},
		{"copies", with(func(p *compiled) { p.Copies = 3 }), []string{"plan: copies: 3 by XLA, and the plan says 4"}},
		{"illegal", with(func(p *compiled) { p.Planned.Legal = &no }), []string{"plan: gpumem remat does not say that the plan is legal"}},
		{"unchecked", with(func(p *compiled) { p.Planned.Legal = nil }),
			[]string{"plan: gpumem remat does not say that the plan is legal"}},
		{"no copy", with(func(p *compiled) { p.Planned.Values, p.Copies = 0, 0 }), []string{"plan: the plan copies nothing to the host"}},
		{"other results", with(func(p *compiled) { p.Sums = []string{"a", "b"} }),
			[]string{"plan: the results are not those without a plan, to the bit"}},
	})
}

func TestCompareDiagnosis(t *testing.T) {
	r := refusal{name: "JAX", causes: []string{"pool_limit", "program_too_big"}, sizes: requested}
	a := refused{Requested: 4 << 30, Limit: 9, Pool: 8, InUse: 5 * mib}
	type causes = []struct {
		ID       string
		Evidence []struct{ Reading string }
	}
	cause := func(ids ...string) (list causes) {
		for _, id := range ids {
			list = append(list, struct {
				ID       string
				Evidence []struct{ Reading string }
			}{id, []struct{ Reading string }{{"a request for 4 GiB"}}})
		}
		return list
	}
	with := func(change func(*diagnosed)) func(*call) {
		return func(c *call) {
			d := diagnosed{Verdict: "possible", Causes: cause("program_too_big", "pool_limit")}
			change(&d)
			c.compareDiagnosis(r, a, d)
		}
	}
	dump := func(request, limit, pool, inUse uint64) func(*diagnosed) {
		return func(d *diagnosed) {
			d.Dump = &struct {
				Request     struct{ Bytes uint64 }
				Limit       uint64 `json:"limit_bytes"`
				Pool        uint64 `json:"pool_bytes"`
				InUse       uint64 `json:"in_use_bytes"`
				LargestFree uint64 `json:"largest_free_bytes"`
			}{Limit: limit, Pool: pool, InUse: inUse}
			d.Dump.Request.Bytes = request
		}
	}
	verdict := func(verdict string, ids ...string) func(*diagnosed) {
		return func(d *diagnosed) { d.Verdict, d.Causes = verdict, cause(ids...) }
	}
	compareAll(t, []comparison{
		{"possible", with(func(*diagnosed) {}), nil},
		{"the cause", with(verdict("cause", "pool_limit", "program_too_big")), nil},
		{"another first", with(verdict("cause", "program_too_big", "pool_limit")),
			[]string{"JAX: the doctor's verdict is cause with program_too_big, pool_limit, want pool_limit, program_too_big"}},
		{"one is missing", with(verdict("possible", "pool_limit")),
			[]string{"JAX: the doctor's verdict is possible with pool_limit, want pool_limit, program_too_big"}},
		{"none", with(verdict("unknown")), []string{"JAX: the doctor's verdict is unknown without a cause, want pool_limit"}},
		{"another size", with(func(d *diagnosed) {
			d.Causes[0].Evidence[0].Reading, d.Causes[1].Evidence[0].Reading = "a request for 4.02 GiB", "?"
		}), []string{"JAX: the doctor does not name the request, 4 GiB; it reads a request for 4.02 GiB / ?"}},
		{"no dump", func(c *call) {
			r := r
			r.dumps = true
			c.compareDiagnosis(r, a, diagnosed{Verdict: "possible", Causes: cause("program_too_big", "pool_limit")})
		}, []string{"JAX: the doctor reads no dump of the pool"}},
		{"the dump", with(dump(4<<30, 9, 8, 6*mib)), nil},
		{"another request", with(dump(4<<30+1, 9, 8, 5*mib)),
			[]string{"JAX: the doctor reads 4294967297 for the request of the pool's dump, and the program has 4294967296"}},
		{"another limit", with(dump(4<<30, 8, 8, 5*mib)),
			[]string{"JAX: the doctor reads 8 for the limit of the pool's dump, and the program has 9"}},
		{"another pool", with(dump(4<<30, 9, 9, 5*mib)),
			[]string{"JAX: the doctor reads 9 for the pool of the pool's dump, and the program has 8"}},
		{"other bytes in use", with(dump(4<<30, 9, 8, 4*mib-1)),
			[]string{"JAX: the doctor reads 4194303 for the bytes in use of the pool's dump, and the program has 5242880"}},
	})
}

func TestCompareExplained(t *testing.T) {
	size := func(n uint64) *uint64 { return &n }
	const pool, limit = 600 * mib, 900 * mib
	said := explained{Limit: size(limit), Gets: pool}
	with := func(a taken, said explained, beside float64) func(*call) {
		return func(c *call) { c.compareExplained("JAX", a, said, beside) }
	}
	compareAll(t, []comparison{
		{"as said", with(taken{Limit: size(limit), Pool: size(pool)}, said, pool), nil},
		{"with kernels", with(taken{Pool: size(pool)}, said, pool+besides), nil},
		{"another pool", with(taken{Pool: size(pool + 1)}, said, pool),
			[]string{"JAX: the pool has 600.00 MiB (629145601 bytes), and explain says 600.00 MiB (629145600)"}},
		{"another limit", with(taken{Limit: size(limit - 1)}, said, pool),
			[]string{"JAX: the limit 900.00 MiB (943718399 bytes), and explain says 900.00 MiB (943718400)"}},
		{"no limit said", with(taken{Limit: size(limit)}, explained{Gets: pool}, pool),
			[]string{"note: JAX: the framework says a limit of 943718400 bytes, and explain none"}},
		{"more", with(taken{}, said, pool+besides+mib),
			[]string{"JAX: it takes 857.00 MiB beside a context, and explain says 600.00 MiB (within 256.00 MiB)"}},
		{"less", with(taken{}, said, pool-besides-mib),
			[]string{"JAX: it takes 343.00 MiB beside a context, and explain says 600.00 MiB (within 256.00 MiB)"}},
		{"without a pool, what is in use", with(taken{InUse: 800 * mib}, said, 800*mib+besides), nil},
		{"filled", func(c *call) { c.filledTo("T", 9, true, false) }, nil},
		{"refused within", func(c *call) { c.filledTo("T", 9, false, false) },
			[]string{"T: it is refused within the limit of 9 bytes that explain says"}},
		{"more than the limit", func(c *call) { c.filledTo("T", 9, true, true) },
			[]string{"T: it gets more than the limit of 9 bytes that explain says"}},
	})
	allocator := func(explains, has, said string) func(*call) {
		return func(c *call) { c.compareAllocator("T", explains, has, said) }
	}
	compareAll(t, []comparison{
		{"bfc, so nothing", allocator("jax", "bfc", "bfc"), nil},
		{"vmm, so nothing", allocator("jax", "without figures", "vmm"), nil},
		{"PyTorch's own, so nothing", allocator("pytorch", "native", "caching"), nil},
		{"the driver's, so nothing", allocator("pytorch", "cudaMallocAsync", "cuda_async"), nil},
		{"another", allocator("pytorch", "native", "cuda_async"),
			[]string{`T: it has the allocator "native", and explain says cuda_async ("cudaMallocAsync")`}},
		{"figures of none", allocator("jax", "bfc", "platform"),
			[]string{`T: it has the allocator "bfc", and explain says platform ("without figures")`}},
		{"an unknown one", allocator("pytorch", "", "new"), []string{`T: it has the allocator "", and explain says new ("")`}},
	})
	raises := explained{Errors: []struct{ Text string }{{"no such allocator"}}}
	compareAll(t, []comparison{
		{"starts, so nothing", func(c *call) { want(t, c.startsAsSaid("T", nil, explained{}), true) }, nil},
		{"raises as said, so nothing", func(c *call) { want(t, c.startsAsSaid("T", errors.New("ended"), raises), false) }, nil},
		{"raises", func(c *call) { want(t, c.startsAsSaid("T", errors.New("ended"), explained{}), false) },
			[]string{"ended; explain sees no error"}},
		{"starts though", func(c *call) { want(t, c.startsAsSaid("T", nil, raises), true) },
			[]string{`T: it starts, and explain says that it raises "no such allocator"`}},
	})
}

func want(t *testing.T, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSameView(t *testing.T) {
	first := view{"devices", 100, 60, 40, map[int]uint64{7: 50}, 0}
	with := func(v view) func(*call) { return func(c *call) { c.sameView(v, first) } }
	compareAll(t, []comparison{
		{"the same, so nothing", with(view{"ps", 100, 60, 40, map[int]uint64{7: 50}, 0}), nil},
		{"as rounded, so nothing", with(view{"top", 102, 58, 42, map[int]uint64{7: 52}, 2}), nil},
		{"in all", with(view{"ps", 101, 60, 40, map[int]uint64{7: 50}, 0}), []string{"ps shows 101 bytes in all, and devices shows 100"}},
		{"in use", with(view{"ps", 100, 59, 40, map[int]uint64{7: 50}, 0}), []string{"ps shows 59 bytes in use, and devices shows 60"}},
		{"free", with(view{"top", 100, 60, 43, map[int]uint64{7: 50}, 2}), []string{"top shows 43 bytes free, and devices shows 40"}},
		{"a program's", with(view{"ps", 100, 60, 40, map[int]uint64{7: 49}, 0}),
			[]string{"ps shows 49 bytes of process 7, and devices shows 50"}},
		{"one less", with(view{"ps", 100, 60, 40, nil, 0}), []string{"ps does not show process 7, which devices shows"}},
		{"one more", with(view{"ps", 100, 60, 40, map[int]uint64{7: 50, 8: 0}, 0}),
			[]string{"ps shows process 8, which devices does not show"}},
	})
}

func TestShowsHolder(t *testing.T) {
	with := func(bytes uint64) func(*call) {
		return func(c *call) { c.showsHolder(view{name: "ps", programs: map[int]uint64{7: bytes}}, 7, 3<<30) }
	}
	lease := func(text string) func(*call) {
		return func(c *call) {
			if err := c.compareLeaseText(text); err != nil {
				t.Error(err)
			}
		}
	}
	compareAll(t, []comparison{
		{"as taken", with(3 << 30), nil},
		{"with a context", with(4 << 30), nil},
		{"less", with(3<<30 - mib), []string{"ps shows 3071.00 MiB of a program that took 3072.00 MiB"}},
		{"more", with(4<<30 + mib), []string{"ps shows 4097.00 MiB of a program that took 3072.00 MiB"}},
		{"another", func(c *call) { c.showsHolder(view{name: "ps"}, 7, 3<<30) },
			[]string{"ps does not show process 7, which holds 3072.00 MiB"}},
		{"its lease", lease(`{"pid": 7, "lease_bytes": 3221225472, "pool": {"held_bytes": 200, "in_use_bytes": 100}}`), nil},
		{"another lease", lease(`{"pid": 7, "lease_bytes": 4294967296, "pool": {"held_bytes": 200, "in_use_bytes": 100}}`),
			[]string{"its lease: measured 4096.00 MiB, the documents say 3072.00 MiB"}},
		{"another use", lease(`{"pid": 7, "lease_bytes": 3221225472, "pool": {"held_bytes": 200, "in_use_bytes": 101}}`),
			[]string{"its pool in use: measured 101 bytes, the documents say 100 bytes"}},
		{"less held than used", lease(`{"pid": 7, "lease_bytes": 3221225472, "pool": {"held_bytes": 99, "in_use_bytes": 100}}`),
			[]string{"ps shows a pool that holds 99 bytes, of which 100 are in use, of a lease of 3221225472"}},
		{"more held than leased", lease(`{"pid": 7, "lease_bytes": 3221225472, "pool": {"held_bytes": 3221225473, "in_use_bytes": 100}}`),
			[]string{"ps shows a pool that holds 3221225473 bytes, of which 100 are in use, of a lease of 3221225472"}},
		{"no pool", lease(`{"pid": 7, "lease_bytes": 3221225472}`), []string{"ps shows no pool of process 7"}},
		{"no lease", lease(`{"pid": 7}`), []string{"ps shows no lease of process 7"}},
		{"of another program", lease(`{"pid": 8, "lease_bytes": 3221225472}`), []string{"ps shows no lease of process 7"}},
	})
}

// TestImports: an import that fails is one fault, and its framework's checks are skipped with it.
func TestImports(t *testing.T) {
	import1 := func(e ended, err error) func(*call) {
		return func(c *call) {
			if err := c.imported("torch", e, err); err != nil {
				t.Error(err)
			}
			ran := false
			c.needs = []string{"torch"}
			err2 := with(func(*call) error { ran = true; return nil })(c)
			good := e.status == 0 && err == nil
			if ran != good || errors.As(err2, new(skipped)) == good {
				t.Errorf("%+v: a check of it ran: %v, %v", e, ran, err2)
			}
			if !good && !strings.HasPrefix(err2.Error(), "import torch: ") {
				t.Errorf("%v", err2)
			}
			c.needs = []string{"jax"}
			if err := with(func(*call) error { return nil })(c); err != nil {
				t.Errorf("a check of another: %v", err)
			}
		}
	}
	compareAll(t, []comparison{
		{"imported", import1(ended{seconds: 3}, nil), nil},
		{"broken", import1(ended{status: 1, stderr: "ImportError: libcuda"}, nil),
			[]string{"import torch: exit status 1: ImportError: libcuda"}},
		{"without end", import1(ended{status: -1}, errors.New("no end after 20s")), []string{"import torch: no end after 20s"}},
	})
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("skipped: there is no python3")
	}
	c, events := compared(t, "a GPU")
	if err := os.MkdirAll(filepath.Join(c.root, "python"), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("programs/imports.py")
	if err == nil {
		err = os.WriteFile(filepath.Join(c.root, "python/imports.py"), program, 0o644)
	}
	if err == nil { // a module that is there, one that raises, and none
		err = os.WriteFile(filepath.Join(c.root, "python/jax.py"), nil, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.root, "python/torch.py"), []byte("raise OSError('no disk')\n"), 0o644)
	}
	if err == nil {
		err = imports(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events() {
		if e.Figure != nil && e.Figure.Unit == "s" {
			got = append(got, e.Figure.Name)
		}
		if e.Fault != "" {
			got = append(got, e.Fault)
		}
	}
	if len(got) < 2 || got[0] != "import jax" || got[1] != "import torch: exit status 1: OSError: no disk" {
		t.Errorf("%q", got)
	}
}

// compareLeaseText compares a program of ps --json.
func (c *call) compareLeaseText(program string) error {
	var answer leases
	if err := json.Unmarshal([]byte(`{"devices": [{"processes": [`+program+`]}]}`), &answer); err != nil {
		return err
	}
	c.compareLease(answer, 7, 100)
	return nil
}

// TestOrder: what is in doubt about the driver comes first, then the imports, and then what needs a framework,
// which says so and is skipped where it was not imported.
func TestOrder(t *testing.T) {
	first := []string{"driver", "reset", "capture", "grants", "context", "costs", "contents", "limits", "python"}
	for i, c := range checks {
		if i < len(first) {
			if c.name != first[i] {
				t.Errorf("check %d is %s, want %s", i, c.name, first[i])
			}
			continue
		}
		if slices.Contains(c.needs, "jax") && !slices.Contains(c.needs, "jax-cuda13-plugin") {
			t.Errorf("%s runs with a JAX that has no GPU", c.name)
		}
		for _, framework := range []string{"jax", "torch", "cupy"} {
			if !slices.Contains(c.needs, framework) {
				continue
			}
			call, _ := compared(t, c.name)
			call.check = c
			if err := os.WriteFile(call.notImported(framework), []byte("why"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := c.run(call); err == nil || err.Error() != "why" {
				t.Errorf("%s without %s: %v", c.name, framework, err)
			}
		}
	}
}
