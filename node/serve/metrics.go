package serve

// Metrics for Prometheus, in its text format 0.0.4. Names follow its conventions: a
// prefix, the unit at the end, _total for what only grows, and no unit but bytes.

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// metric is a name with its samples.
type metric struct {
	name, kind, help string
	samples          []sample
}

type sample struct {
	labels string
	value  uint64
}

// labels formats pairs of a name and a value.
func labels(pairs ...string) string {
	var b strings.Builder
	for k := 0; k < len(pairs); k += 2 {
		b.WriteString([]string{"{", ","}[min(k, 1)])
		b.WriteString(pairs[k] + `="` + escape.Replace(strings.ToValidUTF8(pairs[k+1], "�")) + `"`)
	}
	return b.String() + "}"
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// metricsOf returns the metrics of a state. The samples of one name stand together, as
// the format requires.
func metricsOf(s *State) []metric {
	var all []metric
	at := map[string]int{}
	add := func(name, kind, help, labels string, value uint64) {
		k, ok := at[name]
		if !ok {
			k = len(all)
			at[name], all = k, append(all, metric{name: name, kind: kind, help: help})
		}
		all[k].samples = append(all[k].samples, sample{labels, value})
	}
	if s.Driver != nil {
		up := uint64(0)
		if s.Driver.Up {
			up = 1
		}
		add("gpumem_driver_up", "gauge", "Whether the GPUs' driver answers, 1 or 0.", "", up)
	}
	for _, d := range s.Devices {
		l := labels("device", d.Device, "name", d.Name, "uuid", d.UUID, "simulated", strconv.FormatBool(d.Simulated))
		add("gpumem_device_memory_total_bytes", "gauge", "Memory of the device.", l, d.Total)
		if d.Told {
			add("gpumem_device_memory_used_bytes", "gauge", "Memory held by all programs.", l, d.Used)
			add("gpumem_device_memory_free_bytes", "gauge", "Memory that no process holds.", l, d.Free)
		}
		add("gpumem_device_leased_bytes", "gauge", "Memory that leases set aside, used or not.", l, d.Leased)
		add("gpumem_device_lease_waiting", "gauge", "Programs that wait for a lease.", l, uint64(len(d.Waiting)))
		for _, p := range summed(d.Programs) {
			l := labels("device", d.Device, "simulated", strconv.FormatBool(d.Simulated), "pid", strconv.Itoa(p.PID), "user", p.User, "name", p.Name)
			if p.Told {
				add("gpumem_program_memory_used_bytes", "gauge", "Memory that a program holds.", l, p.Used)
			}
			if p.Lease > 0 {
				add("gpumem_program_lease_bytes", "gauge", "Memory that a program's lease sets aside.", l, p.Lease)
			}
			if p.Pool != nil {
				addPool(add, "gpumem_program_pool", "of a program", l, p.Pool)
			}
			if t := p.Turn; t != nil {
				add("gpumem_program_on_host_bytes", "gauge", "Memory of a program that has left the device for the host.", l, t.OnHost)
				add("gpumem_program_turn_wants_bytes", "gauge", "Memory that a program waits for in the queue of turns.", l, t.Wants)
				add("gpumem_program_swaps_total", "counter", "Times that the memory of a program has left the device.", l, t.Swaps)
			}
		}
		addTurns(add, &d)
		said := map[*machine.PoolUse]bool{nil: true}
		for _, p := range d.Programs {
			if u := p.LeasePool; !said[u] {
				said[u] = true
				l := labels("device", d.Device, "simulated", strconv.FormatBool(d.Simulated), "lease", p.lease)
				add("gpumem_lease_limit_bytes", "gauge", "Most memory that the processes of a lease may hold together.", l, p.Lease)
				addPool(add, "gpumem_lease_pool", "of all processes of a lease", l, u)
			}
		}
	}
	for _, p := range s.Pools {
		l := labels("pool", p.Name, "policy", p.Policy)
		x := p.Stats
		add("gpumem_pool_in_use_bytes", "gauge", "Memory in live blocks.", l, x.BytesInUse)
		add("gpumem_pool_in_use_peak_bytes", "gauge", "Most memory that was in live blocks.", l, x.PeakBytesInUse)
		add("gpumem_pool_held_bytes", "gauge", "Memory taken from the device.", l, x.PoolBytes)
		add("gpumem_pool_held_peak_bytes", "gauge", "Most memory that was taken from the device.", l, x.PeakPoolBytes)
		add("gpumem_pool_limit_bytes", "gauge", "Most memory that may be taken from the device.", l, x.BytesLimit)
		add("gpumem_pool_largest_free_block_bytes", "gauge", "The largest hole.", l, x.LargestFreeBlock)
		add("gpumem_pool_allocations_total", "counter", "Blocks handed out so far.", l, uint64(max(x.NumAllocs, 0)))
	}
	return all
}

// turnStates are those of processes that share a device by turns. One that is paused is neither
// away nor waiting, as in gpumem ps.
var turnStates = []string{"in", "leaving", "away", "paused", "waiting", "returning", "unknown"}

// addTurns adds how many programs of a device are in each state, if it is shared by turns.
func addTurns(add func(name, kind, help, labels string, value uint64), d *shownDevice) {
	count := map[string]uint64{}
	for _, p := range d.Programs {
		switch t := p.Turn; {
		case t == nil:
		case view.IsPaused(t):
			count["paused"]++
		default:
			count[t.State]++
		}
	}
	if len(count) == 0 {
		return
	}
	for _, state := range turnStates {
		l := labels("device", d.Device, "simulated", strconv.FormatBool(d.Simulated), "state", state)
		add("gpumem_device_turns", "gauge", "Programs that share the device by turns, by where their memory is.", l, count[state])
	}
}

// addPool adds the figures of pools that the driver library serves.
func addPool(add func(name, kind, help, labels string, value uint64), prefix, of, labels string, u *machine.PoolUse) {
	add(prefix+"_held_bytes", "gauge", "Memory that the pool "+of+" holds from the driver.", labels, u.Held)
	add(prefix+"_in_use_bytes", "gauge", "Memory that is in use, of what the pool "+of+" holds.", labels, u.InUse)
	add(prefix+"_held_peak_bytes", "gauge", "Most memory that the pool "+of+" has held.", labels, u.PeakHeld)
	add(prefix+"_in_use_peak_bytes", "gauge", "Most memory that was in use, of the pool "+of+".", labels, u.PeakInUse)
	add(prefix+"_charged_bytes", "gauge", "Memory that was taken from the driver itself, beside the pool "+of+".", labels, u.Charged)
	add(prefix+"_outside_bytes", "gauge", "Memory of contexts and libraries, beside the pool "+of+".", labels, u.Outside)
	add(prefix+"_refused_total", "counter", "Requests that were refused, "+of+".", labels, u.Refused)
	add(prefix+"_driver_calls_total", "counter", "Driver calls about memory, "+of+".", labels, u.DriverCalls)
}

// summed returns programs without two of the same labels, which Prometheus refuses: their
// memory is added up.
func summed(programs []shownProgram) []shownProgram {
	var list []shownProgram
	for _, p := range programs {
		k := slices.IndexFunc(list, func(q shownProgram) bool { return q.PID == p.PID && q.User == p.User && q.Name == p.Name })
		if k < 0 {
			list = append(list, p)
			continue
		}
		list[k].Used += p.Used
		list[k].Lease += p.Lease
		list[k].Told = list[k].Told || p.Told
		if p.Pool != nil {
			sum := *p.Pool
			if q := list[k].Pool; q != nil {
				view.AddUse(&sum, *q)
			}
			list[k].Pool = &sum
		}
		if p.Turn != nil {
			sum := *p.Turn
			if q := list[k].Turn; q != nil {
				sum.OnHost, sum.Wants, sum.Swaps = sum.OnHost+q.OnHost, sum.Wants+q.Wants, sum.Swaps+q.Swaps
			}
			list[k].Turn = &sum
		}
	}
	slices.SortStableFunc(list, func(a, b shownProgram) int { return cmp.Compare(a.PID, b.PID) })
	return list
}

func (s *server) metrics(w http.ResponseWriter, r *http.Request) {
	state, _, err := s.looks.now(r.Context(), nil)
	if err != nil {
		http.Error(w, "gpumem: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	var b bytes.Buffer
	for _, m := range metricsOf(state) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for _, x := range m.samples {
			fmt.Fprintf(&b, "%s%s %d\n", m.name, x.labels, x.value)
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // the client may be gone
}
