package account

import (
	"testing"

	"gpumem/device"
)

// TestGroupCountsWhatItCanHold: of a GPU of 24 GiB leases share by turns that come to more.
func TestGroupCountsWhatItCanHold(t *testing.T) {
	const total = 24 * gib
	in := func(pid int, gibs, limit uint64) Lease {
		return Lease{PID: pid, Start: 7, Bytes: gibs * gib, Group: "a", Limit: limit * gib}
	}
	alone := func(pid int, gibs uint64) Lease { return Lease{PID: pid, Start: 7, Bytes: gibs * gib} }
	for _, tc := range []struct {
		name      string
		leases    []Lease
		used      []uint64 // of pid 10 and so on, in GiB; the last of one that has no lease
		leased    uint64
		shareable uint64
	}{
		{"two, and more than the GPU", []Lease{in(10, 17, 24), in(11, 17, 24)}, nil, 24, 24},
		{"two, and beside them one", []Lease{in(10, 12, 16), in(11, 12, 16), alone(12, 4)}, nil, 20, 24},
		{"one of them has died", []Lease{in(10, 17, 24)}, nil, 17, 24},
		{"an unknown limit", []Lease{in(10, 17, 0), in(11, 17, 0)}, nil, 34, 24},
		{"two groups", []Lease{in(10, 12, 12), in(11, 12, 12), {PID: 12, Bytes: 4 * gib, Group: "b", Limit: 6 * gib}}, nil, 16, 24},
		{"within the limit", []Lease{in(10, 12, 16), in(11, 12, 16)}, []uint64{12, 4, 0, 0}, 16, 24},
		{"beyond the limit, and within the leases", []Lease{in(10, 12, 16), in(11, 12, 16)}, []uint64{12, 8, 0, 0}, 20, 24},
		{"beyond a lease", []Lease{in(10, 12, 16), in(11, 12, 16)}, []uint64{14, 2, 0, 0}, 16, 22},
		{"beside a foreign one", []Lease{in(10, 12, 16), in(11, 12, 16)}, []uint64{12, 4, 0, 3}, 16, 21},
		{"beside another lease of the process", []Lease{in(10, 12, 16), in(11, 12, 16), alone(10, 4)}, []uint64{16, 4, 0, 0}, 20, 24},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := device.Status{Info: device.Info{Total: total}, Free: total}
			of := owned{}
			for i, n := range tc.used {
				if pid := 10 + i; n > 0 {
					st.Processes = append(st.Processes, process(pid, n*gib))
					st.Used, st.Free = st.Used+n*gib, st.Free-n*gib
				}
			}
			for _, l := range tc.leases {
				of[l.PID] = l.process()
			}
			f, err := Count(st, tc.leases, 0, of)
			if err != nil || f.Leased != tc.leased*gib || f.Shareable != tc.shareable*gib {
				t.Errorf("%d leased of %d GiB, %v; want %d of %d", f.Leased/gib, f.Shareable/gib, err, tc.leased, tc.shareable)
			}
			if leased := Leased(tc.leases); tc.used == nil && leased != f.Leased {
				t.Errorf("%d leased, and %d of an unused GPU", leased, f.Leased)
			}
		})
	}
}

// TestUnseenMemoryOfAGroupIsNotFree: two leases of another pid namespace could hide more than what
// they hold at most. What is hidden counts then.
func TestUnseenMemoryOfAGroupIsNotFree(t *testing.T) {
	st := device.Status{Info: device.Info{Total: 24 * gib}, Free: 4 * gib, Used: 20 * gib, Processes: []device.Process{process(1000, 20*gib)}}
	lease := Lease{PID: 20, Start: 8, Bytes: 12 * gib, Namespace: 2, Group: "a", Limit: 16 * gib}
	other := lease
	other.PID = 21
	f, err := Count(st, []Lease{lease, other}, 0, owned{})
	if left := f.Left(); err != nil || left != 4*gib {
		t.Errorf("%d GiB are left, %v; want 4", left/gib, err)
	}
}

// TestJoining: the size of a lease that joins leases by turns, whether it fits, and the limit of all.
func TestJoining(t *testing.T) {
	group := func(sum, limit, counts uint64) map[string]Group {
		return map[string]Group{"a": {Leases: 2, Sum: sum, Limit: limit, counts: counts}}
	}
	for _, tc := range []struct {
		name              string
		q                 Ask
		shareable, leased uint64
		groups            map[string]Group
		each              uint64
		fits              bool
		limit             uint64
	}{
		{"the first", Ask{Bytes: 70, Copies: 1}, 100, 0, nil, 70, true, 70},
		{"the first, of all", Ask{Copies: 1}, 100, 0, nil, 100, true, 100},
		{"the second", Ask{Bytes: 70, Copies: 1}, 100, 70, group(70, 70, 70), 70, true, 100},
		{"the third", Ask{Bytes: 70, Copies: 1}, 100, 100, group(140, 100, 100), 70, true, 100},
		{"of all", Ask{Copies: 1}, 100, 70, group(70, 70, 70), 100, true, 100},
		{"a half", Ask{Share: .5, Copies: 1}, 100, 70, group(70, 70, 70), 50, true, 100},
		{"more than the GPU", Ask{Bytes: 101, Copies: 1}, 100, 70, group(70, 70, 70), 101, false, 0},
		{"beside others", Ask{Bytes: 70, Copies: 1}, 100, 70 + 30, group(70, 70, 70), 70, true, 70},
		{"beside more", Ask{Bytes: 70, Copies: 1}, 100, 69 + 31, group(69, 69, 69), 70, false, 0},
		{"of all beside others", Ask{Copies: 1}, 100, 40, group(20, 20, 20), 100, false, 0},
		{"one has died and others came", Ask{Bytes: 30, Copies: 1}, 100, 20 + 60, group(20, 20, 20), 30, true, 40},
		{"copies", Ask{Bytes: 60, Copies: 3}, 100, 0, nil, 60, true, 100},
		{"copies of all", Ask{Copies: 2}, 100, 0, nil, 100, true, 100},
		{"small copies", Ask{Bytes: 10, Copies: 3}, 100, 0, nil, 10, true, 30},
		{"they use more than they may", Ask{Bytes: 30, Copies: 1}, 100, 60 + 20, group(70, 50, 60), 30, true, 80},
		{"more than they may, and others have come", Ask{Bytes: 30, Copies: 1}, 40, 60, group(70, 50, 60), 30, true, 50},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.q.Group = "a"
			f := Figures{Most: 100, Shareable: tc.shareable, Leased: tc.leased, Groups: tc.groups}
			each, fits := tc.q.Size(f)
			if each != tc.each || fits != tc.fits {
				t.Errorf("%d, %t; want %d, %t", each, fits, tc.each, tc.fits)
			}
			if limit := tc.q.Limit(f, each); fits && limit != tc.limit {
				t.Errorf("limit %d, want %d", limit, tc.limit)
			}
			if never := tc.q.Never(f, each); never != (each > 100) {
				t.Errorf("never: %t", never)
			}
		})
	}
}
