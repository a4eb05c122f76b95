//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/size"
)

// Views that the command shows of a GPU and of the programs on it, while one holds memory.

// view is GPU 0 as one of them shows it, in bytes.
type view struct {
	name              string
	total, used, free uint64
	programs          map[int]uint64 // by pid
	rounding          uint64         // by which amounts may be off
}

// viewedLease is what the program is given, and what it takes of it.
const viewedLease = "3GiB"

// views compares what ps, devices, top and serve show with each other and with what a program took.
func views(c *call) error {
	h, err := c.hold(viewedLease)
	if err != nil {
		return err
	}
	all, err := c.views()
	if err == nil {
		first := all[0]
		c.figure("the GPU's memory", float64(first.total), "bytes")
		c.figure("in use", float64(first.used), "bytes")
		c.figure("programs", float64(len(first.programs)), "")
		for _, v := range all[1:] {
			c.sameView(v, first)
		}
		c.showsHolder(first, h.cmd.Process.Pid, h.bytes)
		err = c.showsLease(h)
	}
	return errors.Join(err, c.release(h))
}

// sameView says where a view differs from another.
func (c *call) sameView(v, first view) {
	off := func(a, b uint64) bool { return max(a, b)-min(a, b) > max(v.rounding, first.rounding) }
	for _, of := range []struct {
		what string
		a, b uint64
	}{{"in all", v.total, first.total}, {"in use", v.used, first.used}, {"free", v.free, first.free}} {
		if off(of.a, of.b) {
			c.fault("%s shows %d bytes %s, and %s shows %d", v.name, of.a, of.what, first.name, of.b)
		}
	}
	pids := slices.Concat(slices.Collect(maps.Keys(v.programs)), slices.Collect(maps.Keys(first.programs)))
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		a, inA := v.programs[pid]
		b, inB := first.programs[pid]
		switch {
		case !inA:
			c.fault("%s does not show process %d, which %s shows", v.name, pid, first.name)
		case !inB:
			c.fault("%s shows process %d, which %s does not show", v.name, pid, first.name)
		case off(a, b):
			c.fault("%s shows %d bytes of process %d, and %s shows %d", v.name, a, pid, first.name, b)
		}
	}
}

// showsHolder compares a view with what a program says that it took: the GPU counts its context, too.
func (c *call) showsHolder(v view, pid int, took uint64) {
	bytes, ok := v.programs[pid]
	if !ok {
		c.fault("%s does not show process %d, which holds %s", v.name, pid, quantity(float64(took), "bytes"))
		return
	}
	c.figure("the program took", float64(took), "bytes")
	c.figure("the program holds", float64(bytes), "bytes")
	const context = 1 << 30 // at most, with what is loaded
	if bytes < took || bytes > took+context {
		c.fault("%s shows %s of a program that took %s", v.name, quantity(float64(bytes), "bytes"), quantity(float64(took), "bytes"))
	}
}

// leases is what ps --json says of them.
type leases struct {
	Devices []struct {
		Programs []struct {
			PID   int
			Lease uint64 `json:"lease_bytes"`
			Pool  *struct {
				Held  uint64 `json:"held_bytes"`
				InUse uint64 `json:"in_use_bytes"`
			}
		} `json:"processes"`
	}
}

// showsLease compares what ps shows of a program's lease and of its pool.
func (c *call) showsLease(h *holder) error {
	var answer leases
	if err := c.gpumem(&answer, nil, "ps", "--json"); err != nil {
		return err
	}
	c.compareLease(answer, h.cmd.Process.Pid, h.bytes)
	return nil
}

// compareLease compares a program's lease and its pool with what it took.
func (c *call) compareLease(answer leases, pid int, took uint64) {
	const lease = 3 << 30
	for _, d := range answer.Devices {
		for _, p := range d.Programs {
			if p.PID != pid || p.Lease == 0 {
				continue
			}
			c.compare("its lease", float64(p.Lease), lease, "bytes", 0)
			if p.Pool == nil {
				c.fault("ps shows no pool of process %d", p.PID)
				return
			}
			c.compare("its pool in use", float64(p.Pool.InUse), float64(took), "bytes", 0)
			if p.Pool.Held < p.Pool.InUse || p.Pool.Held > p.Lease {
				c.fault("ps shows a pool that holds %d bytes, of which %d are in use, of a lease of %d", p.Pool.Held, p.Pool.InUse, p.Lease)
			}
			return
		}
	}
	c.fault("ps shows no lease of process %d", pid)
}

