package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/trace"
)

// stacked is a format for tests, of lines "POOL a ID BYTES [FRAME|FRAME...]", the same with
// s for one that is older than the recording, "POOL r BYTES" for a refused request, and "POOL f ID". A frame is NAME@FILE:LINE or NAME alone.
var stacked = trace.Formats{{
	Name: "stacked", Looks: func([]byte) bool { return true },
	Read: func(in *input.Reader, b *tape.Builder) error {
		slots, pools := map[string]uint32{}, map[string]*tape.PoolBuilder{}
		lines := in.Lines("a recording of a test")
		n := uint64(0)
		for lines.Next() {
			f := strings.Fields(string(lines.Text()))
			if len(f) == 0 {
				continue
			}
			pool := pools[f[0]]
			if pool == nil {
				pool = b.Pool(strings.TrimPrefix(f[0], "-"))
				pools[f[0]] = pool
			}
			if n++; f[1] != "s" {
				b.At(n * 1000)
			}
			var err error
			switch f[1] {
			case "p": // a pool without events
			case "f":
				err = pool.Free(trace.Event{Slot: slots[f[0]+f[2]]})
			default:
				bytes, _ := strconv.ParseUint(f[len(f)-1], 10, 64)
				var site uint32
				if f[1] != "r" {
					bytes, _ = strconv.ParseUint(f[3], 10, 64)
				}
				if len(f) > 4 {
					var frames []uint32
					for one := range strings.SplitSeq(f[4], "|") {
						name, at, _ := strings.Cut(one, "@")
						file, line, _ := strings.Cut(at, ":")
						k, _ := strconv.ParseInt(line, 10, 64)
						frames = append(frames, b.Frame(name, file, k))
					}
					site = b.Stack(frames)
				}
				e := trace.Event{Bytes: bytes, Site: site, Refused: f[1] == "r"}
				var slot uint32
				if f[1] == "s" {
					slot, err = pool.Seed(e)
				} else {
					slot, err = pool.Alloc(e, 0)
				}
				if f[1] != "r" {
					slots[f[0]+f[2]] = slot
				}
			}
			if err != nil {
				return err
			}
		}
		return lines.Err()
	},
}}

