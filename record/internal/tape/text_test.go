package tape

// The text format: what is accepted, what each mistake says,
// and a model of recordings made at random.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/input"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"one", "a 0 512\n", "a 0 512\n"},
		{"slot used again", "a 7 1\nf 7\na 8 2\na 7 3\n", "a 0 1\nf 0\na 0 2\na 1 3\n"},
		{"last slot freed is used first", "a x 1\na y 2\na z 3\nf x\nf z\na p 4\na q 5\n",
			"a 0 1\na 1 2\na 2 3\nf 0\nf 2\na 2 4\na 0 5\n"},
		{"comments and blank lines", "# head\n\n  \t\n  # indented\na 0 1\n#f 0\nf 0\n\n", "a 0 1\nf 0\n"},
		{"blanks and tabs", " a \t 0\t\t1  \n\tf\t0\t\n", "a 0 1\nf 0\n"},
		{"CRLF", "a 0 1\r\n\r\n# c\r\nf 0\r\n", "a 0 1\nf 0\n"},
		{"no newline at the end", "a 0 1\nf 0", "a 0 1\nf 0\n"},
		{"CR at the end", "a 0 1\nf 0\r", "a 0 1\nf 0\n"},
		{"byte order mark", "\xef\xbb\xbfa 0 1\n", "a 0 1\n"},
		{"byte order mark and comment", "\xef\xbb\xbf# c\na 0 1\n", "a 0 1\n"},
		{"zero bytes", "a 0 0\nf 0\n", "a 0 0\nf 0\n"},
		{"largest size", "a 0 18446744073709551615\n", "a 0 18446744073709551615\n"},
		{"leading zeros in a size", "a 0 0000000000000000000000512\n", "a 0 512\n"},
		{"upper", "a u1 8\na v 9\nf u1\na u1 7\n", "a 0 8 upper\na 1 9\nf 0 upper\na 0 7 upper\n"},
		{"spellings are different ids", "a 1 1\na 01 2\na +1 3\na 1.0 4\nf 01\n", "a 0 1\na 1 2\na 2 3\na 3 4\nf 1\n"},
		{"ids at the edge of numbers", "a 999999999999999999 1\na 1000000000000000000 2\na 18446744073709551616 3\nf 1000000000000000000\n",
			"a 0 1\na 1 2\na 2 3\nf 1\n"},
		{"free text ids", "a a 1\na f 2\na #x 3\na é,\"x\\ 4\nf #x\n", "a 0 1\na 1 2\na 2 3\na 3 4\nf 2\n"},
		{"bytes that are not UTF-8", "a \xff\xfe 1\nf \xff\xfe\n", "a 0 1\nf 0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), Options{})
			if tr.Format != "text" || tr.Source != "in" || len(tr.Pools) != 1 || tr.Pools[0].Name != "" {
				t.Errorf("trace %+v", tr)
			}
			if d := cmp.Diff(c.want, listEvents(events(t, tr.Pools[0], 3))); d != "" {
				t.Error(d)
			}
			if err := checkTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTextErrors(t *testing.T) {
	long := strings.Repeat("x", input.MaxLine+1)
	const hint = `; a line is "a ID BYTES" or "f ID"`
	for _, c := range []struct{ name, in, want string }{
		{"live", "# c\na 7 1\na 8 1\na 7 2\n", "in:4: id 7 is already live (allocated at line 2); free it first"},
		{"live name", "a x 1\n\na x 2\n", "in:3: id x is already live (allocated at line 1); free it first"},
		{"live again", "a 7 1\nf 7\na 7 1\na 7 1\n", "in:4: id 7 is already live (allocated at line 3); free it first"},
		{"never allocated", "a 0 1\nf 1\n", "in:2: id 1 is not live: it was never allocated, or it is already freed"},
		{"freed twice", "a 0 1\nf 0\nf 0\n", "in:3: id 0 is not live: it was never allocated, or it is already freed"},
		{"name freed twice", "a n 1\nf n\nf n\n", "in:3: id n is not live: it was never allocated, or it is already freed"},
		{"odd id", "a 0 1\nf \"\\\n", `in:2: id "\"\\" is not live: it was never allocated, or it is already freed`},
		{"no id", "a 0 1\na\n", `in:2: "a": the ID is missing` + hint},
		{"no id of a free", "a 0 1\nf \n", `in:2: "f ": the ID is missing` + hint},
		{"no size", "a 0 1\r\na 5\r\n", `in:2: "a 5": the number of bytes is missing; an allocation is "a ID BYTES"`},
		{"extra on an allocation", "a 0 1 2\n", `in:1: "a 0 1 2": nothing may follow the number of bytes`},
		{"extra on a free", "a 0 1\nf 0 1\n", `in:2: "f 0 1": nothing may follow the ID of a free`},
		{"unknown verb", "a 0 1\nfree 0\n", `in:2: "free 0" is not an event` + hint},
		{"upper-case verb", "a 0 1\nF 0\n", `in:2: "F 0" is not an event` + hint},
		{"size of one over", "a 0 18446744073709551616\n", `in:1: "18446744073709551616" bytes is more than 2^64-1`},
		{"negative size", "a 0 -1\n", `in:1: "-1" is not a number of bytes; write it in decimal digits, without a unit`},
		{"size with a unit", "a 0 2MiB\n", `in:1: "2MiB" is not a number of bytes; write it in decimal digits, without a unit`},
		{"fraction", "a 0 1.5\n", `in:1: "1.5" is not a number of bytes; write it in decimal digits, without a unit`},
		{"underscore", "a 0 1_000\n", `in:1: "1_000" is not a number of bytes; write it in decimal digits, without a unit`},
		{"zero byte", "a 0 1\na\x00 1 2\n", `in:2: "a\x00 1 2": byte 2 of the line is the control character 0x00; this is not a text recording`},
		{"binary", "a 0 1\n\x01\x02\n", `in:2: "\x01\x02": byte 1 of the line is the control character 0x01; this is not a text recording`},
		{"CR inside", "a 0 1\rf 0\n", `in:1: "a 0 1\rf 0": byte 6 of the line is the control character 0x0d; this is not a text recording`},
		{"control after all fields", "a 0 1 \x7f\n", `in:1: "a 0 1 \x7f": byte 7 of the line is the control character 0x7f; this is not a text recording`},
		{"long line", "a 0 1\na 1 2\na " + long + " 1\nf 0\n", "in:3: the line is longer than 65536 bytes; this is not a text recording"},
		{"long last line", "a 0 1\n#" + long, "in:2: the line is longer than 65536 bytes; this is not a text recording"},
		{"long line is cut in messages", "a 0 1\n" + strings.Repeat("é", 100) + "\n",
			`in:2: "` + strings.Repeat("é", 20) + `"... is not an event` + hint},
		{"no events", "# nothing\n\n", "in: the recording has no events"},
		{"no events, no newline", "#", "in: the recording has no events"},
		{"no bytes", "", "in: the recording is empty: no events"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := readString(c.in)
			if tr != nil {
				t.Error("a trace and an error")
			}
			wantInputError(t, err, c.want)
		})
	}
}