// views asks each of them.
func (c *call) views() (all []view, err error) {
	for _, ask := range []func() (view, error){
		func() (view, error) { return c.listed("devices") }, func() (view, error) { return c.listed("ps") }, c.frame,
	} {
		v, err := ask()
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	served, err := c.served()
	return append(all, served...), err
}

// listed is what devices or ps shows.
func (c *call) listed(command string) (view, error) {
	var answer struct {
		Devices []struct {
			Total     uint64 `json:"total_bytes"`
			Used      uint64 `json:"used_bytes"`
			Free      uint64 `json:"free_bytes"`
			Processes []struct {
				PID  int
				Used *uint64 `json:"used_bytes"`
			}
		}
	}
	v := view{name: command, programs: map[int]uint64{}}
	if err := c.gpumem(&answer, nil, command, "--json"); err != nil {
		return v, err
	}
	if len(answer.Devices) == 0 {
		return v, fmt.Errorf("gpumem %s shows no GPU", command)
	}
	d := answer.Devices[0]
	v.total, v.used, v.free = d.Total, d.Used, d.Free
	for _, p := range d.Processes {
		if p.Used != nil {
			v.programs[p.PID] = *p.Used
		}
	}
	return v, nil
}

// nameGPU0 is what GPU 0 is called: a simulated one by its file, which the others of that file
// follow with ",device=N" (device/open/list.go).
const nameGPU0 = `(?:cuda:0|sim@[^\s",]+)`

var (
	topGPU     = regexp.MustCompile(`(?m)^` + nameGPU0 + ` .*: ([0-9.]+ \wi?B), ([0-9.]+ \wi?B) used, ([0-9.]+ \wi?B) free`)
	topProgram = regexp.MustCompile(`^ +([0-9]+) .*?([0-9.]+ \wi?B)  `)
)

// frame is what one frame of top shows: amounts with two digits behind the point.
func (c *call) frame() (view, error) {
	e, err := c.must(process{args: []string{c.command(), "top", "--once"}})
	if err != nil {
		return view{}, err
	}
	return readFrame(e.stdout)
}

// readFrame reads GPU 0 of a frame.
func readFrame(text string) (view, error) {
	v := view{name: "top", programs: map[int]uint64{}, rounding: 1 << 30 / 100}
	at := topGPU.FindStringSubmatchIndex(text)
	if at == nil {
		return v, fmt.Errorf("gpumem top --once does not show GPU 0%s", lastLine(text))
	}
	var errs []error
	bytes := func(text string) uint64 {
		n, err := size.Parse(text)
		errs = append(errs, err)
		return n
	}
	v.total, v.used, v.free = bytes(text[at[2]:at[3]]), bytes(text[at[4]:at[5]]), bytes(text[at[6]:at[7]])
	for line := range strings.Lines(text[at[1]:]) {
		if m := topProgram.FindStringSubmatch(line); m != nil {
			pid, _ := strconv.Atoi(m[1])
			v.programs[pid] = bytes(m[2])
		} else if strings.TrimSpace(line) == "" && len(v.programs) > 0 {
			break // of the next GPU
		}
	}
	return v, errors.Join(errs...)
}

// served is what serve has at /state and at /metrics.
func (c *call) served() ([]view, error) {
	r, err := c.begin(process{args: []string{c.command(), "serve", "--listen", "127.0.0.1:0"}, talks: true, answers: "http"})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = r.cmd.Process.Kill()
		r.within(grace)
		c.finish(r)
	}()
	address, err := r.answer(c.atMost(20 * time.Second))
	if err != nil {
		return nil, fmt.Errorf("gpumem serve prints no address: %w", err)
	}
	address = strings.TrimSpace(address)
	state, err := get(address + "state")
	if err != nil {
		return nil, err
	}
	metrics, err := get(address + "metrics")
	if err != nil {
		return nil, err
	}
	v, err := servedState(state)
	return []view{v, servedMetrics(metrics)}, err
}

func get(url string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, r.Status, text)
	}
	return string(text), err
}

