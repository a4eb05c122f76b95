// Readings of GPUs.

package agent

import (
	"gpumem/device"
	"gpumem/node/share"
)

// Host returns the meter of a simulated GPU that programs in containers use. They write
// their numbers there as they see them; the registry needs the host's. proc is the folder
// /proc of the host's pid namespace.
func Host(m share.Meter, proc string) share.Meter { return hostMeter{m, proc} }

type hostMeter struct {
	share.Meter
	proc string
}

// Status returns the reading with the host's numbers of processes. The GPU lists processes
// that are like each other as one: of each of those it is not known how much it holds.
func (m hostMeter) Status() (device.Status, error) {
	st, err := m.Meter.Status()
	if err != nil || len(st.Processes) == 0 {
		return st, err
	}
	in := byInside(processes(m.proc, nil))
	var list []device.Process
	for _, p := range st.Processes {
		switch like := in[inside{p.PID, p.Start}]; {
		case len(like) == 0 || p.Start == 0:
			list = append(list, p)
		case len(like) == 1:
			p.PID = like[0].pid
			list = append(list, p)
		default:
			p.Used, p.Known = 0, false
			for _, q := range like {
				p.PID = q.pid
				list = append(list, p)
			}
		}
	}
	st.Processes = list
	return st, nil
}

// crowd is the number of containers from which a lease's record may not name all of them:
// it has one page.
const crowd = 40

// crowdMeter takes the memory of leases with more containers than their records name out of
// a reading. The registry would take it for that of programs without a lease, and count it
// beside the lease.
type crowdMeter struct {
	share.Meter
	books *books
	uuid  string
}

// Status returns the reading without that memory.
func (m crowdMeter) Status() (device.Status, error) {
	lease := map[string]*uint64{} // what is left of a container's lease, one for all of the lease
	m.books.all(func(a *account) {
		if left := a.Bytes; a.UUID == m.uuid && len(a.members) > crowd {
			for id := range a.members {
				lease[id] = &left
			}
		}
	})
	st, err := m.Meter.Status()
	if err != nil || len(lease) == 0 {
		return st, err
	}
	of := map[int]string{}
	for _, p := range processes(m.books.proc, nil) {
		of[p.pid] = p.container
	}
	var rest []device.Process
	for _, p := range st.Processes {
		left := lease[of[p.PID]]
		if left == nil {
			rest = append(rest, p)
			continue
		}
		n := min(p.Used, *left)
		*left -= n
		st.Free, st.Used = st.Free+n, st.Used-min(st.Used, n)
		if p.Used -= n; p.Used > 0 {
			rest = append(rest, p)
		}
	}
	st.Processes = rest
	return st, nil
}
