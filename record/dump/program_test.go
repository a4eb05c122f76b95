package dump_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gpumem/record/dump"
)

// programText is a report in the layout of 2022 on, with n buffers.
func programText(n int) string {
	var b strings.Builder
	b.WriteString(`BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    2.50GiB
              constant allocation:       512B
        maybe_live_out allocation:    1.25GiB
     preallocated temp allocation:   10.00GiB
  preallocated temp fragmentation:   64.00MiB (0.62%)
                 total allocation:   13.75GiB
              total fragmentation:  128.00MiB (0.91%)
Peak buffers:`)
	for i := range n {
		fmt.Fprintf(&b, "\n\tBuffer %d:\n\t\tSize: %d.00MiB\n", i+1, 900-i)
		if i%3 == 2 {
			fmt.Fprintf(&b, "\t\tEntry Parameter Subshape: bf16[%d,77]\n", 1000+i)
		} else {
			fmt.Fprintf(&b, "\t\tOperator: op_name=\"jit(step)/jit(main)/layer_%d/dot_general[dimension_numbers=(((1,), (0,)), ((), ()))]\" source_file=\"/home/u/model.py\" source_line=%d\n\t\tXLA Label: fusion\n\t\tShape: f32[48,%d]\n", i, 100+i, i+7)
		}
		b.WriteString("\t\t==========================\n")
	}
	return b.String()
}

func readProgram(t testing.TB, text string) *dump.Program {
	t.Helper()
	_, p, err := dump.ReadLog(strings.NewReader(text))
	if err != nil || p == nil {
		t.Fatal(p, err)
	}
	return p
}

const mib = 1 << 20

// wanted is what programText(2) says.
var wanted = dump.Program{
	Parameter: 2560 * mib, Constant: 512, LiveOut: 1280 * mib, Temp: 10240 * mib, TempFragmentation: 64 * mib, Total: 14080 * mib, Fragmentation: 128 * mib,
	Peak: []dump.Buffer{
		{Bytes: 900 * mib, Operator: `op_name="jit(step)/jit(main)/layer_0/dot_general[dimension_numbers=(((1,), (0,)), ((), ()))]" source_file="/home/u/model.py" source_line=100`, Label: "fusion", Shape: "f32[48,7]"},
		{Bytes: 899 * mib, Operator: `op_name="jit(step)/jit(main)/layer_1/dot_general[dimension_numbers=(((1,), (0,)), ((), ()))]" source_file="/home/u/model.py" source_line=101`, Label: "fusion", Shape: "f32[48,8]"},
	},
	Line: 1, Reports: 1, Complete: true,
}

func each(text, prefix string) string {
	return prefix + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+prefix) + "\n"
}

