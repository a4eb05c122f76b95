package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
)

// TestSitesStay: a place that allocates and frees in each step keeps its row and its
// place, and is gone only when it has held nothing for some looks.
func TestSitesStay(t *testing.T) {
	h := history.New(history.Keep)
	look := 0
	see := func(sites ...shownSite) string {
		look++
		s := &State{Time: time.Unix(int64(look), 0), Pools: []shownPool{{Name: "x", Live: sites}}}
		follow(h, s)
		var list []string
		for _, u := range s.Pools[0].Live {
			list = append(list, fmt.Sprintf("%s %d", u.Stack, u.Bytes))
		}
		return strings.Join(list, ", ")
	}
	step, keep := shownSite{Stack: "step", Bytes: 900}, shownSite{Stack: "keep", Bytes: 100}
	for n := range 6 {
		want := "step 900, keep 100"
		got := ""
		if n%2 == 0 {
			got = see(step, keep)
		} else {
			want, got = "step 0, keep 100", see(keep)
		}
		if got != want {
			t.Errorf("look %d: %s, want %s", n, got, want)
		}
	}
	last := ""
	for range history.Lately {
		last = see(keep)
	}
	if last != "keep 100" {
		t.Errorf("at last %s", last)
	}
}

// TestParts: the parts of the bar are those of the machine, with a number for each lease.
func TestParts(t *testing.T) {
	s := stateOf("here", machinetest.Example())
	follow(history.New(history.Keep), s)
	d := s.Devices[0]
	var got []string
	for _, p := range d.Parts {
		who := "-"
		if p.Program >= 0 {
			who = d.Programs[p.Program].Title
		}
		got = append(got, fmt.Sprintf("%s %s lease %d: %.2f GiB", p.Kind, who, p.Lease, float64(p.Bytes)/(1<<30)))
	}
	want := []string{
		"program train.py lease 1: 20.00 GiB", "lease train.py lease 1: 2.00 GiB", "program ray::f?[31m lease 0: 1.00 GiB",
		"lease python3 lease 2: 4.00 GiB", "lease x.py lease 3: 4.00 GiB", "unlisted - lease 0: 79.74 GiB", "free - lease 0: 29.06 GiB",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(d.Remarks) != 5 || !strings.HasPrefix(d.Remarks[0], "the driver does not report the memory of 1 program") {
		t.Errorf("%q", d.Remarks)
	}
	if diff := cmp.Diff([]int{4, 0, 1, 2, 3}, d.Orders[history.ByPID]); diff != "" {
		t.Error(diff)
	}
}

// TestFollowWithoutSnapshot: a state that a program has made itself is followed, too.
func TestFollowWithoutSnapshot(t *testing.T) {
	h := history.New(history.Keep)
	for n := range 40 {
		s := some()
		s.Time = s.Time.Add(time.Duration(n) * time.Second)
		s.Devices[0].Programs[0].Used = uint64(20+n) << 20
		follow(h, s)
		d := s.Devices[0]
		if p := d.Programs[0]; n == 39 && (p.Grows == nil || p.Grows.PerMinute != 60<<20 || p.Number != 0 || p.Key == "") {
			t.Errorf("%+v", p)
		}
		if d.Programs[0].Key == d.Programs[1].Key {
			t.Error("two programs have one key")
		}
		kinds := map[view.PartKind]int{}
		for _, p := range d.Parts {
			kinds[p.Kind]++
		}
		if diff := cmp.Diff(map[view.PartKind]int{view.PartProgram: 3, view.PartLease: 1, view.PartUnlisted: 1, view.PartFree: 1}, kinds); diff != "" {
			t.Error(diff)
		}
	}
}
