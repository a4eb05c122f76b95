// Package probe reads the state of this machine's GPUs: the devices and their programs
// from the driver and NVML, the leases from their registry, and the programs themselves
// from /proc. gpumem ps, top, serve, doctor --machine and explain --pid read it.
package probe

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/node/internal/beside"
	"gpumem/node/internal/view"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/share"
	"gpumem/size"
)

// Options choose what a Probe reads. The zero value is the whole machine.
type Options struct {
	// Devices are specs as --device takes them. Without any it is every device of the
	// driver, and the one that $GPUMEM_DEVICE names.
	Devices []string
	// Leases lists the leases of this machine, and all on the devices with these keys.
	// With an error it may list some. Nil is the registry that $GPUMEM_RUN_DIR names,
	// or the machine's.
	Leases func(keys []string) ([]share.Entry, error)
}

// Probe reads the state of a machine, as often as Snapshot is called.
type Probe struct{ o Options }

// New checks the specs of the devices.
func New(o Options) (*Probe, error) {
	for _, text := range o.Devices {
		spec, err := open.Parse(text)
		if err != nil {
			return nil, err
		}
		if spec.Create != nil {
			return nil, fmt.Errorf("device %q: create makes a device, and here one is looked at; make it with gpumem devices", text)
		}
	}
	if o.Leases == nil {
		o.Leases = registered
	}
	return &Probe{o}, nil
}

// registered lists the leases of the machine's registry.
func registered(keys []string) ([]share.Entry, error) {
	if runtime.GOOS != "linux" { // there are no leases
		return nil, nil
	}
	r, err := share.Look(os.Getenv(share.EnvDir))
	if err != nil {
		return nil, err
	}
	return r.List(keys...)
}

// Snapshot reads the state of the machine. The error is that of the devices; a process
// or a lease that cannot be read is in the snapshot, with the reason.
func (p *Probe) Snapshot() (*machine.Snapshot, error) {
	listed, driver, err := Devices(p.o.Devices)
	if err != nil {
		return nil, err
	}
	s := &machine.Snapshot{Time: time.Now(), Devices: []machine.Device{}, Driver: driver}
	if len(listed) == 0 && driver != nil && driver.Why != "" {
		s.Notes = append(s.Notes, driver.Why)
	}
	var keys []string
	for _, d := range listed {
		if key := d.Key(); key != "" {
			keys = append(keys, key)
		}
	}
	leases, err := p.o.Leases(keys)
	if err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("leases: %v", err))
	}
	leases, notes := inContainer(leases, listed)
	s.Notes = append(s.Notes, notes...)
	if len(p.o.Devices) == 0 {
		listed = append(listed, unread(leases, listed)...)
	}
	fill(s, listed, leases)
	return s, nil
}

// Devices lists the devices with these specs, or all if there are none. driver is nil
// if specs are given.
func Devices(specs []string) (list []open.Listed, driver *machine.Driver, err error) {
	if len(specs) == 0 {
		list, d, err := open.All(os.LookupEnv)
		return list, (*machine.Driver)(&d), err
	}
	parsed := make([]open.Spec, len(specs))
	for i, text := range specs { // all of them are read before a file is made
		if parsed[i], err = open.Parse(text); err != nil {
			return nil, nil, err
		}
	}
	for _, s := range parsed {
		some, err := s.Status()
		if err != nil {
			return nil, nil, err
		}
		list = append(list, some...)
	}
	return list, nil, nil
}

