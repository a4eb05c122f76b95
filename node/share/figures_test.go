package share

import (
	"context"
	"fmt"
	"strings"
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
			f, err := count(st, []record{{PID: 10, Start: 7, Bytes: 8 * gib}}, tc.reserve, func(pid int) (identity, bool) { return identity{pid: 10, start: 7}, pid == 10 })
			if err != nil || f.shareable != tc.shareable || f.display != tc.display || f.leased != 8*gib || f.left() != less(tc.shareable, 8*gib) {
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
	leases := []record{{PID: 10, Start: 7, Bytes: 3 * gib}, {PID: 12, Start: 8, Bytes: 3 * gib}}
	owner := func(pid int) (identity, bool) {
		return map[int]identity{10: {pid: 10, start: 7}, 12: {pid: 12, start: 8}}[pid], pid != 11
	}
	f, err := count(st, leases, 0, owner)
	if want := uint64(22 * gib); err != nil || f.shareable != want {
		t.Errorf("%d can be shared, want %d (%v)", f.shareable, want, err)
	}
}

// TestMemoryOfContainersIsWithinTheirLeaseAlone: an agent, process 10, has leases of 8 and
// 4 GiB. What the containers of one use beyond it is not within the other.
func TestMemoryOfContainersIsWithinTheirLeaseAlone(t *testing.T) {
	const total = 24 * gib
	one, two := []Container{{ID: digits(1)}}, []Container{{ID: digits(2)}}
	a, b, agent := identity{lease: "a"}, identity{lease: "b"}, identity{pid: 10, start: 7}
	of := map[int]identity{10: agent, 11: agent, 20: a, 21: a, 30: b}
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
			leases := []record{{ID: "a", PID: 10, Start: 7, Bytes: 8 * gib, Containers: one}, {ID: "b", PID: 10, Start: 7, Bytes: 4 * gib, Containers: two}}
			f, err := count(st, leases, 0, func(pid int) (identity, bool) { w, ok := of[pid]; return w, ok })
			if err != nil || f.shareable != total-tc.foreign || f.leased != 12*gib {
				t.Errorf("%d shareable, %d leased, %v; want %d foreign", f.shareable, f.leased, err, tc.foreign)
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
		q                 Request
		shareable, leased uint64
		each              uint64
		fits              bool
	}{
		{Request{Bytes: 10, Copies: 2}, 100, 80, 10, true},
		{Request{Bytes: 10, Copies: 2}, 100, 81, 10, false},
		{Request{Bytes: 1 << 63, Copies: 2}, 100, 0, 1 << 63, false},
		{Request{Copies: 3}, 100, 0, 33, true},
		{Request{Copies: 1}, 100, 10, 100, false},
		{Request{Copies: 1}, 1000, 10, 990, true}, // a hundredth less
		{Request{Copies: 1}, 1000, 11, 1000, false},
		{Request{Share: 0.2, Copies: 5}, 24 * gib, 0, 24 * gib / 5, true},
		{Request{Share: 0.25, Copies: 1}, 1000, 752, 248, true},
		{Request{Share: 0.25, Copies: 1}, 1000, 753, 250, false},
		{Request{Share: 1, Copies: 1}, 0, 0, 0, false},
		{Request{Share: 1, Copies: 2}, 100, 0, 100, false},
	} {
		each, fits := tc.q.want(figures{shareable: tc.shareable, leased: tc.leased})
		if each != tc.each || fits != tc.fits {
			t.Errorf("%+v of %d, %d leased: %d, %t; want %d, %t", tc.q, tc.shareable, tc.leased, each, fits, tc.each, tc.fits)
		}
	}
}

// TestNoRoomText: one line, whatever others call their programs.
func TestNoRoomText(t *testing.T) {
	e := &InsufficientMemoryError{Device: "GPU-1", Want: 12 * gib, Copies: 2, Total: 24 * gib, Shareable: 20 * gib, Free: 4 * gib, Display: gib, Reserve: 2 * gib,
		Ahead: []Entry{{PID: 5, State: Waits, Bytes: gib, Command: []string{"x"}}}, Foreign: []device.Process{{PID: 9, Name: "game", Known: true, Used: gib}, {PID: 8}}, Waited: context.DeadlineExceeded, After: 1010 * time.Millisecond}
	for i := range 10 {
		e.Holders = append(e.Holders, Entry{PID: 100 + i, Bytes: gib, Command: []string{"a\x1b[2J\nb", strings.Repeat("y", 100)}, Over: 2 * gib})
	}
	got := e.Error()
	for _, want := range []string{"requested 12GiB (2 x 6GiB), available 4GiB (of 20GiB shareable, 24GiB total; 1GiB for the display and 2GiB in reserve)",
		`process 100 ("a\x1b[2J\nb yyy`, "and 2 more", "waiting before: process 5 (x) 1GiB", "without a lease: process 9 (game) 1GiB, process 8 of unknown size", "wait for a turn", "gave up after 1s", "1GiB (and holds 2GiB more than it has)"} {
		if !strings.Contains(strings.ReplaceAll(got, " GiB", "GiB"), want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
	if strings.ContainsAny(got, "\n\x1b") || strings.Contains(got, "process 108") {
		t.Errorf("%q", got)
	}
}