// TestTextLongestLine: a line of exactly input.MaxLine bytes is read, wherever it
// falls in the reader's buffer.
func TestTextLongestLine(t *testing.T) {
	for _, before := range []int{0, 1, 3*input.MaxLine - 5, 4*input.MaxLine - 5} {
		id := strings.Repeat("i", input.MaxLine-len("a  9"))
		in := strings.Repeat("#\n", before/2) + "a " + id + " 9\nf " + id
		tr := mustRead(t, []byte(in), Options{Format: "text"})
		if got := listEvents(events(t, tr.Pools[0], 10)); got != "a 0 9\nf 0\n" {
			t.Errorf("after %d bytes: %s", before, got)
		}
	}
}

// TestTextModel makes recordings at random, writes them with random blanks, and
// compares slots and sums with the naive replay.
func TestTextModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in bytes.Buffer
		var live []string
		blank := rapid.SampledFrom([]string{" ", "\t", "  "})
		newline := rapid.SampledFrom([]string{"\n", "\r\n", "\n\n", "\n# c\n"})
		want := 0
		for i := range rapid.IntRange(1, 200).Draw(t, "events") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				fmt.Fprintf(&in, "f%s%s%s", blank.Draw(t, "b"), live[k], newline.Draw(t, "n"))
				live = append(live[:k], live[k+1:]...)
			} else {
				id := rapid.SampledFrom([]string{"%d", "x%d", "u%d", "0%d"}).Draw(t, "id")
				id = fmt.Sprintf(id, i)
				fmt.Fprintf(&in, "a%s%s%s%d%s", blank.Draw(t, "b"), id, blank.Draw(t, "b"),
					rapid.Uint64().Draw(t, "size"), newline.Draw(t, "n"))
				live = append(live, id)
			}
			want++
		}
		limit := rapid.SampledFrom([]int{0, -1, 300}).Draw(t, "limit")
		tr, err := Read(context.Background(), &in, "in", Options{SpoolLimit: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := checkTrace(tr); err != nil {
			t.Fatal(err)
		}
		if tr.Events != uint64(want) || tr.Pools[0].EndBlocks != uint64(len(live)) || tr.PeakLive != tr.Pools[0].PeakLive {
			t.Fatalf("%d events, %d live, want %d, %d", tr.Events, tr.Pools[0].EndBlocks, want, len(live))
		}
	})
}