// fill adds the devices, with every program on them and every lease.
func fill(s *machine.Snapshot, listed []open.Listed, leases []share.Entry) {
	pools, byTurns, inside, notes := readLedgers(s.Time, leases)
	s.Notes = append(s.Notes, notes...)
	pids := pools.pids()
	for i := range listed {
		d := &listed[i]
		d.Processes = inside.numbered(d.Key(), d.Processes)
		for _, p := range d.Processes {
			pids = append(pids, p.PID)
		}
	}
	for _, l := range leases {
		if pid := holderOf(l); pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	read := readAll(slices.Compact(pids))
	for _, d := range listed {
		s.Devices = append(s.Devices, deviceOf(d, leases, pools, byTurns, read))
	}
	fillAsks(s.Devices, listed, read)
}

// holderOf returns the process that has a lease by its number here, 0 if it cannot be
// seen from here.
func holderOf(l share.Entry) int {
	switch {
	case l.PID > 0 && !l.Elsewhere && !l.Ended:
		return l.PID
	case len(l.HeldBy) > 0:
		return l.HeldBy[0].PID
	}
	return 0
}

// identity names a process. Its number alone may be another's, later or elsewhere.
type identity struct {
	pid              int
	start, namespace uint64
	lease            string // of a lease for containers; then the others are 0
}

// identityOf returns whose lease it is. Leases for containers are all their agent's, and
// each is one for itself.
func identityOf(l share.Entry) identity {
	if len(l.Containers) > 0 {
		return identity{lease: l.ID + l.Ledger}
	}
	return identity{pid: l.PID, start: l.Start, namespace: l.Namespace}
}

// leaseOf returns the lease of an entry.
func leaseOf(l share.Entry) *machine.Lease {
	one := &machine.Lease{Bytes: l.Bytes, Holder: holderOf(l)}
	if len(l.Containers) > 0 {
		one.Holder, one.ID, one.MoreContainers = 0, l.ID, l.MoreContainers
		for _, c := range l.Containers {
			one.Containers = append(one.Containers, machine.Container(c))
		}
	}
	return one
}

// inContainer adds the leases of the container that this process runs in. Its registry is
// not there: its lease file has them. A lease on a GPU that is not listed is a note.
func inContainer(leases []share.Entry, listed []open.Listed) (all []share.Entry, notes []string) {
	c, ok, err := share.InContainer()
	if err != nil {
		return leases, []string{err.Error()}
	}
	if !ok {
		return leases, nil
	}
	alone := len(c.GPUs) == 1 && len(listed) == 1
	for _, e := range c.Entries() {
		seen := false
		for _, d := range listed {
			if d.UUID == e.Device || alone && d.UUID == "" { // a simulated one may have none
				e.Device, seen = d.Key(), true
				leases = append(leases, e)
			}
		}
		if !seen {
			notes = append(notes, fmt.Sprintf("this container has a lease of %s on %s, which is not listed", size.Format(e.Bytes), e.Device))
		}
	}
	return leases, notes
}

// unread returns the GPUs that containers have leases of and that cannot be read here, as
// from a static program beside NVIDIA's driver: what is leased of them is known all the same,
// and from the ledgers what is held.
func unread(leases []share.Entry, listed []open.Listed) (list []open.Listed) {
	for _, l := range leases {
		known := func(d open.Listed) bool { return d.UUID == l.Device || d.Key() == l.Device }
		isUUID := strings.HasPrefix(l.Device, "GPU-") || strings.HasPrefix(l.Device, "MIG-")
		if len(l.Containers) == 0 || !isUUID {
			continue
		}
		if slices.ContainsFunc(listed, known) || slices.ContainsFunc(list, known) {
			continue
		}
		info := device.Info{Name: "a GPU that is not read here", UUID: l.Device, Ordinal: len(listed) + len(list)}
		d := open.Listed{Words: l.Device, Status: device.Status{Info: info}}
		if f, err := ledger.OpenOf(l.Ledger, l.UID); err == nil {
			d.Total = f.Header().Total
			_ = f.Close()
		}
		d.Notes = []string{"what is leased of it is known, and what the leases' programs hold; not what others do"}
		list = append(list, d)
	}
	return list
}

// leased is all that one process has leased of a device.
type leased struct {
	*machine.Lease
	first share.Entry
}

// deviceOf joins what is known of a device, its programs and its leases.
func deviceOf(listed open.Listed, leases []share.Entry, pools members, byTurns turns, read map[int]*reading) machine.Device {
	d := machine.Device{
		Index: listed.Ordinal, Spec: listed.Words, Name: listed.Name, UUID: listed.UUID, Simulated: listed.Simulated,
		Total: listed.Total, Display: listed.Display, Waiting: []machine.Waiting{}, Notes: listed.Notes,
	}
	if listed.Free > 0 || listed.Used > 0 {
		d.Free, d.Used = &listed.Free, &listed.Used
	}
	j := join{d: &d, of: map[identity]*leased{}, read: read}
	j.addLeases(listed.Key(), leases)
	j.addPrograms(listed.Processes)
	for _, l := range j.held {
		if ms, ok := pools.of(l); ok {
			addPool(&d, j.of[identityOf(l)], ms, byTurns[l.Ledger], read)
		}
	}
	j.addBeside(&listed, pools)
	for _, l := range j.order {
		if l.Programs == 0 {
			d.Programs = append(d.Programs, j.holder(l))
		}
	}
	// Without a list, a note says why there is none.
	if d.Programs == nil && len(d.Notes) == 0 {
		d.Programs = []machine.Program{}
	}
	view.SortPrograms(&d)
	return d
}

// join joins one device's programs with its leases.
type join struct {
	d     *machine.Device
	held  []share.Entry        // the leases of the device
	order []*leased            // the same by process
	of    map[identity]*leased // the same
	read  map[int]*reading
}

// addLeases adds the leases of the device with this key, and those who wait for one.
func (j *join) addLeases(key string, leases []share.Entry) {
	var waiting []share.Entry
	for _, l := range leases {
		if l.Device != key || key == "" {
			continue
		}
		if l.State == share.Waits {
			waiting = append(waiting, l)
			continue
		}
		j.held = append(j.held, l)
		if first := j.of[identityOf(l)]; first != nil && l.PID > 0 && len(l.Containers) == 0 {
			first.Bytes += l.Bytes
			continue
		}
		one := &leased{leaseOf(l), l}
		j.order = append(j.order, one)
		j.of[identityOf(l)] = one
	}
	j.d.Leased = leasedBy(j.held)

	slices.SortStableFunc(waiting, func(a, b share.Entry) int { return cmp.Compare(a.Place, b.Place) })
	for _, l := range waiting {
		j.d.Waiting = append(j.d.Waiting, machine.Waiting{Place: l.Place, Stopped: l.Stopped, PID: l.PID, Elsewhere: l.Elsewhere,
			User: proc.UserName(l.UID), Wants: l.Bytes, Since: l.Since, Command: l.Command})
	}
}

// addPrograms adds the programs that the driver lists, each under its lease.
func (j *join) addPrograms(processes []device.Process) {
	owners := newOwners(j.held)
	for _, process := range processes {
		p := machine.Program{PID: process.PID, Name: process.Name, Kind: process.Kind, Start: process.Start}
		if process.Known {
			p.Used = &process.Used
		}
		r := j.read[p.PID]
		describe(&p, r, !j.d.Simulated)
		// Without its start, a number may be another process's here.
		l, ok := owners.leaseOf(process)
		if ok = ok && (p.Started != nil || process.Start != 0); ok && p.Started == nil {
			p.Command, p.User = l.Command, proc.UserName(l.UID)
			p.Unknown = fmt.Sprintf("process %d is of another pid namespace, and its lease is known", p.PID)
		}
		if ok {
			p.Lease = j.of[identityOf(l)].Lease
			p.Lease.Programs++
			p.Lease.InUse += p.Holds()
			underLease(&p, l, r)
		}
		j.d.Programs = append(j.d.Programs, p)
	}
}

// addBeside adds what programs took beside leases with a pool. A container's lease is its
// agent's to keep.
func (j *join) addBeside(listed *open.Listed, pools members) {
	owners := newOwners(j.held)
	for _, process := range listed.Processes {
		i := slices.IndexFunc(j.d.Programs, func(p machine.Program) bool { return p.PID == process.PID && p.Started != nil })
		r := j.read[process.PID]
		if i < 0 || r.readErr != nil {
			continue
		}
		l, ok := owners.leaseOf(process)
		if !ok || len(l.Containers) > 0 {
			continue
		}
		ms, pooled := pools.of(l)
		if !pooled {
			continue
		}
		p := beside.Process{PID: process.PID, Environ: r.environ, Used: process.Used, Known: process.Known, GPU: listed.Info, Outside: l.Outside}
		if at := slices.IndexFunc(ms, func(m ledger.Figures) bool { return m.PID == process.PID && here(m) }); at >= 0 {
			p.Member = &ms[at]
		}
		j.d.Programs[i].Beside = beside.Of(p)
	}
}

// holder returns the process of a lease under which no program uses the device.
func (j *join) holder(l *leased) machine.Program {
	p := machine.Program{PID: l.Holder, Lease: l.Lease, Command: l.first.Command}
	if len(l.Containers) > 0 { // the agent has it, which is no program of the GPU
		p.Command, p.Name = nil, view.Where(l.Lease)
		return p
	}
	if l.first.UID >= 0 {
		p.User = proc.UserName(l.first.UID)
	}
	r := j.read[p.PID]
	if r == nil || r.err != nil || !isOf(l.first, r.info) {
		p.Unknown = unseen(l.first)
		return p
	}
	describe(&p, r, false)
	underLease(&p, l.first, r)
	return p
}

// isOf reports whether a process with the number of a lease's holder is that: its number alone
// may be another's. The holder has another user than the lease once it has given up its own.
func isOf(l share.Entry, i proc.Info) bool { return i.Start == l.Start || len(l.HeldBy) > 0 }

// unseen returns the reason why a lease's process is not shown.
func unseen(l share.Entry) string {
	switch {
	case l.PID == 0:
		return "the files of a lease are gone, and the process that holds it cannot be seen from here"
	case l.Elsewhere:
		return fmt.Sprintf("process %d of a lease is in another pid namespace, such as a container, and cannot be seen from here", l.PID)
	case l.Ended:
		return fmt.Sprintf("process %d has ended and left its lease to one that cannot be seen from here", l.PID)
	}
	return "its process cannot be seen from here"
}
