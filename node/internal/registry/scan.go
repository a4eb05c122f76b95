// All leases and tickets of a GPU, or of all.

package registry

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"gpumem/internal/crashpoint"
	"gpumem/internal/proc"
)

// Contents are the leases and tickets of the registry for a GPU.
type Contents struct {
	Leases  []Claim
	Tickets []string // ids in order; some may be of the dead
}

// Scan reads the leases of the GPU and the names of its tickets, and removes the
// files of ended leases. Caller holds the lock of the GPU. A lease of unknown size
// or version is an error.
func (r GPU) Scan(g *Guard) (Contents, error) {
	var l Contents
	kinds, err := r.files()
	if err != nil {
		return l, err
	}
	for _, id := range kinds[newKind] {
		// Its maker died, or makes it again.
		_ = os.Remove(r.Path(id, newKind))
		crashpoint.At("look: half a file removed")
	}
	var errs []error
	dead, left := 0, 0
	for _, id := range kinds[LockKind] {
		c, _, err := r.readLease(id)
		switch {
		case err == nil:
			l.Leases = append(l.Leases, c)
		case IsDead(err):
			// Others' files cannot be removed, and do no harm.
			dead++
			if r.RemoveLease(id) != nil {
				left++
			}
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	for _, id := range kinds.singles() {
		if err := r.readSingle(id); err != nil {
			errs = append(errs, err)
		} else {
			_ = os.Remove(r.Path(id, LeaseKind))
		}
	}
	for _, id := range kinds[LedgerKind] {
		r.removeLedger(id)
	}
	for _, uid := range kinds[TurnsKind] {
		r.removeTurns(uid, l.Leases)
	}
	g.noteDead(dead, left)
	l.Tickets = kinds[TicketKind]
	return l, errors.Join(errs...)
}

// singles returns the records that have no lock file.
func (kinds files) singles() (ids []string) {
	for _, id := range kinds[LeaseKind] {
		if _, ok := slices.BinarySearch(kinds[LockKind], id); !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// Lost returns leases on the GPU whose lock file was removed while the lease lives.
// The kernel's table of locks has them, with their size; without a table there are
// none to be seen.
func (r GPU) Lost(leases []Claim) []Claim {
	locks, err := locksAt(r.base())
	if err != nil {
		return nil
	}
	known := map[uint64]bool{}
	for _, l := range leases {
		known[l.Inode], known[l.Lost] = true, true
	}
	var all []Claim
	for _, l := range locks {
		if !known[l.inode] {
			all = append(all, Claim{Record: Record{Kind: LeaseKind, Bytes: l.length}, Inode: l.inode, UID: -1})
		}
	}
	return all
}

// Identify fills in the process of leases whose record is lost, for the count of
// memory: the youngest that has the lock, which is the program and not its launcher.
// Where none is to be seen their memory counts twice.
func (r *Registry) Identify(leases []Claim) {
	wanted := map[uint64]bool{}
	for _, l := range leases {
		if l.PID == 0 {
			wanted[l.Inode] = true
		}
	}
	if len(wanted) == 0 {
		return
	}
	by, err := holdersOf(wanted)
	if err != nil {
		return
	}
	for i := range leases {
		l := &leases[i]
		if pid, start := youngest(by[l.Inode], proc.ReadStat); pid > 0 {
			l.PID, l.Start, l.Namespace, l.Command = pid, start, r.namespace, proc.Command(pid)
		}
	}
}

// youngest returns the process that started last, of several the last one; 0: none
// can be seen.
func youngest(pids []int, read func(pid int) (proc.Stat, bool)) (pid int, start uint64) {
	for _, p := range pids {
		if s, ok := read(p); ok && start <= s.Start {
			pid, start = p, s.Start
		}
	}
	return pid, start
}

// List returns every lease that lives and every waiter, of all GPUs: by device,
// leases before waiters, those in order. Leases whose files were removed are there,
// too, on GPUs that other files or the given device keys show. It takes no lock. An
// error names the files that cannot be read; the list has the others.
func (r *Registry) List(devices ...string) ([]Entry, error) {
	byKey, err := r.filesByKey("")
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // devices by key
	for key := range byKey {
		names[key] = ""
	}
	for _, d := range devices {
		names[KeyOf(d)] = d
	}
	var all []Entry
	var errs []error
	for key, device := range names {
		entries, err := GPU{r, key}.list(device, byKey[key])
		all, errs = append(all, entries...), append(errs, err)
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.State, b.State), cmp.Compare(a.Place, b.Place), cmp.Compare(a.ID, b.ID))
	})
	FindHolders(all)
	return all, errors.Join(errs...)
}

// list returns the leases and the waiters of the GPU with a device's key, which is looked
// for in the records if it is empty.
func (r GPU) list(device string, kinds files) (all []Entry, err error) {
	leases, tickets, err := r.readAll(kinds)
	for _, l := range append(leases, tickets...) {
		device = cmp.Or(device, l.Device)
	}
	for _, l := range append(leases, r.Lost(leases)...) {
		e := r.Entry(l)
		e.Device = device
		if e.Ledger == "" && slices.Contains(kinds[LedgerKind], e.ID) {
			e.Ledger = r.Path(e.ID, LedgerKind)
		}
		all = append(all, e)
	}
	for i, t := range tickets {
		e := r.Entry(t)
		e.Device, e.Place = device, i
		all = append(all, e)
	}
	return all, err
}

// readAll reads the leases and the tickets of the GPU.
func (r GPU) readAll(kinds files) (leases, tickets []Claim, err error) {
	var errs []error
	for _, id := range kinds[LockKind] {
		l, note, err := r.readLease(id)
		switch {
		case err == nil:
			leases = append(leases, l)
			if !errors.Is(note, fs.ErrNotExist) { // it may just be made
				errs = append(errs, note)
			}
		case !IsDead(err) && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	for _, id := range kinds.singles() {
		errs = append(errs, r.readSingle(id))
	}
	for _, id := range kinds[TicketKind] {
		if t, err := r.ReadTicket(id); err == nil {
			tickets = append(tickets, t)
		}
	}
	return leases, tickets, errors.Join(errs...)
}

// FindHolders fills in HeldBy of leases whose process is not known to live.
func FindHolders(entries []Entry) {
	wanted := map[uint64]bool{}
	for _, e := range entries {
		if e.State == Holds && (e.PID == 0 || e.Ended || e.Elsewhere) {
			wanted[e.inode] = true
		}
	}
	if len(wanted) == 0 {
		return
	}
	by, err := holdersOf(wanted)
	if err != nil {
		return
	}
	for i, e := range entries {
		for _, pid := range by[e.inode] {
			s, _ := proc.ReadStat(pid)
			entries[i].HeldBy = append(entries[i].HeldBy, Holder{pid, proc.Command(pid), s.Start})
		}
		// A program is younger than its launcher.
		slices.SortFunc(entries[i].HeldBy, func(a, b Holder) int { return cmp.Or(cmp.Compare(b.start, a.start), cmp.Compare(b.PID, a.PID)) })
	}
}

// Enclosing returns the lease on the GPU that this process runs in: one whose lock it
// has inherited, else that of this process or its nearest ancestor, of several the
// largest. Leases that own reports are this process's do not count. ok is false if there is
// none.
func (r GPU) Enclosing(own func(id string) bool) (e Entry, ok bool, err error) {
	kinds, err := r.files()
	if err != nil {
		return Entry{}, false, err
	}
	leases, _, _ := r.readAll(kinds) // an unreadable lease encloses no process
	leases = slices.DeleteFunc(leases, func(l Claim) bool { return own(l.ID) })
	inherited := locksIn(strconv.Itoa(os.Getpid()))
	for _, l := range leases {
		if inherited[l.Inode] || inherited[l.Lost] {
			return r.Entry(l), true, nil
		}
	}
	pid := os.Getpid()
	for range 1000 { // parents that end meanwhile could make it go round
		s, there := proc.ReadStat(pid)
		if !there {
			break
		}
		for _, l := range leases {
			isHere := l.PID == pid && l.Start == s.Start && l.Namespace == r.namespace
			if isHere && (!ok || l.Bytes > e.Bytes) {
				e, ok = r.Entry(l), true
			}
		}
		if ok {
			return e, true, nil
		}
		pid = s.Parent
	}
	return Entry{}, false, nil
}
