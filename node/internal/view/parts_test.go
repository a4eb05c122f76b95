package view_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// program is one that holds bytes; below zero they are unknown.
func program(pid int, start uint64, bytes int, l *machine.Lease) machine.Program {
	p := machine.Program{PID: pid, Start: start, Kind: "compute", Lease: l}
	if start > 0 {
		p.Started = new(time.Time)
	}
	if bytes >= 0 {
		n := uint64(bytes)
		p.Used = &n
		if l != nil {
			l.InUse += n
		}
	}
	return p
}

func inTurn(p machine.Program) machine.Program {
	p.Turn = &machine.Turn{State: "in"}
	return p
}

func shown(s view.Shares) string {
	var parts []string
	for _, p := range s.Parts {
		parts = append(parts, fmt.Sprintf("%s %d %d", p.Kind, p.Program, p.Bytes))
	}
	text := strings.Join(parts, ", ")
	for _, x := range []struct {
		n    uint64
		what string
	}{{s.Short, "short"}, {s.Over, "over"}, {uint64(s.Silent), "silent"}} {
		if x.n > 0 {
			text += fmt.Sprintf("; %s %d", x.what, x.n)
		}
	}
	return text
}

func TestShares(t *testing.T) {
	known := func(n uint64) *uint64 { return &n }
	lease := &machine.Lease{Bytes: 50}
	for _, tt := range []struct {
		name     string
		used     *uint64
		programs []machine.Program
		want     string
	}{
		{"an idle device", known(0), nil, "free -1 100"},
		{"used by nobody in the list", known(7), nil, "unlisted -1 7, free -1 93"},
		{"the oldest first, whatever it holds", known(30), []machine.Program{program(1, 9, 20, nil), program(2, 8, 10, nil)}, "program 1 10, program 0 20, free -1 70"},
		{"an unknown process last", known(30), []machine.Program{program(1, 0, 20, nil), program(2, 8, 10, nil)}, "program 1 10, program 0 20, free -1 70"},
		{"two under a lease, beside another", known(40), []machine.Program{program(1, 1, 5, lease), program(2, 2, 30, nil), program(3, 3, 5, lease)},
			"program 0 5, program 2 5, lease 0 40, program 1 30, free -1 20"},
		{"a lease and no memory yet", known(0), []machine.Program{{PID: 1, Lease: &machine.Lease{Bytes: 60}}}, "lease 0 60, free -1 40"},
		{"a pool counts more than the driver reports", known(10), []machine.Program{program(1, 1, 10, &machine.Lease{Bytes: 60, Sum: &machine.PoolUse{Held: 20, Outside: 5}})},
			"program 0 10, lease 0 35, free -1 55"},
		{"a lease that is exceeded has nothing left", known(10), []machine.Program{program(1, 1, 10, &machine.Lease{Bytes: 4})}, "program 0 10, free -1 90"},
		{"leases of which not all can be had", known(80), []machine.Program{program(1, 1, 70, nil), program(2, 2, 10, &machine.Lease{Bytes: 40})},
			"program 0 70, program 1 10, lease 1 20; short 10"},
		{"leases by turns, which take it one after the other", known(70), []machine.Program{
			inTurn(program(1, 1, 60, &machine.Lease{Bytes: 70})), inTurn(program(2, 2, 10, &machine.Lease{Bytes: 70})), program(3, 3, 0, &machine.Lease{Bytes: 40})},
			"program 0 60, lease 0 10, program 1 10, lease 1 20; short 10"},
		{"programs that hold more than is in use", known(30), []machine.Program{program(1, 1, 40, nil)}, "program 0 40, free -1 60; over 10"},
		{"and more than there is", known(30), []machine.Program{program(1, 1, 140, nil)}, "program 0 140; over 110"},
		{"a program whose memory is unknown", known(30), []machine.Program{program(1, 1, -1, nil)}, "unlisted -1 30, free -1 70; silent 1"},
		{"a device whose use is unknown", nil, []machine.Program{program(1, 1, 5, &machine.Lease{Bytes: 60})}, "program 0 5, unknown -1 95"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := machine.Device{Total: 100, Used: tt.used, Programs: tt.programs}
			if got := shown(view.SharesOf(&d)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestSharesAddUp: whatever is reported, the parts are the whole, and a program has no
// more and no less than it holds.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d machine.Device
		d.Total = uint64(rapid.IntRange(0, 100).Draw(t, "total"))
		if rapid.Bool().Draw(t, "known") {
			used := uint64(rapid.IntRange(0, 120).Draw(t, "used"))
			d.Used = &used
		}
		leases := []*machine.Lease{nil, {Bytes: 30}, {Bytes: 90}}
		for i := range rapid.IntRange(0, 5).Draw(t, "programs") {
			d.Programs = append(d.Programs, program(i, uint64(rapid.IntRange(0, 3).Draw(t, "start")), rapid.IntRange(-1, 60).Draw(t, "holds"), rapid.SampledFrom(leases).Draw(t, "lease")))
		}
		s := view.SharesOf(&d)
		var sum uint64
		for _, p := range s.Parts {
			sum += p.Bytes
			if p.Kind == view.PartProgram && p.Bytes != d.Programs[p.Program].Holds() {
				t.Fatalf("program %d has %d", p.Program, p.Bytes)
			}
		}
		if sum != s.Total || s.Total < d.Total {
			t.Fatalf("the parts are %d of %d (device %d): %s", sum, s.Total, d.Total, shown(s))
		}
	})
}

func TestSort(t *testing.T) {
	d := machinetest.Example().Devices[0]
	view.SortPrograms(&d)
	var got []int
	for _, p := range d.Programs {
		got = append(got, p.PID)
	}
	if diff := cmp.Diff([]int{11, 12, 0, 13, 14}, got); diff != "" {
		t.Error(diff)
	}
}
