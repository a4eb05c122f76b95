package account

import (
	"fmt"
	"testing"
	"time"

	"gpumem/device"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// digits is the ID of a container.
func digits(n int) string { return fmt.Sprintf("%064x", n) }

func process(pid int, used uint64) device.Process {
	return device.Process{PID: pid, Name: "python", Kind: "compute", Used: used, Known: true}
}

// owned says whose the processes are, by pid; pids from 1000 on are not seen, and leases of
// namespace 2 are elsewhere.
type owned map[int]identity

func (o owned) OwnerOf(p device.Process) (identity, Sight) {
	w, ok := o[p.PID]
	switch {
	case ok:
		return w, Owned
	case p.PID >= 1000:
		return w, Unseen
	}
	return w, Foreign
}

func (o owned) IsElsewhere(l Lease) bool { return l.Namespace == 2 }

// TestCount: what can be shared of a GPU of 24 GiB with one lease of 8 GiB, to
// which pid 10 belongs.
func TestCount(t *testing.T) {
	const total = 24 * gib
	for _, tc := range []struct {
		name      string
		used      uint64
		processes []device.Process
		alter     func(*device.Status)
		reserve   uint64
		shareable uint64
		display   uint64
	}{
		{"nobody", 0, nil, nil, 0, total, 0},
		{"inside the lease", 5 * gib, []device.Process{process(10, 5*gib)}, nil, 0, total, 0},
		{"beyond the lease", 9 * gib, []device.Process{process(10, 9*gib)}, nil, 0, total - gib, 0},
		{"foreign", 3 * gib, []device.Process{process(11, 3*gib)}, nil, 0, total - 3*gib, 0},
		{"nobody knows whose", 3 * gib, nil, nil, 0, total - 3*gib, 0},
		{"the lease's, of unknown size", 9 * gib, []device.Process{{PID: 10}, process(11, 2*gib)}, nil, 0, total - 2*gib, 0},
		{"the lease's, of unknown size, too large", 12 * gib, []device.Process{{PID: 10}, process(11, 2*gib)}, nil, 0, total - 4*gib, 0},
		{"foreign, of unknown size", 9 * gib, []device.Process{process(10, 7*gib), {PID: 11}}, nil, 0, total - 2*gib, 0},
		{"reserve", gib, nil, nil, 2 * gib, total - 3*gib, 0},
		{"a reserve of more than all", gib, nil, nil, 1<<64 - 1, 0, 0},
		{"a display that uses little", 512 * mib, nil, display, 0, total - gib, gib},
		{"a display that uses much", 2 * gib, nil, display, 0, total - 3*gib, 3 * gib},
		{"a display and programs", 4*gib + 512*mib, []device.Process{process(11, 3*gib), process(10, gib)}, display, 0, total - 4*gib, gib},
		{"the desktop's programs", 5 * gib, []device.Process{{PID: 3, Kind: "graphics", Used: 2 * gib, Known: true}, process(10, gib)}, display, 0, total - 5*gib, 3 * gib},
		{"the desktop's programs, said to use more than is taken", gib, []device.Process{{PID: 3, Kind: "graphics", Used: 2 * gib, Known: true}},
			display, 0, total - gib - 512*mib, gib + 512*mib},
		{"the host's memory", 4 * gib, nil, func(s *device.Status) { s.Unified = true }, 0, total - 4*gib - total/10, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := device.Status{Info: device.Info{Total: total}, Free: total - tc.used, Used: tc.used, Processes: tc.processes}
			if tc.alter != nil {
				tc.alter(&st)
			}
			f, err := Count(st, []Lease{{PID: 10, Start: 7, Bytes: 8 * gib}}, tc.reserve, owned{10: {pid: 10, start: 7}})
			if err != nil || f.Shareable != tc.shareable || f.Display != tc.display || f.Leased != 8*gib || f.Left() != Less(tc.shareable, 8*gib) {
				t.Errorf("%+v, %v; want %d, display %d", f, err, tc.shareable, tc.display)
			}
		})
	}
}

// TestUnknownMemoryCountsForOneLease: memory of which no process is known may be that of
// one lease's hidden process or of another's, and not of both.
func TestUnknownMemoryCountsForOneLease(t *testing.T) {
	st := device.Status{
		Info: device.Info{Total: 24 * gib}, Free: 18 * gib, Used: 6 * gib,
		Processes: []device.Process{{PID: 10}, {PID: 12}, process(11, 2*gib)},
	}
	leases := []Lease{{PID: 10, Start: 7, Bytes: 3 * gib}, {PID: 12, Start: 8, Bytes: 3 * gib}}
	f, err := Count(st, leases, 0, owned{10: {pid: 10, start: 7}, 12: {pid: 12, start: 8}})
	if want := uint64(22 * gib); err != nil || f.Shareable != want {
		t.Errorf("%d can be shared, want %d (%v)", f.Shareable, want, err)
	}
}

