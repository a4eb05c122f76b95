package history_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/node/internal/history"
	"gpumem/node/machine"
)

var start = time.Date(2026, 9, 21, 12, 0, 0, 0, time.UTC)

const mib = 1 << 20

// filled returns a history with a look each second of what f returns in MiB; below zero
// it is unknown.
func filled(looks int, f func(second int) int) *history.History {
	h := history.New(history.Keep)
	for n := range looks {
		q := map[string]uint64{}
		if v := f(n); v >= 0 {
			q["x"] = uint64(v) * mib
		}
		h.Add(start.Add(time.Duration(n)*time.Second), q)
	}
	return h
}

func TestGrows(t *testing.T) {
	for _, tt := range []struct {
		name  string
		looks int
		f     func(second int) int
		want  string
	}{
		{"too few values", 29, func(n int) int { return n }, "nil"},
		{"nothing", 100, func(int) int { return -1 }, "nil"},
		{"a MiB each second", 100, func(n int) int { return n }, "90 MiB in 90 s, 60 MiB/min"},
		{"just enough values", 30, func(n int) int { return n }, "27 MiB in 27 s, 60 MiB/min"},
		{"constant", 100, func(int) int { return 5 }, "0 MiB in 90 s, 0 MiB/min"},
		{"falls", 100, func(n int) int { return 100 - n }, "0 MiB in 90 s, 0 MiB/min"},
		{"comes and goes in each step", 600, func(n int) int { return 100 + n%7*50 }, "0 MiB in 540 s, 0 MiB/min"},
		{"comes and goes, and a MiB of each step stays", 600, func(n int) int { return 100 + n%7*50 + n/7 }, "78 MiB in 540 s, 8 MiB/min"},
		{"rises once at the start", 100, func(n int) int { return min(n, 20) }, "0 MiB in 90 s, 0 MiB/min"},
		{"a step is missing", 100, func(n int) int { return n / 10 * 10 * min(1, max(0, n-19)) }, "90 MiB in 90 s, 60 MiB/min"},
		{"two are missing", 100, func(n int) int { return n / 10 * 10 * min(1, max(0, n-29)) }, "0 MiB in 90 s, 0 MiB/min"},
		{"no look for a while", 100, func(n int) int {
			if n > 30 && n < 60 {
				return -1
			}
			return n
		}, "nil"},
		{"only what is kept counts", 1000, func(n int) int { return max(n, 500) }, "440 MiB in 540 s, 48 MiB/min"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := "nil"
			if g := filled(tt.looks, tt.f).Grows("x"); g != nil {
				got = fmt.Sprintf("%d MiB in %.0f s, %d MiB/min", g.Bytes/mib, g.Seconds, g.PerMinute/mib)
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestHistoryAgainstAList: a history is the last looks of a list, whatever comes and goes.
func TestHistoryAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.IntRange(1, 8).Draw(t, "keep")
		h := history.New(keep)
		var all []map[string]uint64
		for range rapid.IntRange(0, 20).Draw(t, "looks") {
			q := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.Uint64Max(9)).Draw(t, "look")
			at := start.Add(time.Duration(len(all)) * time.Second)
			if !h.Add(at, q) || h.Add(at, map[string]uint64{"a": 99}) { // a second time counts for nothing
				t.Fatal("a look is added once")
			}
			all = append(all, q)
			since := rapid.IntRange(0, len(all)).Draw(t, "since")
			first := max(since, len(all)-keep)
			c := h.Since(since)
			if h.Looks() != len(all) || len(c.Times) != len(all)-first {
				t.Fatalf("%d looks and %d since %d, of %d", h.Looks(), len(c.Times), since, len(all))
			}
			for _, name := range []string{"a", "b", "c"} {
				var peak uint64
				for k, q := range all[first:] {
					want, known := q[name]
					var got *uint64
					if v := c.Values[name]; v != nil {
						got = v[k]
					}
					if (got != nil) != known || known && *got != want {
						t.Fatalf("%s in look %d: %v, want %d (%t)", name, first+k, got, want, known)
					}
				}
				for _, q := range all[max(0, len(all)-min(3, keep)):] {
					peak = max(peak, q[name])
				}
				if got := h.Peak(name, 3); got != peak {
					t.Fatalf("peak %d, want %d", got, peak)
				}
			}
		}
	})
}