func TestPrograms(t *testing.T) {
	text := programText(2)
	older := regexp.MustCompile(`(?m)^.*fragmentation:.*\n`).ReplaceAllString(text, "")
	noFragments := func(p *dump.Program) { p.TempFragmentation, p.Fragmentation = 0, 0 }
	oneLine := strings.ReplaceAll(strings.ReplaceAll(text, "\n", `\n`), `"`, `\"`)
	// Two writers, line by line: both print all, or the second no more than
	// its first buffer's size.
	var mixed, cut strings.Builder
	for i, l := range strings.SplitAfter(text, "\n") {
		fmt.Fprintf(&mixed, "[rank0]: %s[rank1]: %s", l, l)
		fmt.Fprintf(&cut, "[rank0]: %s", l)
		if i < 12 {
			fmt.Fprintf(&cut, "[rank1]: %s", l)
		}
	}
	for _, tc := range []struct {
		name, text string
		change     func(*dump.Program)
	}{
		{"plain", text, nil},
		{"up to 2021", older, noFragments},
		{"blanks for tabs", strings.ReplaceAll(text, "\t", "        "), nil},
		{"crlf", strings.ReplaceAll(text, "\n", "\r\n"), nil},
		{"behind an error", "E0101 01:02:03.456789 12 client.cc:9] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\n" + text, func(p *dump.Program) { p.Line = 2 }},
		{"rank", each(text, "[rank3]: "), nil},
		{"container", each(text, "2031-02-03T04:05:06.789Z "), nil},
		{"compose", each(text, "worker-1  | "), nil},
		{"quoted", each(text, "> "), nil},
		{"one line", `{"log":"` + oneLine + `","stream":"stderr"}`, nil},
		{"docker", strings.ReplaceAll(strings.ReplaceAll(each(strings.ReplaceAll(text, `"`, `\"`), `{"log":"`), "\n", `\n","stream":"stderr"}`+"\n"), "\t", `\u0009`), nil},
		{"two", programText(1) + text, func(p *dump.Program) { p.Line, p.Reports = 17, 2 }},
		{"the second is cut off", text + programText(2)[:500], func(p *dump.Program) { p.Reports = 2 }},
		{"other lines in it", strings.ReplaceAll(text, "\t\tShape:", "Batch Size: 7\nstep 12, Shape: 9\n\t\tShape:"), nil},
		{"mixed", mixed.String(), func(p *dump.Program) { p.Line, p.Reports = 2, 2 }},
		{"mixed, the second is cut off", cut.String(), func(p *dump.Program) { p.Reports = 2 }},
		{"kubernetes", each(text, "2031-02-03T04:05:06.789012Z stderr F "), nil},
		{"no indents", regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(text, ""), nil},
		{"colour", strings.ReplaceAll(each(text, "\x1b[1;31m"), "\n", "\x1b[0m\x1b[K\n"), nil},
		{"a total behind it", text + "memory\n total allocation: 3.00GiB\n", nil},
		{"no head", strings.SplitAfterN(text, "\n", 3)[2], nil},
		{"a heading alone before", "BufferAssignment OOM Debugging.\nTraceback:\n" + text, func(p *dump.Program) { p.Line = 3 }},
		{"cut off in a buffer", text[:strings.LastIndex(text, "\t\tShape")], func(p *dump.Program) { p.Complete, p.Peak[1].Shape = false, "" }},
		{"cut off at a buffer", text[:strings.LastIndex(text, "\t\tSize")], func(p *dump.Program) { p.Complete, p.Peak = false, p.Peak[:1] }},
		{"statistics alone", text[:strings.Index(text, "Peak")], func(p *dump.Program) { p.Complete, p.Peak = false, nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := wanted
			want.Peak = append([]dump.Buffer{}, wanted.Peak...)
			if tc.change != nil {
				tc.change(&want)
			}
			got := readProgram(t, tc.text)
			if d := cmp.Diff(&want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(dump.Program{})); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestNoProgram(t *testing.T) {
	for _, text := range []string{"", "step 1\n", "BufferAssignment OOM Debugging.\n", "Peak buffers:\n", "total allocation: 3 GiB\n", "memory allocation: 3 GiB\nBuffer 1:\nSize: 3 GiB\n",
		"Can't reduce memory use below zero by rematerialization\n"} {
		if d, p, err := dump.ReadLog(strings.NewReader(text)); d != nil || p != nil || err != nil {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := dump.ReadLog(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestRemats(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		want       dump.Remat
	}{
		{"today", "Can't reduce memory use below 1.00GiB (1073741825 bytes) by rematerialization; only reduced to 2.00GiB (2147483649 bytes), down from 3.00GiB (3221225473 bytes) originally", dump.Remat{Limit: 1<<30 + 1, Reached: 2<<30 + 1, Was: 3<<30 + 1}},
		{"no bytes", "Can't reduce memory use below 1.00GiB by rematerialization; only reduced to 2.00GiB", dump.Remat{Limit: 1 << 30, Reached: 2 << 30}},
		{"cut off", "Can't reduce memory use below 1.00GiB (1073741825 bytes) by rematerialization; only", dump.Remat{Limit: 1<<30 + 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Line = 2
			p := readProgram(t, "\nW0101 01:02:03.456789 12 hlo_rematerialization.cc:9] "+tc.line)
			if d := cmp.Diff([]dump.Remat{tc.want}, p.Remats); d != "" || p.Line != 0 || p.Reports != 0 {
				t.Errorf("%s %+v", d, p)
			}
			if s := p.Summary(80, 40); len(s) < 1 || !strings.Contains(s[0], "wanted 1") {
				t.Errorf("%q", s)
			}
		})
	}
	many := readProgram(t, strings.Repeat("Can't reduce memory use below 1.00GiB by rematerialization\n", 20)+programText(1))
	if len(many.Remats) != 8 || many.Remats[7].Line != 20 || len(many.Peak) != 1 {
		t.Errorf("%+v", many)
	}
}

func TestProgramSummary(t *testing.T) {
	got := strings.Join(readProgram(t, programText(3)+"Can't reduce memory use below 4.00GiB by rematerialization; only reduced to 13.00GiB, down from 13.75GiB originally\n").Summary(72, 40), "\n")
	want := `     program   share  for
      10 GiB    73 %  temporaries, fragmentation 64 MiB
    2.50 GiB    18 %  parameters
    1.25 GiB     9 %  results (maybe live out)
       512 B     0 %  constants
   13.75 GiB   100 %  all, fragmentation 128 MiB
 at the peak  shape, by what
     900 MiB  f32[48,7] fusion ...main)/layer_0/dot_general model.py:100
     899 MiB  f32[48,8] fusion ...main)/layer_1/dot_general model.py:101
     898 MiB  bf16[1002,77] parameter
    2.63 GiB  the sum of these 3, 19 % of all
2 of them, 1.76 GiB, begin with the dimension 48:
  with half of it they take 899.50 MiB less
rematerialization: wanted 4 GiB, reached 13 GiB
  it saved 768 MiB of 13.75 GiB; 9 GiB too much`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// checkSummary checks what holds of every summary.
func checkSummary(t *testing.T, p *dump.Program, width int) {
	t.Helper()
	lines := p.Summary(width, 40)
	if len(lines) > 40 {
		t.Errorf("%d lines", len(lines))
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > max(width, 40) || strings.ContainsFunc(l, unicode.IsControl) {
			t.Errorf("%d characters for %d: %q", n, width, l)
		}
	}
}

func TestProgramSummarySizes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 15, 16, 100} {
		p := readProgram(t, strings.Repeat("Can't reduce memory use below 1.00GiB by rematerialization; only reduced to 2.00GiB, down from 3.00GiB originally\n", 9)+programText(n))
		for _, width := range []int{-1, 40, 41, 80, 200} {
			checkSummary(t, p, width)
		}
	}
	if got := (&dump.Program{}).Summary(80, 40); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

func FuzzReadLog(f *testing.F) {
	for n := range 3 {
		f.Add([]byte(programText(n)))
	}
	f.Add([]byte(each(programText(2), "[rank1]: ")))
	f.Add([]byte(strings.ReplaceAll(programText(2), "\n", `\n`)))
	f.Add([]byte("Can't reduce memory use below 1.00GiB (1073741825 bytes) by rematerialization; only reduced to 2.00GiB"))
	f.Fuzz(func(t *testing.T, log []byte) {
		_, p, err := dump.ReadLog(strings.NewReader(string(log)))
		if err != nil && (p != nil || !dump.IsBinary(log)) {
			t.Fatal(p, err)
		}
		if p == nil {
			return
		}
		if p.Line == 0 && len(p.Remats) == 0 || p.Line > strings.Count(string(log), "\n")+1 || p.Complete && (p.Total == 0 || len(p.Peak) == 0) {
			t.Fatalf("%+v", p)
		}
		checkSummary(t, p, 60)
	})
}