// TestLeasesOfOtherNamespacesAreCountedOnce: of a GPU of 24 GiB a lease of 8 GiB is of another
// pid namespace, and one of 4 GiB is of this. What cannot be seen here is within the first, and
// no more than its size.
func TestLeasesOfOtherNamespacesAreCountedOnce(t *testing.T) {
	const total = 24 * gib
	for _, tc := range []struct {
		name      string
		used      uint64
		processes []device.Process
		foreign   uint64
	}{
		{"nobody", 0, nil, 0},
		{"its process is not seen", 5 * gib, []device.Process{process(1000, 5*gib)}, 0},
		{"the GPU names no processes", 5 * gib, nil, 0},
		{"beyond its size", 10 * gib, []device.Process{process(1000, 10*gib)}, 2 * gib},
		{"a program that is seen is not its", 5 * gib, []device.Process{process(11, 5*gib)}, 5 * gib},
		{"both", 8 * gib, []device.Process{process(1000, 5*gib), process(11, 3*gib)}, 3 * gib},
		{"seen by its start", 6 * gib, []device.Process{process(20, 6*gib)}, 0},
		{"seen, and others not", 9 * gib, []device.Process{process(20, 6*gib), process(1000, 3*gib)}, gib},
		{"the other lease's does not hide what is not seen", 9 * gib, []device.Process{process(10, 2*gib), process(1000, 7*gib)}, 0},
		{"the other lease is full", 16 * gib, []device.Process{process(10, 6*gib), process(1000, 10*gib)}, 4 * gib},
		{"the desktop's is not its", 4 * gib, []device.Process{{PID: 1001, Kind: "graphics", Used: 3 * gib, Known: true}, process(1000, gib)}, 3 * gib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := device.Status{Info: device.Info{Total: total}, Free: total - tc.used, Used: tc.used, Processes: tc.processes}
			leases := []Lease{{PID: 20, Start: 8, Bytes: 8 * gib, Namespace: 2}, {PID: 10, Start: 7, Bytes: 4 * gib, Namespace: 1}}
			f, err := Count(st, leases, 0, owned{10: leases[1].process(), 20: leases[0].process()})
			if err != nil || f.Shareable != total-tc.foreign || f.Left() != total-tc.foreign-12*gib {
				t.Errorf("%d can be shared, %d are left: %d foreign, want %d (%v)", f.Shareable, f.Left(), total-f.Shareable, tc.foreign, err)
			}
		})
	}
}

// TestMemoryOfContainersIsWithinTheirLeaseAlone: an agent, process 10, has leases of 8 and
// 4 GiB. What the containers of one use beyond it is not within the other.
func TestMemoryOfContainersIsWithinTheirLeaseAlone(t *testing.T) {
	const total = 24 * gib
	one, two := []string{digits(1)}, []string{digits(2)}
	a, b, agent := identity{lease: "a"}, identity{lease: "b"}, identity{pid: 10, start: 7}
	of := owned{10: agent, 11: agent, 20: a, 21: a, 30: b}
	for _, tc := range []struct {
		name      string
		processes []device.Process
		foreign   uint64
		over      map[identity]uint64
	}{
		{"nobody", nil, 0, nil},
		{"within both", []device.Process{process(20, 5*gib), process(21, 3*gib), process(30, 4*gib)}, 0, nil},
		{"beyond one, the other unused", []device.Process{process(20, 9*gib), process(21, gib)}, 2 * gib, map[identity]uint64{a: 2 * gib}},
		{"beyond both", []device.Process{process(20, 9*gib), process(30, 7*gib)}, 4 * gib, map[identity]uint64{a: gib, b: 3 * gib}},
		{"the agent has what its containers leave", []device.Process{process(20, 6*gib), process(30, 3*gib), process(11, 4*gib)}, gib, map[identity]uint64{agent: gib}},
		{"of unknown size", []device.Process{{PID: 20}, process(30, 4*gib), process(40, 2*gib)}, 2 * gib, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := device.Status{Info: device.Info{Total: total}, Free: total, Processes: tc.processes}
			for _, p := range tc.processes {
				st.Used += p.Used
				if !p.Known {
					st.Used += 3 * gib
				}
			}
			st.Free -= st.Used
			leases := []Lease{{ID: "a", PID: 10, Start: 7, Bytes: 8 * gib, Containers: one}, {ID: "b", PID: 10, Start: 7, Bytes: 4 * gib, Containers: two}}
			f, err := Count(st, leases, 0, of)
			if err != nil || f.Shareable != total-tc.foreign || f.Leased != 12*gib {
				t.Errorf("%d shareable, %d leased, %v; want %d foreign", f.Shareable, f.Leased, err, tc.foreign)
			}
			for w, over := range f.over {
				if over != tc.over[w] {
					t.Errorf("%+v holds %d more than it has, want %d", w, over, tc.over[w])
				}
			}
		})
	}
}