// TestPeaks: sums that do not fit 64 bits stop there, and come back down
// exactly.
func TestPeaks(t *testing.T) {
	const top = "18446744073709551615"
	for _, c := range []struct {
		name, in           string
		peak, peak256, end uint64
	}{
		{"plain", "a 0 100\na 1 300\nf 0\na 2 1\n", 400, 768, 301},
		{"nothing asked", "a 0 0\n", 0, 0, 0},
		{"rounding passes 64 bits", "a 0 " + top + "\nf 0\na 1 5\n", 1<<64 - 1, 1<<64 - 1, 5},
		{"sum passes 64 bits", "a 0 " + top + "\na 1 " + top + "\na 2 7\nf 0\nf 1\n", 1<<64 - 1, 1<<64 - 1, 7},
		{"exactly 64 bits", "a 0 18446744073709551359\na 1 1\nf 1\n", 1<<64 - 256, 1<<64 - 1, 1<<64 - 257},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), Options{})
			p := tr.Pools[0]
			if p.PeakLive != c.peak || p.PeakLive256 != c.peak256 || p.EndLive != c.end || tr.PeakLive != c.peak {
				t.Errorf("peak %d, rounded %d, end %d, over all %d; want %d, %d, %d, %d",
					p.PeakLive, p.PeakLive256, p.EndLive, tr.PeakLive, c.peak, c.peak256, c.end, c.peak)
			}
			if err := checkTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzText: any input gives a consistent trace or an *Error with a line.
func FuzzText(f *testing.F) {
	for _, s := range []string{"a 0 1\nf 0\n", "a u1 5\n# c\n\ta  01 7\r\nf u1", "a 0 99999999999999999999\n", "\xef\xbb\xbfa x 0", "a 0 1\nf 1\n", "f 0\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		tr, err := Read(context.Background(), bytes.NewReader(in), "in", Options{Format: "text", SpoolLimit: 64})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%v is not an *Error", err)
			}
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("the message has more than one line: %q", err)
			}
			return
		}
		defer tr.Close()
		if err := checkTrace(tr); err != nil {
			t.Fatal(err)
		}
	})
}
