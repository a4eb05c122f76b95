package doctor

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// facts reads a log to its end.
func facts(t testing.TB, log string) []Fact {
	t.Helper()
	var all []Fact
	if err := Read(strings.NewReader(log), func(f Fact) { all = append(all, f) }); err != nil {
		t.Fatal(err)
	}
	return all
}

const refused = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.50GiB."

// TestDress reads the same message in what may stand around it.
func TestDress(t *testing.T) {
	tests := []struct {
		name, line  string
		from, level string
		pid         int
		text        string // "" for the message
	}{
		{name: "plain", line: refused},
		{name: "crlf", line: refused + "\r"},
		{name: "blanks", line: "   \t" + refused + "  "},
		{name: "colours", line: "\x1b[31mRESOURCE_EXHAUSTED\x1b[0m: Out of \x1b[1;4mmemory\x1b[m while trying to allocate 3.50GiB."},
		{name: "title", line: "\x1b]0;training\x07" + refused},
		{name: "byte order mark", line: "\xef\xbb\xbf" + refused},
		{name: "absl", line: "E0412 08:15:30.123456  731 client.cc:99] " + refused, level: "E"},
		{name: "absl with seconds", line: "W0000 00:00:1751234567.765432     731 client.cc:99] " + refused, level: "W"},
		{name: "tsl", line: "2031-02-03 04:05:06.789012: F external/xla/xla/a-b/client.cc:7] " + refused, level: "F", text: refused},
		{name: "no time", line: "I xla/client.cc:7] " + refused, level: "I"},
		{name: "torchrun", line: "[rank5]: " + refused, from: "rank5"},
		{name: "ray", line: "(pid=4711) " + refused, from: "pid=4711", pid: 4711},
		{name: "ray actor", line: "(Trainer pid=4711, ip=10.1.2.3) " + refused, from: "pid=4711", pid: 4711},
		{name: "vllm engine", line: "(EngineCore_DP0 pid=12) ERROR 02-03 04:05:06 [core.py:7] " + refused, from: "pid=12", pid: 12, level: "E"},
		{name: "compose", line: "worker-2   | " + refused, from: "worker-2"},
		{name: "mpirun", line: "[1,3]<stderr>:" + refused, from: "1,3"},
		{name: "container", line: "2031-02-03T04:05:06.789Z " + refused},
		{name: "python logging", line: "2031-02-03 04:05:06,789 ERROR: " + refused, level: "E"},
		{name: "journal", line: "Feb  3 04:05:06 host python3[99]: " + refused, pid: 99},
		{name: "kernel", line: "[  123.456789] " + refused},
		{name: "several", line: "pod-7 | 2031-02-03T04:05:06Z [rank1]: " + refused, from: "pod-7"},
		{name: "progress bar", line: "  40%|####      |\r 41%|####      |\r" + refused, text: "40%|####      |\r 41%|####      |\r" + refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := Fact{Kind: XLARefused, Line: 2, Text: tt.text, From: tt.from, Level: tt.level, Device: -1, PID: tt.pid,
				Want: 7 << 29, Has: HasWant, Framework: "xla", Code: "RESOURCE_EXHAUSTED"}
			if want.Text == "" {
				want.Text = refused
			}
			var got []Fact
			for _, f := range facts(t, "step 12\n"+tt.line+"\nbye\n") {
				if f.Kind != Loaded {
					got = append(got, f)
				}
			}
			if d := cmp.Diff([]Fact{want}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestLongLines puts one message at every kind of place in a line that is
// longer than the buffer: it is found once.
func TestLongLines(t *testing.T) {
	for _, before := range []int{0, 1, 299, bufferSize - 2*margin, bufferSize - margin - 1, bufferSize - margin, bufferSize - 70, bufferSize - 30, bufferSize - 1,
		bufferSize, bufferSize + margin, 3*bufferSize - 3*margin, 3 * bufferSize} {
		for _, after := range []int{0, 1, margin, 2 * bufferSize} {
			log := "\n" + strings.Repeat("ä", before/2) + strings.Repeat(" ", before%2) + refused + strings.Repeat("y ", after/2) + "\nlast line\n"
			got := facts(t, log)
			if len(got) != 1 {
				t.Errorf("%d bytes before, %d after: %d facts", before, after, len(got))
				continue
			}
			f := got[0]
			if f.Line != 2 || f.Want != 7<<29 || !strings.Contains(f.Text, "3.50GiB") || len(f.Text) > MaxText {
				t.Errorf("%d bytes before, %d after: %+v", before, after, f)
			}
		}
	}
}

func TestTruncated(t *testing.T) {
	// A log may end anywhere.
	for i := range refused {
		for _, f := range facts(t, refused[:i]) {
			if f.Line != 1 || !strings.Contains(refused[:i], f.Text) {
				t.Errorf("%q: %+v", refused[:i], f)
			}
		}
	}
	if got := facts(t, strings.TrimSuffix(refused, ".")); len(got) != 1 || got[0].Want != 7<<29 {
		t.Errorf("without the last full stop: %+v", got)
	}
}

// TestSmiTable checks that the memory of a pasted table goes to its GPU.
func TestSmiTable(t *testing.T) {
	got := facts(t, `|   2  Some Card   On  | 00000000:1A:00.0 Off |      0 |
| 30%   45C    P2    90W / 300W |   1000MiB / 8192MiB |     12%      Default |
other text
| 30%   45C    P2    90W / 300W |   2000MiB / 8192MiB |     12%      Default |
`)
	var devices []int
	for _, f := range got {
		devices = append(devices, f.Device)
	}
	if d := cmp.Diff([]int{2, 2, 2, -1}, devices); d != "" {
		t.Error(d)
	}
}

// TestOnce checks that what is reported once is reported of each program.
func TestOnce(t *testing.T) {
	line := "jaxlib==0.7.2\n"
	got := facts(t, strings.Repeat(line, 3)+"[rank1]: "+line+line+"[rank1]: "+line)
	if len(got) != 2 || got[0].Line != 1 || got[1].Line != 4 || got[1].From != "rank1" {
		t.Errorf("%+v", got)
	}
}

// TestText checks what is quoted: no prefix, unless the message is in it.
func TestText(t *testing.T) {
	long := strings.Repeat("before ", 100)
	tests := []struct{ name, line, text string }{
		{"read from the beginning", "[rank1]: GPU 1 has a total capacity of 8.00 GiB of which 2.00 GiB is free", "GPU 1 has a total capacity of 8.00 GiB of which 2.00 GiB is free"},
		{"in the prefix", "I tensorflow/core/x.cc:1] hello", "I tensorflow/core/x.cc:1] hello"},
		{"far behind", long + refused, strings.TrimPrefix(refused, "RESOURCE_EXHAUSTED: ")},
		{"long", refused + " " + long, (refused + " " + long)[:MaxText]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := facts(t, tt.line)
			if len(got) != 1 || got[0].Text != strings.TrimSpace(tt.text) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestReadError(t *testing.T) {
	broken := errors.New("broken pipe")
	n := 0
	err := Read(io.MultiReader(strings.NewReader(refused+"\n"), iotest.ErrReader(broken)), func(Fact) { n++ })
	if !errors.Is(err, broken) || n != 1 {
		t.Errorf("got %v and %d facts, want %v and 1", err, n, broken)
	}
}

// TestAnchorsOnly reads lines of nothing but anchors: the work for them is bounded,
// or this does not end.
func TestAnchorsOnly(t *testing.T) {
	for _, p := range patterns {
		for _, a := range p.anchors {
			facts(t, strings.Repeat(a, 1<<14/len(a)))
		}
	}
}

// TestAnchors checks what the search relies on.
func TestAnchors(t *testing.T) {
	for _, p := range patterns {
		if len(p.anchors) == 0 || p.kind == "" || p.line && p.whole || p.re() == nil { // which compiles it
			t.Errorf("%+v", p)
		}
		for _, a := range p.anchors {
			if len(a) < minAnchor {
				t.Errorf("%s: anchor %q has less than %d bytes", p.kind, a, minAnchor)
			}
			var n int
			for _, h := range anchors.find([]byte("xyz "+a+" xyz"), nil) {
				if h.at == 4 && patterns[h.pattern].kind == p.kind {
					n++
				}
			}
			if n == 0 {
				t.Errorf("%s: anchor %q is not found", p.kind, a)
			}
		}
	}
}

// FuzzRead checks of any bytes that each fact quotes the line that it names.
func FuzzRead(f *testing.F) {
	f.Add([]byte(refused))
	for _, tt := range formats {
		f.Add([]byte(tt.line))
		f.Add([]byte("\x1b[31m" + tt.line + "\x1b[0m\r\n[rank1]: " + tt.line))
	}
	for _, c := range collectors {
		f.Add([]byte(c.line(refused + "\n" + formats[0].line)))
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		lines := bytes.Split(log, []byte("\n"))
		last := 0
		err := Read(bytes.NewReader(log), func(f Fact) {
			switch {
			case f.Line < 1 || f.Line > len(lines):
				t.Fatalf("line %d of %d: %+v", f.Line, len(lines), f)
			case f.Line < last:
				t.Fatalf("line %d after %d", f.Line, last)
			case f.Text == "" || len(f.Text) > MaxText || !quotes(lines[f.Line-1], f.Text):
				t.Fatalf("%q is not in line %d, %q", f.Text, f.Line, lines[f.Line-1])
			case f.Kind == "" || f.Device < -1 || f.PID < 0:
				t.Fatalf("%+v", f)
			}
			last = f.Line
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