func display(s *device.Status) { s.Display = true }

// TestWant: how much each lease is.
func TestWant(t *testing.T) {
	for _, tc := range []struct {
		q                 Ask
		shareable, leased uint64
		each              uint64
		fits              bool
	}{
		{Ask{Bytes: 10, Copies: 2}, 100, 80, 10, true},
		{Ask{Bytes: 10, Copies: 2}, 100, 81, 10, false},
		{Ask{Bytes: 1 << 63, Copies: 2}, 100, 0, 1 << 63, false},
		{Ask{Copies: 3}, 100, 0, 33, true},
		{Ask{Copies: 1}, 100, 10, 100, false},
		{Ask{Copies: 1}, 1000, 10, 990, true}, // a hundredth less
		{Ask{Copies: 1}, 1000, 11, 1000, false},
		{Ask{Share: 0.2, Copies: 5}, 24 * gib, 0, 24 * gib / 5, true},
		{Ask{Share: 0.25, Copies: 1}, 1000, 752, 248, true},
		{Ask{Share: 0.25, Copies: 1}, 1000, 753, 250, false},
		{Ask{Share: 1, Copies: 1}, 0, 0, 0, false},
		{Ask{Share: 1, Copies: 2}, 100, 0, 100, false},
	} {
		each, fits := tc.q.Size(Figures{Shareable: tc.shareable, Leased: tc.leased})
		if each != tc.each || fits != tc.fits {
			t.Errorf("%+v of %d, %d leased: %d, %t; want %d, %t", tc.q, tc.shareable, tc.leased, each, fits, tc.each, tc.fits)
		}
	}
}

// TestDesktopKeepsItsFloorOfWhatCouldEverBeShared: a desktop that uses much now may use
// less later, so only its floor counts against what could ever be shared.
func TestDesktopKeepsItsFloorOfWhatCouldEverBeShared(t *testing.T) {
	st := device.Status{Info: device.Info{Total: 24 * gib, Display: true}, Free: 22 * gib, Used: 2 * gib}
	f, err := Count(st, nil, 0, owned{})
	if err != nil || f.Most != 23*gib || f.Shareable != 21*gib {
		t.Errorf("at most %d could be shared, %d now (%v)", f.Most, f.Shareable, err)
	}
}

// TestMovingGPUIsBelievedInTheEnd: readings that agree for 50 ms are believed, and after 2 s
// those of a GPU that never keeps still. One on which nothing began lately is believed at once.
func TestMovingGPUIsBelievedInTheEnd(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tc := range []struct {
		name   string
		recent bool
		moves  time.Duration // the GPU changes for so long
		want   time.Duration // 0: at the first reading
	}{
		{"nothing recent", false, time.Hour, 0},
		{"still", true, 0, Apart},
		{"moves for a second", true, time.Second, time.Second + Apart},
		{"moves for ever", true, time.Hour, settling},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Settle
			took, shareable := time.Duration(0), uint64(gib)
			for !s.Done(begin.Add(took), tc.recent, shareable) && took < time.Minute {
				if took += Apart / 2; took <= tc.moves {
					shareable++
				}
			}
			if took != tc.want {
				t.Errorf("believed after %v, want %v", took, tc.want)
			}
		})
	}
}

// TestUnseenMemoryCountsOnceForAProcess: of a GPU of 24 GiB a process of another namespace has two
// leases of 4 GiB; what is not seen is within both together. Containers of a lease are seen
// wherever they are, so nothing unseen is theirs.
func TestUnseenMemoryCountsOnceForAProcess(t *testing.T) {
	const total = 24 * gib
	lease := Lease{ID: "a", PID: 20, Start: 8, Bytes: 4 * gib, Namespace: 2}
	inContainers := lease
	inContainers.Containers = []string{digits(1)}
	for _, tc := range []struct {
		name    string
		leases  []Lease
		used    uint64
		foreign uint64
	}{
		{"two leases", []Lease{lease, lease}, 8 * gib, 0},
		{"two leases, and more", []Lease{lease, lease}, 12 * gib, 4 * gib},
		{"three leases, and more", []Lease{lease, lease, lease}, 20 * gib, 8 * gib},
		{"of containers", []Lease{inContainers}, 3 * gib, 3 * gib},
		{"the GPU is full", []Lease{lease}, total, total - 4*gib},
	} {
		st := device.Status{Info: device.Info{Total: total}, Free: total - tc.used, Used: tc.used, Processes: []device.Process{process(1000, tc.used)}}
		f, err := Count(st, tc.leases, 0, owned{})
		if err != nil || f.Shareable != total-tc.foreign {
			t.Errorf("%s: %d foreign, %v, want %d", tc.name, total-f.Shareable, err, tc.foreign)
		}
	}
}
