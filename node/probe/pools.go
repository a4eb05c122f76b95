// The figures of pools, from the ledgers of leases whose memory the driver library
// serves.

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/account"
	"gpumem/node/internal/view"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/runenv"
	"gpumem/node/share"
)

// members are the processes of leases that count in a ledger, by its path.
type members map[string][]ledger.Figures

// of returns the processes of a lease; ok is false if nobody counts them. Of a ledger that it shares by
// turns they are those in its part.
func (all members) of(l share.Entry) (list []ledger.Figures, ok bool) {
	ms, ok := all[l.Ledger]
	for _, m := range ms {
		if m.In(l.Part) {
			list = append(list, m)
		}
	}
	return list, ok
}

// turns are the turns of the members by what they are here, by the path of their ledger by turns.
type turns map[string]map[alias]*machine.Turn

// alias is a process of a container as it knows itself. Those of several containers have
// one together if they started within one hundredth of a second.
type alias struct {
	pid   int
	start uint64
}

func aliasOf(m ledger.Figures) alias { return alias{m.PID, m.Start} }

// aliases are the processes of containers, with the numbers that they have here, by the
// device of their lease.
type aliases map[string]map[alias][]ledger.Figures

// readLedgers reads the ledgers of leases. Those of other users cannot be read; others
// that cannot are notes.
func readLedgers(now time.Time, leases []share.Entry) (all members, byTurns turns, inside aliases, notes []string) {
	all, byTurns, inside = members{}, turns{}, aliases{}
	for _, l := range leases {
		if _, done := all[l.Ledger]; done || l.Ledger == "" {
			continue
		}
		f, err := ledger.OpenOf(l.Ledger, l.UID)
		switch {
		case err == nil:
			limit, entries, isByTurns := f.Limit(), f.Turns(), f.Header().Turns
			if all[l.Ledger] = figuresOf(entries); !isByTurns {
				all[l.Ledger] = f.Members()
			}
			_ = f.Close()
			if len(l.Containers) > 0 {
				owners := newOwners([]share.Entry{{ID: l.ID, Containers: l.Containers}})
				own := slices.Clone(all[l.Ledger])
				translate(all[l.Ledger], func(pid int) bool { _, ok := owners.leaseOf(device.Process{PID: pid}); return ok })
				inside.add(l.Device, own, all[l.Ledger])
			}
			if isByTurns {
				byTurns[l.Ledger] = map[alias]*machine.Turn{}
				for i, t := range turnsOf(now, ledger.MomentOf(now), limit, entries, all[l.Ledger]) {
					byTurns[l.Ledger][aliasOf(all[l.Ledger][i])] = t
				}
			}
		case !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist):
			if note := err.Error(); !slices.Contains(notes, note) { // leases by turns have one together
				notes = append(notes, note)
			}
		}
	}
	return all, byTurns, inside, notes
}

// leasedBy returns the most that leases of a device hold together: those by turns what their ledger lets
// them.
func leasedBy(leases []share.Entry) uint64 {
	limits := map[string]uint64{}
	var all []account.Lease
	for _, l := range leases {
		one := l.Counted()
		if l.Part != 0 {
			if _, known := limits[l.Ledger]; !known {
				limits[l.Ledger] = ledger.LimitOf(l.Ledger, l.UID)
			}
			one.Group, one.Limit = l.Ledger, limits[l.Ledger]
		}
		all = append(all, one)
	}
	return account.Leased(all)
}

// add adds members of a lease on a device whose number is another one here than their own.
func (all aliases) add(key string, own, now []ledger.Figures) {
	if all[key] == nil {
		all[key] = map[alias][]ledger.Figures{}
	}
	for i, m := range own {
		if a := aliasOf(m); now[i].PID != m.PID {
			all[key][a] = append(all[key][a], now[i])
		}
	}
}

// numbered returns a device's processes with their numbers here. A simulated GPU lists them
// as they know themselves, and those that are like each other as one: of these the ledger
// has what each holds.
func (all aliases) numbered(key string, list []device.Process) []device.Process {
	var now []device.Process
	for _, p := range list {
		ms := all[key][alias{p.PID, p.Start}]
		for _, m := range ms {
			p.PID = m.PID
			if len(ms) > 1 {
				p.Used, p.Known = m.Sum(), true
			}
			now = append(now, p)
		}
		if len(ms) == 0 {
			now = append(now, p)
		}
	}
	return now
}

// here reports whether a member's process number is its own in this pid namespace.
func here(m ledger.Figures) bool {
	s, ok := proc.ReadStat(m.PID)
	return ok && s.Start == m.Start
}

// translate gives members that are in a container of a lease the process numbers that
// they have here: those of processes in its containers (inside) that started at the same
// time. A container numbers its processes by itself.
func translate(ms []ledger.Figures, inside func(pid int) bool) {
	entries, _ := os.ReadDir("/proc") // without it they stay unknown
	found := map[uint64][]int{}       // by the time of the start
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s, ok := proc.ReadStat(pid)
		if ok && slices.ContainsFunc(ms, func(m ledger.Figures) bool { return m.Start == s.Start }) {
			if inside(pid) {
				found[s.Start] = append(found[s.Start], pid)
			}
		}
	}
	for i, m := range ms {
		if pids := found[m.Start]; len(pids) > 0 { // those of one hundredth of a second are like each other
			ms[i].PID, found[m.Start] = pids[0], pids[1:]
		}
	}
}

// pids returns the members that can be seen from here.
func (all members) pids() (list []int) {
	for _, ms := range all {
		for _, m := range ms {
			if here(m) {
				list = append(list, m.PID)
			}
		}
	}
	return list
}

func useOf(m ledger.Figures) *machine.PoolUse {
	return &machine.PoolUse{Held: m.Held, InUse: m.InUse, PeakHeld: m.PeakHeld, PeakInUse: m.PeakInUse,
		Charged: m.Charged, Outside: m.Outside, Refused: m.Refused, DriverCalls: m.DriverCalls}
}

// addPool adds the figures of a lease's members to the lease and to the programs. A
// member that the driver does not list is a program, too.
func addPool(d *machine.Device, l *leased, ms []ledger.Figures, byTurns map[alias]*machine.Turn, read map[int]*reading) {
	if l.Sum == nil {
		l.Sum = new(machine.PoolUse)
	}
	for _, m := range ms {
		use := useOf(m)
		view.AddUse(l.Sum, *use)
		seen := here(m)
		at := slices.IndexFunc(d.Programs, func(p machine.Program) bool { return seen && p.PID == m.PID && p.Started != nil })
		if at < 0 {
			p := machine.Program{PID: m.PID, Kind: "compute", Command: l.first.Command}
			if r := read[m.PID]; seen && r != nil && r.err == nil {
				p.Command = nil
				describe(&p, r, false)
				underLease(&p, l.first, r)
			} else {
				p.Unknown = fmt.Sprintf("process %d of a lease is in another pid namespace, such as a container, and cannot be seen from here", m.PID)
				p.PID = 0
			}
			d.Programs = append(d.Programs, p)
			at = len(d.Programs) - 1
		}
		p := &d.Programs[at]
		p.Pool, p.Turn = use, byTurns[aliasOf(m)]
		if p.Lease == nil {
			p.Lease = l.Lease
			l.Programs++
			l.InUse += p.Holds()
		}
	}
}

// servedByPool reports whether an environment has the driver library serve a program.
func servedByPool(environ []string) bool {
	for _, line := range environ {
		if name, ok := strings.CutPrefix(line, runenv.EnvPool+"="); ok {
			return name != "" && name != "off"
		}
	}
	return false
}
