//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Memory that programs take of the GPU, by the change of what is free.

const (
	mib = 1 << 20
	// What docs/gpu.md says of the driver: plain grants and pages are rounded up to granule, and
	// its pools grow by poolStep.
	granule, poolStep = 2 * mib, 32 * mib
)

// granted is a line of c/grants.
type granted struct {
	what      string
	requested uint64
	bytes     int64 // negative: more was free afterwards
	failed    bool
}

// name is the row's name in a report.
func (r granted) name() string { return fmt.Sprintf("%s %d", r.what, r.requested) }

// askGrants runs c/grants. Calls that failed are faults, and rows without bytes.
func (c *call) askGrants() (rows []granted, err error) {
	e, err := c.must(process{args: []string{filepath.Join(c.root, "c/grants")}})
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(e.stdout) {
		var r granted
		if _, err := fmt.Sscan(line, &r.what, &r.requested, &r.bytes); err != nil {
			c.fault("%s", strings.TrimSpace(line))
			r.failed = true
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// grants compares what each request took with what the documents say.
func grants(c *call) error {
	rows, err := c.askGrants()
	if err == nil {
		c.compareGrants(rows)
		c.allGrants(rows)
	}
	return err
}

// allGrants finds fault with rows that c/grants does not print.
func (c *call) allGrants(rows []granted) {
	page := uint64(granule)
	printed := map[string]bool{}
	for _, r := range rows {
		printed[r.name()] = true
		if r.what == "granularity-least" && r.bytes > 0 {
			page = uint64(r.bytes)
		}
	}
	c.allAsked("c/grants", askedGrants(page), func(name string) bool { return printed[name] })
}

// askedGrants are the names of the rows of programs/grants.c, on a GPU whose least page has so many bytes.
func askedGrants(page uint64) (names []string) {
	const kib, gib = 1 << 10, 1 << 30
	add := func(what string, requested ...uint64) {
		for _, n := range requested {
			names = append(names, granted{what: what, requested: n}.name())
		}
	}
	add("context", 1)
	add("alloc", 1, 512, 256*kib, mib, mib+1, 2*mib-1, 2*mib, 2*mib+1, 3*mib, 5*mib+512, 20*mib, 100*mib+1, gib)
	add("alloc-100", 100*kib)
	add("alloc-50", 50*mib, 75*mib)
	add("pitched", 1000*1100)
	add("pitch", 1000)
	add("pitched-50", 50*1000*1100)
	add("managed-untouched", 16*mib)
	add("granularity-least", 1)
	add("granularity-best", 1)
	for n := page; n <= 64*mib; n *= 4 {
		add("page", n)
	}
	for _, what := range []string{"pool", "pool-reserved", "pool-kept"} {
		add(what, kib, 33*mib, 100*mib)
	}
	add("second-context", 1)
	return names
}

// compareGrants compares rows of c/grants.
func (c *call) compareGrants(rows []granted) {
	up := func(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }
	var pool int64 // what the pool had reserved before
	for _, r := range rows {
		if r.failed {
			continue
		}
		name := r.name()
		kind, count := r.what, uint64(1)
		if i := strings.LastIndexByte(kind, '-'); i > 0 {
			if _, err := fmt.Sscan(kind[i+1:], &count); err == nil {
				kind = kind[:i]
			}
		}
		switch kind {
		case "alloc", "page", "pitched": // in which rows of 1000 bytes are as far apart as the driver chooses
			c.compare(name, float64(r.bytes), float64(count*up(r.requested/count, granule)), "bytes", 0)
		case "granularity-least", "granularity-best":
			c.compare(r.what, float64(r.bytes), granule, "bytes", 0)
		case "managed-untouched":
			c.compare(name, float64(r.bytes), 0, "bytes", 0)
		case "pool":
			c.compare(name, float64(r.bytes), float64(up(r.requested, poolStep))-float64(pool), "bytes", 0)
		case "pool-reserved":
			c.compare(name, float64(r.bytes), float64(up(r.requested, poolStep)), "bytes", 0)
		case "pool-kept": // the threshold is 0 unless somebody sets it
			c.compare(name, float64(r.bytes), 0, "bytes", 0)
			pool = r.bytes
		default:
			c.figure(name, float64(r.bytes), "bytes")
		}
	}
}

// gpu is GPU 0 as the command sees it.
type gpu struct {
	Name          string `json:"name"`
	TotalBytes    uint64 `json:"total_bytes"`
	UsedBytes     uint64 `json:"used_bytes"`
	ReservedBytes uint64 `json:"reserved_bytes"`
	CC            string `json:"compute_capability"`
}

// takenSince is how many bytes more are in use than were before; negative: less.
func (g gpu) takenSince(before gpu) float64 { return float64(g.UsedBytes) - float64(before.UsedBytes) }

// device asks the command about GPU 0.
func (c *call) device() (gpu, error) {
	var answer struct{ Devices []gpu }
	if err := c.gpumem(&answer, nil, "devices", "--json"); err != nil {
		return gpu{}, err
	}
	if len(answer.Devices) == 0 {
		return gpu{}, fmt.Errorf("gpumem devices: no GPU")
	}
	return answer.Devices[0], nil
}

// contextBytes compares what a program has taken with its first context with the estimate.
func contextBytes(c *call) error {
	before, err := c.device()
	if err != nil {
		return err
	}
	rows, err := c.askGrants()
	if err == nil {
		c.compareContext(rows, before)
	}
	return err
}

// compareContext finds in rows what was in use with the context. The figure is that of the entry of
// overhead.txt for an H100 or H200.
func (c *call) compareContext(rows []granted, before gpu) {
	const threads = 132 * 2048 // of an H100 or H200
	for _, r := range rows {
		if r.what == "context" && !r.failed {
			c.compare("outside.context.9.any", float64(r.bytes)-float64(before.UsedBytes), 2048*threads+24*mib, "bytes", .2)
			return
		}
	}
	c.fault("c/grants says nothing of a context")
}

// holder is a program that holds memory until it is told to end.
type holder struct {
	*program
	bytes uint64 // what it got
	code  int    // the driver's answer to the request after it
}

// hold starts a program that takes blocks of 64 MiB in a lease until it is refused one.
func (c *call) hold(lease string) (*holder, error) {
	r, err := c.begin(process{
		args: []string{c.command(), "run", "--mem", lease, "--pool", "elastic", "--", filepath.Join(c.root, "c/grants"), "hold", "1000000"},
		env:  []string{"GPUMEM_REPORT=0"}, talks: true, answers: "held ",
	})
	if err != nil {
		return nil, err
	}
	h := &holder{program: r}
	line, err := r.answer(c.atMost(30 * time.Second))
	if err == nil {
		_, err = fmt.Sscanf(line, "held %d %d", &h.bytes, &h.code)
	}
	if err != nil {
		c.drop(h)
		return nil, fmt.Errorf("a program with a lease of %s: %w", lease, err)
	}
	return h, nil
}

// release lets a holder end.
func (c *call) release(h *holder) error {
	_ = h.in.Close()
	if !h.within(20 * time.Second) {
		h.kill()
		c.finish(h.program)
		return unanswered{fmt.Errorf("%s: no end 20 s after its input's", h.shown())}
	}
	if e := c.finish(h.program); e.status != 0 {
		return fmt.Errorf("%s: exit status %d%s", h.shown(), e.status, e.reason())
	}
	return nil
}

// drop ends holders that are still there.
func (c *call) drop(all ...*holder) {
	for _, h := range all {
		if !h.finished {
			h.kill()
			c.finish(h.program)
		}
	}
}

// limits has two programs fill their leases at once, and kills one.
func limits(c *call) error {
	before, err := c.device()
	if err != nil {
		return err
	}
	var programs []*holder
	defer func() { c.drop(programs...) }()
	for range 2 {
		h, err := c.hold("3GiB")
		if err != nil {
			return err
		}
		programs = append(programs, h)
	}
	during, err := c.device()
	if err != nil {
		return err
	}
	c.compareLimits(programs, during.takenSince(before))
	_ = programs[0].cmd.Process.Kill()
	if !programs[0].within(grace) {
		return errors.New("a program that was killed has not ended")
	}
	killed := time.Now()
	for {
		now, err := c.device()
		if err != nil {
			return err
		}
		if isBack(during, now, programs[0].bytes) {
			break
		}
		if time.Since(killed) > 10*time.Second {
			c.fault("10 s after one was killed %s is in use, and %s was with it",
				quantity(float64(now.UsedBytes), "bytes"), quantity(float64(during.UsedBytes), "bytes"))
			break
		}
	}
	c.figure("a killed program's memory is back after", time.Since(killed).Seconds()*1e6, "us")
	return c.release(programs[1])
}

// compareLimits compares what programs got and take with their leases of 3 GiB. used is what is in use
// more than without them.
func (c *call) compareLimits(programs []*holder, used float64) {
	const lease, outOfMemory = 3 << 30, 2
	// What a program cannot reach: a context, which the check context allows a fifth more than 552 MiB,
	// in whole blocks of 64 MiB.
	const unreachable = 704 * mib
	for i, h := range programs {
		c.figure(fmt.Sprintf("program %d has", i+1), float64(h.bytes), "bytes")
		if h.code != outOfMemory {
			c.fault("program %d was answered %d above its limit, want %d, out of memory", i+1, h.code, outOfMemory)
		}
		if h.bytes > lease || h.bytes < lease-unreachable {
			c.fault("program %d has %s of a lease of 3 GiB, of which at least %s are reachable", i+1,
				quantity(float64(h.bytes), "bytes"), quantity(lease-unreachable, "bytes"))
		}
	}
	c.figure("both take", used, "bytes")
	if used > 2*lease {
		c.fault("two leases of 3 GiB take %s", quantity(used, "bytes"))
	}
}

// isBack reports whether the memory of a killed program, which got bytes, is in use no longer.
func isBack(during, now gpu, bytes uint64) bool {
	return during.UsedBytes >= now.UsedBytes && during.UsedBytes-now.UsedBytes >= max(bytes, 1)
}