// device has programs that hold MiB, by process.
func device(holds ...int) *machine.Device {
	d := &machine.Device{Spec: "cuda:0", Total: 1000 * mib}
	for i, n := range holds {
		if n < 0 {
			continue
		}
		bytes := uint64(n) * mib
		d.Programs = append(d.Programs, machine.Program{PID: 100 - i, Start: uint64(i + 1), Started: new(time.Time), Kind: "compute", Used: &bytes, Command: []string{string(rune('z' - i))}})
	}
	return d
}

func pids(h *history.History, d *machine.Device, by history.By) string {
	var list []string
	for _, i := range h.Order(d, by) {
		list = append(list, fmt.Sprint(d.Programs[i].PID))
	}
	return strings.Join(list, " ")
}

// TestOrderKeepsPlaces: by memory a row moves only if it is clearly in the wrong place,
// and what comes and goes in each step is no reason.
func TestOrderKeepsPlaces(t *testing.T) {
	h := history.New(history.Keep)
	for n, look := range []struct {
		why   string
		holds []int
		want  string
	}{
		{"sorted at first", []int{100, 200, 50}, "99 100 98"},
		{"a little more is no reason", []int{205, 200, 50}, "99 100 98"},
		{"clearly more is one", []int{230, 200, 50}, "100 99 98"},
		{"freed for a moment", []int{10, 200, 50}, "100 99 98"},
		{"a new one, and little, is last", []int{10, 200, 50, 49}, "100 99 98 97"},
		{"one ends, the others stay", []int{10, -1, 50, 49}, "100 98 97"},
	} {
		d := device(look.holds...)
		s := &machine.Snapshot{Time: start.Add(time.Duration(n) * time.Second), Devices: []machine.Device{*d}}
		h.See(s, nil)
		for range 2 { // to ask changes nothing
			if got := pids(h, d, history.ByMemory); got != look.want {
				t.Errorf("%s: %s, want %s", look.why, got, look.want)
			}
		}
	}
	d := device(10, 200, 50)
	for by, want := range map[history.By]string{history.ByPID: "98 99 100", history.ByAge: "100 99 98", history.ByName: "98 99 100", history.ByGrowth: "100 99 98"} {
		if got := pids(h, d, by); got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
}

func TestOrderByGrowth(t *testing.T) {
	h := history.New(history.Keep)
	var d *machine.Device
	for n := range 60 {
		d = device(500, n, 2*n)
		h.See(&machine.Snapshot{Time: start.Add(time.Duration(n) * time.Second), Devices: []machine.Device{*d}}, nil)
	}
	if got := pids(h, d, history.ByGrowth); got != "98 99 100" {
		t.Error(got)
	}
}

// TestNumbersStay: a number stays with its program, and is another's only when nothing
// of the program is kept.
func TestNumbersStay(t *testing.T) {
	h := history.New(3)
	look := 0
	see := func(holds ...int) string {
		d := device(holds...)
		slices.Reverse(d.Programs) // the order in the snapshot is no matter
		h.See(&machine.Snapshot{Time: start.Add(time.Duration(look) * time.Second), Devices: []machine.Device{*d}}, nil)
		look++
		var list []string
		for i, name := range history.Programs(d) {
			list = append(list, fmt.Sprintf("%d:%d", d.Programs[i].PID, h.Number(d, name)))
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	for _, tt := range []struct{ got, want string }{
		{see(-1, 5), "99:0"},
		{see(9, 5), "100:1 99:0"},
		{see(9, -1, 3), "100:1 98:2"}, // 99 is still in the history
		{see(9, -1, 3), "100:1 98:2"},
		{see(9, -1, 3), "100:1 98:2"},
		{see(9, -1, 3, 7), "100:1 97:0 98:2"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s, want %s", tt.got, tt.want)
		}
	}
}

// TestProgramsNames: two processes never have one name, also if they have one number.
func TestProgramsNames(t *testing.T) {
	d := &machine.Device{Spec: "cuda:0", Programs: []machine.Program{{PID: 1, Start: 5}, {PID: 1, Start: 6}, {PID: 1}, {}, {User: "ann"}, {}}}
	names := history.Programs(d)
	slices.Sort(names)
	if len(slices.Compact(names)) != len(d.Programs) {
		t.Errorf("%q", names)
	}
}

func Example() {
	h := history.New(history.Keep)
	for second := range 120 {
		used := uint64(4<<30 + second*mib) // a MiB each second
		h.See(&machine.Snapshot{Time: start.Add(time.Duration(second) * time.Second), Devices: []machine.Device{{Spec: "cuda:0", Used: &used}}}, nil)
	}
	g := h.Grows("cuda:0")
	fmt.Println(g.PerMinute/mib, "MiB per minute")
	// Output: 60 MiB per minute
}