func read(t testing.TB, name, events string) *trace.Trace {
	t.Helper()
	tr, err := stacked.Read(context.Background(), strings.NewReader(events), name, trace.Options{KeepPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// compared compares two recordings of the format stacked under the policy platform.
func compared(t testing.TB, before, after *trace.Trace) *Report {
	t.Helper()
	rep, err := Run(t.Context(), before, after, Config{Replay: replaytest.Config(t, "sim:64GiB", "platform")})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// brief is a table in lines: what tests of matching look at.
func brief(t diffTable) string {
	var b strings.Builder
	rows := t.Rows
	if t.Rest != nil {
		rows = append(slices.Clone(rows), t.Rest)
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "%+d %d>%d %s %s\n", r.Difference, r.Before.PeakBytes, r.After.PeakBytes, r.How, r.Where)
	}
	return b.String()
}

// TestMatch: which stacks are one row. A wrong pair would blame an innocent line.
func TestMatch(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{
			"the same stack",
			"- a 1 100 f@m.py:10|main@m.py:50", "- a 1 300 f@m.py:10|main@m.py:50",
			"+200 100>300 stack f (m.py:10)\n",
		},
		{
			"lines have moved, and their order says which is which",
			"- a 1 100 f@m.py:10\n- a 2 1000 f@m.py:20", "- a 1 150 f@m.py:13\n- a 2 1000 f@m.py:23",
			"+50 100>150 stack_without_lines f (m.py:13)\n+0 1000>1000 stack_without_lines f (m.py:23)\n",
		},
		{
			"lines have moved in the outer frame first",
			"- a 1 100 f@m.py:10|g@m.py:90\n- a 2 1000 f@m.py:20|g@m.py:80", "- a 1 150 f@m.py:10|g@m.py:91\n- a 2 1001 f@m.py:20|g@m.py:81",
			"+50 100>150 stack_without_lines f (m.py:10)\n+1 1000>1001 stack_without_lines f (m.py:20)\n",
		},
		{
			"the order of the outer frame goes before that of the inner",
			"- a 1 100 f@m.py:10|g@m.py:90\n- a 2 1000 f@m.py:20|g@m.py:80", "- a 1 150 f@m.py:30|g@m.py:91\n- a 2 1001 f@m.py:25|g@m.py:81",
			"+50 100>150 stack_without_lines f (m.py:30)\n+1 1000>1001 stack_without_lines f (m.py:25)\n",
		},
		{
			"one more line of the same stack",
			"- a 1 100 f@m.py:10", "- a 1 100 f@m.py:11\n- a 2 50 f@m.py:12",
			"+50 0>50 only_after f (m.py:12)\n+0 100>100 stack_without_lines f (m.py:11)\n",
		},
		{
			"one more line, and nothing says which: they are one row",
			"- a 1 100 f@m.py:10\n- a 2 90 f@m.py:10\n- a 3 80 f@m.py:10", "- a 1 7 f@m.py:11\n- a 2 50 f@m.py:12\n- a 3 6 f@m.py:12",
			"-207 270>63 stack_without_lines f (m.py:12)\n",
		},
		{
			"nothing agrees, but there are as many",
			"- a 1 100 f@m.py:10\n- a 2 90 f@m.py:10\n- a 3 1000 f@m.py:20", "- a 1 1 f@m.py:13\n- a 2 2 f@m.py:13\n- a 3 4 f@m.py:13\n- a 4 5 f@m.py:23\n- a 5 6 f@m.py:23\n- a 6 8 f@m.py:23\n- a 7 1 f@m.py:23",
			"-980 1000>20 stack_without_lines f (m.py:23)\n-183 190>7 stack_without_lines f (m.py:13)\n",
		},
		{
			"of two that allocate as often, the one with the same number",
			"- a 1 100 f@m.py:10", "- a 1 7 f@m.py:5\n- a 2 8 f@m.py:10",
			"-92 100>8 stack f (m.py:10)\n+7 0>7 only_after f (m.py:5)\n",
		},
		{
			"two lines have changed places",
			"- a 1 100 f@m.py:10\n- a 2 50 f@m.py:20\n- a 3 51 f@m.py:20", "- a 1 50 f@m.py:11\n- a 2 51 f@m.py:11\n- a 3 100 f@m.py:21",
			"+0 101>101 stack_without_lines f (m.py:11)\n+0 100>100 stack_without_lines f (m.py:21)\n",
		},
		{
			"three lines in reverse order: one is found again, the others are one row",
			"- a 1 100 f@m.py:10\n- a 2 50 f@m.py:20\n- a 3 51 f@m.py:20\n- a 4 1 f@m.py:30\n- a 5 2 f@m.py:30\n- a 6 4 f@m.py:30",
			"- a 4 1 f@m.py:11\n- a 5 2 f@m.py:11\n- a 6 4 f@m.py:11\n- a 2 50 f@m.py:21\n- a 3 51 f@m.py:21\n- a 1 100 f@m.py:31\n- a 7 8 f@m.py:41\n- a 8 8 f@m.py:41\n- a 9 8 f@m.py:41\n- a 0 8 f@m.py:41",
			"+32 201>233 stack_without_lines f (m.py:21)\n+0 7>7 stack_without_lines f (m.py:11)\n",
		},
		{
			"blocks of a snapshot without events, by their mean size",
			"- s 1 100 f@m.py:10\n- s 2 100 f@m.py:10", "- s 1 7 f@m.py:11\n- s 2 100 f@m.py:12\n- s 3 9 f@m.py:13",
			"-100 200>100 stack_without_lines f (m.py:12)\n+9 0>9 only_after f (m.py:13)\n+7 0>7 only_after f (m.py:11)\n",
		},
		{
			"a line above takes the number of the one below",
			"- a 1 1000 f@m.py:10\n- a 2 2000 f@m.py:11", "- a 1 1000 f@m.py:10\n- a 3 5 f@m.py:11\n- a 2 2000 f@m.py:12",
			"+5 0>5 only_after f (m.py:11)\n+0 2000>2000 stack_without_lines f (m.py:12)\n+0 1000>1000 stack f (m.py:10)\n",
		},
		{
			"a line is gone and the next has its number",
			"- a 1 1000 f@m.py:10\n- a 3 5 f@m.py:11\n- a 2 2000 f@m.py:12", "- a 1 1000 f@m.py:10\n- a 2 2000 f@m.py:11",
			"-5 5>0 only_before f (m.py:11)\n+0 2000>2000 stack_without_lines f (m.py:11)\n+0 1000>1000 stack f (m.py:10)\n",
		},
		{
			"all lines are as before: what they allocate does not matter",
			"- a 1 1000 f@m.py:10\n- a 2 2000 f@m.py:11\n- a 3 3000 f@m.py:12", "- a 1 2000 f@m.py:10\n- a 2 3000 f@m.py:11\n- a 3 1 f@m.py:12",
			"-2999 3000>1 stack f (m.py:12)\n+1000 2000>3000 stack f (m.py:11)\n+1000 1000>2000 stack f (m.py:10)\n",
		},
		{
			"another size at each, and one line more: the numbers of allocations tell",
			"- a 1 1 f@m.py:10\n- f 1\n- a 2 10 f@m.py:10\n- a 3 2000 f@m.py:11", "- a 9 7 f@m.py:10\n- a 1 2 f@m.py:11\n- f 1\n- a 2 22 f@m.py:11\n- a 3 4000 f@m.py:12",
			"+2000 2000>4000 stack_without_lines f (m.py:12)\n+12 10>22 stack_without_lines f (m.py:11)\n+7 0>7 only_after f (m.py:10)\n",
		},
		{
			"the same line is the same, and the others are matched without it",
			"- a 1 100 f@m.py:10\n- a 2 50 f@m.py:20", "- a 1 100 f@m.py:10\n- a 2 51 f@m.py:21",
			"+1 50>51 stack_without_lines f (m.py:21)\n+0 100>100 stack f (m.py:10)\n",
		},
		{
			"another folder of the same program",
			"- a 1 100 f@/old/m.py:10", "- a 1 300 f@/new/m.py:10",
			"+200 100>300 stack f (m.py:10)\n",
		},
		{
			"another release of a library around and below the program",
			"- a 1 100 mm@/x/site-packages/l/a.py:1|f@/p/m.py:10|call@/x/site-packages/l/b.py:2|main@/p/m.py:50",
			"- a 1 300 mm2@/x/site-packages/l/c.py:1|f@/p/m.py:11|main@/p/m.py:51",
			"+200 100>300 program_without_lines f (m.py:11)\n",
		},
		{
			"the function was called another way",
			"- a 1 100 f@m.py:10|main@m.py:50", "- a 1 300 f@m.py:10|wrap@m.py:40|main@m.py:50",
			"+200 100>300 function f (m.py:10)\n",
		},
		{
			"the body of a module is known by its file",
			"- a 1 100 <module>@a.py:10|x@a.py:1", "- a 1 300 <module>@b.py:10|y@b.py:2",
			"+300 0>300 only_after <module> (b.py:10)\n-100 100>0 only_before <module> (a.py:10)\n",
		},
		{
			"the compiler numbers operations anew",
			"- a 1 100 fusion.12\n- a 2 7 dot.3", "- a 1 300 fusion.14\n- a 2 7 dot.5",
			"+200 100>300 stack_without_lines fusion.14\n+0 7>7 stack_without_lines dot.5\n",
		},
		{
			"no stacks: by size",
			"- a 1 100\n- a 2 100\n- a 3 7", "- a 1 100\n- a 2 9",
			"-100 200>100 size requests of 100 B\n+9 0>9 only_after requests of 9 B\n-7 7>0 only_before requests of 7 B\n",
		},
		{
			"stacks in one recording only: both by size",
			"- a 1 100 f@m.py:10", "- a 1 100\n- a 2 100",
			"+100 100>200 size requests of 100 B\n",
		},
		{
			"a block without a stack beside others with one",
			"- a 1 100 f@m.py:10\n- a 2 5", "- a 1 100 f@m.py:10\n- a 2 5\n- a 3 5",
			"+5 5>10 size requests of 5 B\n+0 100>100 stack f (m.py:10)\n",
		},
		{
			"live at one peak only, though both allocate there",
			"- a 1 100 f@m.py:10\n- f 1\n- a 2 300 g@m.py:20", "- a 1 300 f@m.py:10\n- f 1\n- a 2 100 g@m.py:20",
			"-300 300>0 stack g (m.py:20)\n+300 0>300 stack f (m.py:10)\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := compared(t, read(t, "a", c.before), read(t, "b", c.after))
			if diff := cmp.Diff(c.want, brief(rep.Pools[0].AtPeak)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			checkSwapped(t, rep.Pools[0], compared(t, read(t, "b", c.after), read(t, "a", c.before)).Pools[0])
		})
	}
}

// TestPools: which pools are compared.
func TestPools(t *testing.T) {
	for _, c := range []struct {
		name, before, after, pool string
		want                      []string // POOL: peaks
		err                       string
	}{
		{name: "by name, in another order", before: "x a 1 1\ny a 1 2", after: "y a 1 5\nx a 1 4", want: []string{"x 1 4", "y 2 5"}},
		{name: "one each, whatever the name", before: "GPU_0_bfc a 1 1", after: "cuda:0 a 1 2", want: []string{"cuda:0 1 2"}},
		{name: "one each that has events", before: "x a 1 1\nhost p", after: "y a 1 2", want: []string{"y 1 2"}},
		{name: "several, of which one recording lacks some", before: "x a 1 1\ny a 1 2", after: "y a 1 5\nz a 1 4", want: []string{"x 1 -", "y 2 5", "z - 4"}},
		{name: "chosen", before: "x a 1 1\ny a 1 2", after: "y a 1 5\nx a 1 4", pool: "y", want: []string{"y 2 5"}},
		{name: "chosen, and the other has one pool", before: "x a 1 1\ny a 1 2", after: "z a 1 5", pool: "y", want: []string{"z 2 5"}},
		{name: "chosen, and the other has several", before: "x a 1 1\ny a 1 2", after: "v a 1 1\nw a 1 2", pool: "y", err: `no pool is named "y"`},
		{name: "chosen, and neither has it", before: "x a 1 1", after: "z a 1 5", pool: "y", err: `no pool is named "y"`},
		{name: "nothing happens in the chosen one", before: "x p\ny a 1 1", after: "x p\ny a 1 1", pool: "x"},
		{name: "a wrong length", before: "x a 1 1", after: "x a 1 9223372036854775808", err: "more than 8 EiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := replaytest.Config(t, "sim:1GiB", "platform")
			cfg.Pool = c.pool
			rep, err := Run(t.Context(), read(t, "a", c.before), read(t, "b", c.after), Config{Replay: cfg})
			if err != nil || c.err != "" {
				if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
				return
			}
			var got []string
			for _, p := range rep.Pools {
				line := p.Name
				for _, s := range []*side{p.Before, p.After} {
					if s == nil {
						line += " -"
					} else {
						line += fmt.Sprint(" ", s.Peak)
					}
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if n := len(rep.Policies); n != len(c.want) {
				t.Errorf("%d results of policies", n)
			}
			text := report.Text{Width: 80}
			rep.WriteText(&text, false) // whatever is missing
		})
	}
}

// TestSummary: what is said first.
func TestSummary(t *testing.T) {
	leak := func(bytes int) string {
		var b strings.Builder
		for n := range 60 {
			fmt.Fprintf(&b, "- a 0 %d x@m.py:1\n- a k%d %d kept@m.py:2\n- f 0\n", 1<<20, n, bytes)
		}
		return b.String()
	}
	for _, c := range []struct {
		name, before, after string
		want                []string
	}{
		{
			"one place grew by more than all, another fell", "- a 1 100\n- a 2 1000", "- a 1 700\n- a 3 900",
			[]string{"The peak grew by 500 B (+45.5 %), from 1.07 KiB to 1.56 KiB.", "The largest part of it is +900 B in requests of 900 B, which is new."},
		},
		{"the same", "- a 1 100 f@m.py:1", "- a 1 100 f@m.py:2", []string{"The peaks do not differ: 100 B, of the same places."}},
		{
			"as much of others", "- a 1 100 f@m.py:1", "- a 1 100 g@m.py:2",
			[]string{"The peaks are equal, 100 B, but other memory is live there.", "The largest difference is +100 B in g (m.py:2), which is new."},
		},
		{"a pool is gone", "x a 1 1\ny a 1 200", "x a 1 1\nz a 1 5", []string{"Pool y is gone; its peak was 200 B."}},
		{"a pool is new", "x a 1 1\ny a 1 2", "x a 1 1\nz a 1 500", []string{"Pool z is new, with a peak of 500 B."}},
		{"no pool differs", "x a 1 1\ny a 1 2", "x a 1 1\ny a 1 2", []string{"The peaks do not differ in any pool."}},
		{
			"a leak has gone", leak(4096), leak(0),
			[]string{
				"The peak fell by 240 KiB (-19 %), from 1.23 MiB to 1 MiB.", "The largest part of it is -240 KiB in kept (m.py:2).",
				"Before: a leak in kept (m.py:2), 4 KiB in each step, 240 KiB at the end.", "After: no leak.",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := compared(t, read(t, "a", c.before), read(t, "b", c.after))
			if diff := cmp.Diff(c.want, rep.Summary); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestOneInstant: recordings in which nothing is freed have one table.
func TestOneInstant(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		want                bool
	}{
		{"a profile", "- a 1 1", "- a 1 2", true},
		{"a snapshot", "- s 1 1", "- s 1 1\n- s 2 2", true},
		{"a run", "- a 1 1\n- f 1", "- a 1 2", false},
	} {
		rep := compared(t, read(t, "a", c.before), read(t, "b", c.after))
		text := report.Text{Width: 80}
		rep.WriteText(&text, false)
		if got := !strings.Contains(text.String(), "\nLive at the end\n"); got != c.want {
			t.Errorf("%s: one table %v in\n%s", c.name, got, text.String())
		}
	}
}

// TestSide: the peak with a request that was refused there, and its event and time.
func TestSide(t *testing.T) {
	rep := compared(t, read(t, "a", "- a 1 100\n- a 2 5\n- f 2\n- a 3 50\n- f 1"), read(t, "b", "- a 1 100\n- r 200\n- a 2 7"))
	p := rep.Pools[0]
	at := []uint64{3000, 1000}
	want := &poolReport{
		Before: &side{Events: 5, Allocs: 3, Peak: 150, PeakBlocks: 2, PeakEvent: 4, PeakTime: &at[0], End: 50, EndBlocks: 1},
		After:  &side{Events: 3, Allocs: 3, Refused: 1, Peak: 300, PeakBlocks: 2, PeakEvent: 2, PeakTime: &at[1], PeakRefused: 200, End: 107, EndBlocks: 2},
	}
	p.Before.curve, p.After.curve = curve{}, curve{}
	if diff := cmp.Diff([]*side{want.Before, want.After}, []*side{p.Before, p.After}, cmp.AllowUnexported(side{}, curve{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p.PeakDifference != 150 {
		t.Errorf("difference %d", p.PeakDifference)
	}
}

// TestSeeds: blocks older than the recording are live from the start and are not of its
// events.
func TestSeeds(t *testing.T) {
	rep := compared(t, read(t, "a", "- s 7 700\n- s 3 300\n- f 7\n- a 1 50"), read(t, "b", "- s 7 700\n- s 4 40"))
	p := rep.Pools[0]
	for _, c := range []struct {
		name  string
		s     *side
		want  [5]uint64 // peak, its event for people, allocations, recorded events, end
		curve map[int]uint64
	}{
		{"some events", p.Before, [5]uint64{1000, 0, 1, 2, 350}, map[int]uint64{0: 1000, 511: 300, 512: 350, 1023: 350}},
		{"nothing else", p.After, [5]uint64{740, 0, 0, 0, 740}, map[int]uint64{0: 740, 1023: 740}},
	} {
		if got := [5]uint64{c.s.Peak, c.s.number(c.s.PeakEvent), c.s.Allocs, c.s.recorded(), c.s.End}; got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		for k, want := range c.curve {
			if got := c.s.curve.most[k]; got != want {
				t.Errorf("%s, stretch %d: %d, want %d", c.name, k, got, want)
			}
		}
	}
	if got, want := brief(p.Allocs), "-1 0>0 only_before requests of 50 B\n"; got != want {
		t.Errorf("allocations %q, want %q", got, want)
	}
	newPageSide(p.After)
	if e := overEvents(p); len(e.At) != 3 || e.After[0] != nil {
		t.Errorf("%+v", e)
	}
}

// TestCurve: no peak is lost in the stretches of a long run, and a short one stands.
func TestCurve(t *testing.T) {
	var long strings.Builder
	for n := range 5000 {
		fmt.Fprintf(&long, "- a 1 %d\n- f 1\n", 10+n%7)
	}
	fmt.Fprintln(&long, "- r 500")
	for n := range 900 {
		fmt.Fprintf(&long, "- a 1 %d\n- f 1\n", 20+n%7)
	}
	for _, c := range []struct {
		name, events string
		want         map[int][2]uint64 // stretch: least, most
	}{
		{"long", long.String(), map[int][2]uint64{0: {0, 15}, stretch(10001, 11801): {0, 500}, curvePoints - 1: {0, 26}}},
		{"four events", "- a 1 10\n- a 2 5\n- f 1\n- f 2", map[int][2]uint64{0: {10, 10}, 255: {10, 10}, 256: {15, 15}, 511: {15, 15}, 512: {5, 5}, 768: {0, 0}, 1023: {0, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := read(t, "a", c.events)
			g, err := newRecording(tr, false).gather(t.Context(), tr.Pools[0], false, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, want := range c.want {
				if got := [2]uint64{g.side.curve.least[k], g.side.curve.most[k]}; got != want {
					t.Errorf("stretch %d: %d, want %d", k, got, want)
				}
			}
			if most := slices.Max(g.side.curve.most); most != tr.PeakLive {
				t.Errorf("at most %d, want %d", most, tr.PeakLive)
			}
		})
	}
}

// A model is a recording of random events with what is live at its peak and at its end, by
// stack or size, counted plainly.
type model struct {
	text      string
	peak, end map[string][2]uint64 // bytes, blocks
	allocs    map[string]uint64
	most      uint64
}

func randomRecording(t *rapid.T, label string, lines int) *model {
	m := &model{allocs: map[string]uint64{}}
	type block struct {
		key   string
		bytes uint64
	}
	live := map[int]block{}
	var b strings.Builder
	sums := func() map[string][2]uint64 {
		all := map[string][2]uint64{}
		for _, x := range live {
			s := all[x.key]
			all[x.key] = [2]uint64{s[0] + x.bytes, s[1] + 1}
		}
		return all
	}
	total := func() (n uint64) {
		for _, x := range live {
			n += x.bytes
		}
		return n
	}
	see := func() {
		if n := total(); n > m.most {
			m.most, m.peak = n, sums()
		}
	}
	for id := range rapid.IntRange(1, 60).Draw(t, label) {
		if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
			ids := slices.Sorted(maps.Keys(live))
			one := rapid.SampledFrom(ids).Draw(t, "which")
			delete(live, one)
			fmt.Fprintf(&b, "- f %d\n", one)
			continue
		}
		bytes := rapid.SampledFrom([]uint64{0, 1, 256, 1000, 1 << 20, 1<<20 + 1}).Draw(t, "bytes")
		if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
			m.allocs[fmt.Sprint(bytes)]++
			live[-1] = block{fmt.Sprint(bytes), bytes}
			see()
			delete(live, -1)
			fmt.Fprintf(&b, "- r %d\n", bytes)
			continue
		}
		stack := ""
		if rapid.IntRange(0, 4).Draw(t, "stack") > 0 {
			for i := range rapid.IntRange(1, 3).Draw(t, "depth") {
				if i > 0 {
					stack += "|"
				}
				stack += fmt.Sprintf("%s@%s.py:%d", rapid.SampledFrom([]string{"f", "g", "<module>"}).Draw(t, "name"), rapid.SampledFrom([]string{"m", "n"}).Draw(t, "file"), rapid.IntRange(lines, lines+3).Draw(t, "line"))
			}
		}
		key := stack
		if stack == "" {
			key = fmt.Sprint(bytes)
		}
		m.allocs[key]++
		live[id] = block{key, bytes}
		see()
		fmt.Fprintf(&b, "- a %d %d %s\n", id, bytes, stack)
	}
	m.end, m.text = sums(), b.String()
	return m
}

// sumOf sums a map's bytes and blocks.
func sumOf(m map[string][2]uint64) (s [2]uint64) {
	for _, v := range m {
		s = [2]uint64{s[0] + v[0], s[1] + v[1]}
	}
	return s
}

// asText is a row without what depends on the order of the recordings.
func asText(r *row, before, after rowPart, difference int64, how matching) string {
	before.Stack, after.Stack = "", ""
	return fmt.Sprintf("%s %d %v %v %d", how, difference, before, after, r.Places)
}

// checkSwapped checks that the recordings the other way round differ by the opposite.
func checkSwapped(t interface{ Errorf(string, ...any) }, p, swapped *poolReport) {
	other := map[matching]matching{OnlyBefore: OnlyAfter, OnlyAfter: OnlyBefore}
	for k, tables := range [][2]diffTable{{p.AtPeak, swapped.AtPeak}, {p.AtEnd, swapped.AtEnd}, {p.Allocs, swapped.Allocs}} {
		var there, back []string
		for _, row := range tables[0].Rows {
			there = append(there, asText(row, row.Before, row.After, row.Difference, row.How))
		}
		for _, row := range tables[1].Rows {
			how := row.How
			if o, ok := other[how]; ok {
				how = o
			}
			back = append(back, asText(row, row.After, row.Before, -row.Difference, how))
		}
		if !slices.Equal(there, back) {
			t.Errorf("table %d swapped:\n%s", k, cmp.Diff(there, back))
		}
	}
}

// TestProperties: tables add up to what a slow model counts, however random the recordings;
// swapped recordings negate everything, and a recording does not differ from itself.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a := randomRecording(r, "before", 10)
		b := randomRecording(r, "after", rapid.IntRange(9, 14).Draw(r, "moved"))
		first, second := read(t, "a", a.text), read(t, "b", b.text)
		rep := compared(t, first, second)
		if len(rep.Pools) != 1 {
			r.Fatalf("%d pools", len(rep.Pools))
		}
		p := rep.Pools[0]
		if want := int64(b.most) - int64(a.most); p.PeakDifference != want || p.Before.Peak != a.most || p.After.Peak != b.most {
			r.Fatalf("peaks %d and %d, difference %d; want %d, %d, %d", p.Before.Peak, p.After.Peak, p.PeakDifference, a.most, b.most, want)
		}
		check := func(name string, table diffTable, of func(*rowPart) [2]uint64, before, after [2]uint64) {
			for _, n := range []int{len(table.Rows), 1, 0} {
				var difference int64
				var got [2][2]uint64
				cut := table.cut(n)
				rows := slices.Clone(cut.Rows)
				if cut.Rest != nil {
					rows = append(rows, cut.Rest)
				}
				for _, row := range rows {
					difference += row.Difference
					x, y := of(&row.Before), of(&row.After)
					got[0], got[1] = [2]uint64{got[0][0] + x[0], got[0][1] + x[1]}, [2]uint64{got[1][0] + y[0], got[1][1] + y[1]}
				}
				if want := int64(after[0]) - int64(before[0]); difference != want || got != [2][2]uint64{before, after} {
					r.Fatalf("%s, %d rows: %d and %d, difference %d; want %d, %d, %d", name, n, got[0], got[1], difference, before, after, want)
				}
			}
		}
		peak := func(p *rowPart) [2]uint64 { return [2]uint64{p.PeakBytes, p.PeakBlocks} }
		check("peak", p.AtPeak, peak, sumOf(a.peak), sumOf(b.peak))
		check("end", p.AtEnd, func(p *rowPart) [2]uint64 { return [2]uint64{p.EndBytes, p.EndBlocks} }, sumOf(a.end), sumOf(b.end))
		var allocs [2]uint64
		for i, m := range []*model{a, b} {
			for _, n := range m.allocs {
				allocs[i] += n
			}
		}
		check("allocations", p.Allocs, func(p *rowPart) [2]uint64 { return [2]uint64{p.Allocs, 0} }, [2]uint64{allocs[0]}, [2]uint64{allocs[1]})
		var matched [2]uint64
		for _, m := range p.Matched {
			matched = [2]uint64{matched[0] + m.Before, matched[1] + m.After}
		}
		if matched != [2]uint64{a.most, b.most} {
			r.Fatalf("matched %d of %d and %d", matched, a.most, b.most)
		}
		// A stack that is the same in both has the model's bytes on both sides.
		if p.Before.Stacks && p.After.Stacks {
			for _, row := range p.AtPeak.Rows {
				if row.How != ByStack {
					continue
				}
				frames := strings.Split(row.After.Stack, "\n")
				for i, f := range frames {
					name, at, _ := strings.Cut(f, " (")
					frames[i] = name + "@" + strings.TrimSuffix(at, ")")
				}
				key := strings.Join(frames, "|")
				if got, want := [2][2]uint64{peak(&row.Before), peak(&row.After)}, [2][2]uint64{a.peak[key], b.peak[key]}; got != want {
					r.Fatalf("%s: %d, want %d", key, got, want)
				}
			}
		}
		checkSwapped(r, p, compared(t, second, first).Pools[0])
		same := compared(t, first, read(t, "again", a.text)).Pools[0]
		for _, table := range []diffTable{same.AtPeak, same.AtEnd, same.Allocs} {
			for _, row := range table.Rows {
				if row.Difference != 0 || row.How != ByStack && row.How != BySize {
					r.Fatalf("the recording differs from itself: %+v", row)
				}
			}
		}
	})
}

// TestRunFails: a comparison ends with its context, and says which recording cannot be read.
func TestRunFails(t *testing.T) {
	a, b := read(t, "a", "- a 1 1"), read(t, "b", "- a 1 2")
	cfg := Config{Replay: replaytest.Config(t, "sim:1GiB", "platform")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, a, b, cfg); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	gone, err := stacked.Read(t.Context(), strings.NewReader("- a 1 2"), "gone", trace.Options{SpoolLimit: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil { // with its temporary file
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), a, gone, cfg); err == nil || !strings.HasPrefix(err.Error(), "gone: ") {
		t.Error(err)
	}
	if _, err := Run(t.Context(), a, a, Config{}); err == nil {
		t.Error("no policy is not an error")
	}
}

// TestManySizes: a recording with a new size in every line is compared in bounded memory,
// and says what it does not count.
func TestManySizes(t *testing.T) {
	var b bytes.Buffer
	for n := range maxSizes + 10 {
		fmt.Fprintf(&b, "a %d %d\n", n, n+1)
		if n > 5 {
			fmt.Fprintf(&b, "f %d\n", n)
		}
	}
	many, few := replaytest.Text(t, b.String()), replaytest.Text(t, "a 1 1\n")
	rep := compared(t, few, many)
	p := rep.Pools[0]
	if !p.Uncounted || len(p.Allocs.Rows) != 0 || p.PeakDifference != int64(many.PeakLive)-1 || len(p.AtPeak.Rows) != 7 {
		t.Errorf("%+v", p)
	}
	text := report.Text{Width: 80}
	rep.WriteText(&text, false)
	if want := "there are more than 262,144 sizes"; !strings.Contains(text.String(), want) {
		t.Errorf("no %q in\n%s", want, text.String())
	}
}

// TestManyStacks: of more stacks than are aligned, those of the same lines are matched and the
// others are one row.
func TestManyStacks(t *testing.T) {
	recording := func(from int) string {
		var b strings.Builder
		for n := range maxAlign {
			fmt.Fprintf(&b, "- a %d %d f@m.py:%d\n", n, n+1, from+n)
		}
		return b.String()
	}
	p := compared(t, read(t, "a", recording(10)), read(t, "b", recording(12))).Pools[0]
	// The same lines in another folder are the same stack.
	twice := compared(t, read(t, "a", recording(10)+"- a x 5 f@/x/m.py:20\n"), read(t, "b", recording(12)+"- a x 5 f@/x/m.py:20\n")).Pools[0]
	sum := &row{}
	for _, r := range twice.AtPeak.Rows {
		sum.add(r)
	}
	if sum.Before.PeakBytes != twice.Before.Peak || sum.After.PeakBytes != twice.After.Peak {
		t.Errorf("rows add up to %d and %d, want %d and %d", sum.Before.PeakBytes, sum.After.PeakBytes, twice.Before.Peak, twice.After.Peak)
	}
	if n := len(p.AtPeak.Rows); n != maxAlign-2+1 {
		t.Fatalf("%d rows", n)
	}
	same, moved := 0, 0
	for _, r := range p.AtPeak.Rows {
		switch {
		case r.How == ByStack && r.Difference == -2:
			same++
		case r.How == ByLines && r.Before.Stacks == 2 && r.After.Stacks == 2 && r.Before.PeakBytes == 3 && r.After.PeakBytes == 2*maxAlign-1:
			moved++
		}
	}
	if same != maxAlign-2 || moved != 1 {
		t.Errorf("%d and %d", same, moved)
	}
}

// TestManyRows: of more places than a table has rows the smallest are one row, and the sum
// stays.
func TestManyRows(t *testing.T) {
	var b bytes.Buffer
	for n := range maxRows + 10 {
		fmt.Fprintf(&b, "a %d %d\n", n, n+1)
	}
	p := compared(t, replaytest.Text(t, "a 1 1\n"), replaytest.Text(t, b.String())).Pools[0]
	if len(p.AtPeak.Rows) != maxRows || p.AtPeak.Rest == nil || p.AtPeak.Rest.Where != "10 other places" || p.AtPeak.Rest.Difference != 54 { // 2 to 10
		t.Errorf("%d rows, rest %+v", len(p.AtPeak.Rows), p.AtPeak.Rest)
	}
	// Whoever cuts further has all others in one row.
	if rest := p.AtPeak.differ(5).Rest; rest.Places != maxRows+5 || rest.Before.PeakBytes != 1 || rest.Where != "2,053 other places" {
		t.Errorf("%+v", rest)
	}
	d := &pageData{texts: report.Texts{Most: pageTexts}}
	if page := d.table(p.AtPeak, peakOf); len(page.Rows) != pageRows+1 || page.Sum.Difference != p.PeakDifference {
		t.Errorf("%d rows on the page, %+v", len(page.Rows), page.Sum)
	}
}
