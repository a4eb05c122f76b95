package serve

// What a state shows beyond its moment: what came before.

import (
	"strings"

	"gpumem/internal/report"
	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// follow adds a state to the history and fills what follows from it.
func follow(h *history.History, s *State) {
	snapshot := s.snapshot
	if snapshot == nil {
		snapshot = snapshotOf(s)
	}
	quantities := map[string]uint64{}
	for _, p := range s.Pools {
		quantities[poolName(&p, "live")], quantities[poolName(&p, "held")] = uint64(p.Stats.BytesInUse), uint64(p.Stats.PoolBytes)
		for _, u := range p.Live {
			quantities[siteName(&p, &u)] = u.Bytes
		}
	}
	h.See(snapshot, quantities)
	for i := range s.Devices {
		followDevice(h, &s.Devices[i], &snapshot.Devices[i], s)
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		stayed(h, p)
		names, sizes := make([]string, len(p.Live)), make([]uint64, len(p.Live))
		for k := range p.Live {
			u := &p.Live[k]
			names[k] = siteName(p, u)
			sizes[k] = h.Peak(names[k], history.Lately)
			u.Grows = h.Grows(names[k])
		}
		var live []shownSite
		for _, k := range h.Largest(poolName(p, "sites"), names, sizes) {
			live = append(live, p.Live[k])
		}
		p.Live = live
	}
}

// stayed adds the places of the program that hold nothing now and did a few looks ago, as
// far as there is room: those that allocate and free in each step do not come and go.
func stayed(h *history.History, p *shownPool) {
	present := map[string]bool{}
	for _, u := range p.Live {
		present[u.Stack] = true
	}
	prefix := siteName(p, &shownSite{})
	for _, name := range h.Recent(prefix, history.Lately) {
		if stack := strings.TrimPrefix(name, prefix); !present[stack] && len(p.Live) < mostSites {
			p.Live = append(p.Live, shownSite{Stack: stack})
		}
	}
}

func followDevice(h *history.History, v *shownDevice, d *machine.Device, s *State) {
	for k, name := range history.Programs(d) {
		p := &v.Programs[k]
		p.Key, p.Title, p.Number, p.Grows = name, report.OneLine(view.Title(&d.Programs[k])), h.Number(d, name), h.Grows(name)
	}
	v.Unlisted = history.Unlisted(d)
	v.Orders, v.Parts = map[history.By][]int{}, []shownPart{}
	for _, by := range []history.By{history.ByMemory, history.ByPID, history.ByAge, history.ByGrowth, history.ByName} {
		v.Orders[by] = h.Order(d, by)
	}
	shares := view.SharesOf(d)
	v.Remarks = append(shares.Remarks(), view.Remarks(d, s.Time)...)
	leases := map[*machine.Lease]int{}
	for _, p := range shares.Parts {
		if p.Lease != nil && leases[p.Lease] == 0 {
			leases[p.Lease] = len(leases) + 1
		}
		v.Parts = append(v.Parts, shownPart{p.Kind, p.Program, leases[p.Lease], p.Bytes})
	}
}

func poolName(p *shownPool, what string) string { return "pool " + p.Name + "\x00" + what }

func siteName(p *shownPool, u *shownSite) string { return poolName(p, "site "+u.Stack) }

// snapshotOf returns the devices of a state that was made from no snapshot. Programs share
// no leases there.
func snapshotOf(s *State) *machine.Snapshot {
	out := &machine.Snapshot{Time: s.Time}
	for _, v := range s.Devices {
		d := machine.Device{Spec: v.Device, Name: v.Name, Total: v.Total, Leased: v.Leased}
		if v.Told {
			d.Used, d.Free = &v.Used, &v.Free
		}
		for _, q := range v.Programs {
			p := machine.Program{PID: q.PID, Name: q.Name, Kind: "compute", User: q.User, Started: q.Started}
			if q.Command != "" {
				p.Command = []string{q.Command}
			}
			if q.Told {
				p.Used = &q.Used
			}
			if q.Lease > 0 {
				p.Lease = &machine.Lease{Bytes: q.Lease, Programs: 1, Holder: q.PID, InUse: q.Used}
			}
			d.Programs = append(d.Programs, p)
		}
		for n, w := range v.Waiting {
			d.Waiting = append(d.Waiting, machine.Waiting{Place: n, PID: w.PID, User: w.User, Wants: w.Wants, Since: w.Since, Command: []string{w.Command}})
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}