// servedState reads the JSON of /state.
func servedState(text string) (view, error) {
	v := view{name: "serve /state", programs: map[int]uint64{}}
	var answer struct {
		Devices []struct {
			Total    uint64 `json:"total_bytes"`
			Used     uint64 `json:"used_bytes"`
			Free     uint64 `json:"free_bytes"`
			Programs []struct {
				PID  int
				Used uint64 `json:"used_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return v, fmt.Errorf("gpumem serve: /state: %w", err)
	}
	if len(answer.Devices) == 0 {
		return v, errors.New("gpumem serve: /state shows no GPU")
	}
	d := answer.Devices[0]
	v.total, v.used, v.free = d.Total, d.Used, d.Free
	for _, p := range d.Programs {
		v.programs[p.PID] = p.Used
	}
	return v, nil
}

var (
	metric    = regexp.MustCompile(`^gpumem_(device_memory_(total|used|free)|program_memory_used)_bytes\{(.*)\} ([0-9.e+]+)$`)
	metricGPU = regexp.MustCompile(`\bdevice="` + nameGPU0 + `"`)
	metricPID = regexp.MustCompile(`pid="([0-9]+)"`)
)

// servedMetrics reads the text of /metrics.
func servedMetrics(text string) view {
	v := view{name: "serve /metrics", programs: map[int]uint64{}}
	for line := range strings.Lines(text) {
		m := metric.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || !metricGPU.MatchString(m[3]) {
			continue
		}
		value, _ := strconv.ParseFloat(m[4], 64)
		bytes := uint64(math.Round(value))
		switch m[2] {
		case "total":
			v.total = bytes
		case "used":
			v.used = bytes
		case "free":
			v.free = bytes
		default:
			if pid := metricPID.FindStringSubmatch(m[3]); pid != nil {
				n, _ := strconv.Atoi(pid[1])
				v.programs[n] = bytes
			}
		}
	}
	return v
}

// viewsSMI compares devices with nvidia-smi, which has whole MiB.
func viewsSMI(c *call) error {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		return skipped("nvidia-smi is not there")
	}
	h, err := c.hold(viewedLease)
	if err != nil {
		return err
	}
	err = c.besideSMI(h)
	return errors.Join(err, c.release(h))
}

func (c *call) besideSMI(h *holder) error {
	gpu, err := c.device()
	if err != nil {
		return err
	}
	v, err := c.listed("devices")
	if err != nil {
		return err
	}
	smi := view{name: "nvidia-smi", programs: map[int]uint64{}, rounding: mib}
	rows, err := c.smi("--query-gpu=memory.total,memory.used,memory.free", "-i", "0")
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != 3 {
		return fmt.Errorf("nvidia-smi shows %v of GPU 0, want three amounts", rows)
	}
	smi.total, smi.used, smi.free = rows[0][0]*mib, rows[0][1]*mib, rows[0][2]*mib
	c.figure("in all, by CUDA", float64(v.total), "bytes")
	c.figure("in all, by nvidia-smi", float64(smi.total), "bytes")
	c.figure("reserved", float64(gpu.ReservedBytes), "bytes")
	// CUDA's total is less than NVML's, which has in it what the driver keeps for itself.
	v.total = v.used + v.free + gpu.ReservedBytes
	apps, err := c.smi("--query-compute-apps=pid,used_memory", "-i", "0")
	if err != nil {
		return err
	}
	for _, row := range apps {
		if len(row) == 2 {
			smi.programs[int(row[0])] = row[1] * mib
		}
	}
	c.sameView(smi, v)
	if _, ok := smi.programs[h.cmd.Process.Pid]; !ok {
		c.fault("nvidia-smi does not show process %d, which holds %s", h.cmd.Process.Pid, quantity(float64(h.bytes), "bytes"))
	}
	return nil
}

// smi asks nvidia-smi for numbers, in rows. An amount that it does not know is left out.
func (c *call) smi(args ...string) (rows [][]uint64, err error) {
	e, err := c.must(process{args: append([]string{"nvidia-smi", "--format=csv,noheader,nounits"}, args...)})
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(e.stdout) {
		var row []uint64
		for _, word := range strings.Split(line, ",") {
			if n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 64); err == nil {
				row = append(row, n)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
