package logs

// RMM's logs.

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// TestRMMSample: a log with everything that a log has.
func TestRMMSample(t *testing.T) {
	tr := mustRead(t, tracetest.Sample(t, "rmm.csv"), tape.Options{})
	const want = `: 2 seeds, 3 streams, peak 4296018688, end 2048 in 1
a 2 1024
a 4 512 stream=1
a 0 256 stream=1
a 1 1048576 at=1000
f 2 at=5000000
a 2 2048 stream=2 at=6000000
f 1 stream=2 at=9000000
a 1 1048576 at=10000000
a 3 4294967296 refused stream=1 at=1000000000
a 3 2147483648 refused stream=1 at=1500000000
f 4 stream=1 at=2000000000
f 0 stream=1 at=2000000000
f 1 at=2500000000
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	notes := []string{
		"2 blocks older than the recording (1.50 KiB) are allocated at its start, in the order of the addresses; known from the frees",
		"the recorded run was refused 2 requests: the first 4 GiB (line 9), the largest 4 GiB",
		"1 free of blocks that are not live; dropped",
	}
	if d := cmp.Diff(notes, tr.Notes); d != "" {
		t.Error(d)
	}
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	if tr.Format != "rmm" || !tr.Timed {
		t.Errorf("format %q, timed %v", tr.Format, tr.Timed)
	}
}

func TestRMM(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		notes          []string
	}{
		{"one", "7,14:21:19.998533,allocate,0x30a000000,256,0x2\n", "a 0 256 stream=1\n", nil},
		{"header, CRLF, blank lines", "Thread,Time,Action,Pointer,Size,Stream\r\n\r\n7,14:21:19.5,allocate,0x1,256,0\r\n\n", "a 0 256\n", nil},
		{"colon before the microseconds", "7,14:21:19:000001,allocate,0x1,1,0\n7,14:21:20:000002,free,0x1,1,0\n", "a 0 1\nf 0 at=1000001000\n", nil},
		{"seconds since 1970", "7,1634567890.123456,allocate,0x7f8a40000000,1024,0x7f8a38001020\n7,1634567891.12345,deallocate,0x7f8a40000000,1024,0x7f8a38001020\n",
			"a 0 1024 stream=1\nf 0 stream=1 at=999994000\n", nil},
		{"over midnight, twice", "7,23:59:59.9,allocate,0x1,1,0\n7,00:00:00.1,free,0x1,1,0\n7,22:00:00.0,allocate,0x1,1,0\n7,01:00:00.0,free,0x1,1,0\n",
			fmt.Sprintf("a 0 1\nf 0 at=%d\na 0 1 at=%d\nf 0 at=%d\n", uint64(2e8), uint64(22*3600e9+1e8), uint64(25*3600e9+1e8)), nil},
		{"out of order over midnight", "7,23:59:59,allocate,0x1,1,0\n8,00:00:01,allocate,0x2,1,0\n7,23:59:59.5,free,0x1,1,0\n8,00:00:02,free,0x2,1,0\n",
			"a 0 1\na 1 1 at=2000000000\nf 0 at=2000000000\nf 1 at=3000000000\n", nil},
		{"threads out of order", "7,12:00:00.2,allocate,0x1,1,0\n8,12:00:00.1,allocate,0x2,1,0\n7,12:00:00.3,free,0x1,1,0\n", "a 0 1\na 1 1\nf 0 at=100000000\n", nil},
		{"the default streams", "7,12:00:00,allocate,0x1,1,0\n7,12:00:00,allocate,0x2,1,0x1\n7,12:00:00,allocate,0x3,1,0x2\n8,12:00:00,allocate,0x4,1,0x2\n8,12:00:00,allocate,0x5,1,0x7f0\n7,12:00:00,allocate,0x6,1,7f0\n",
			"a 0 1\na 1 1\na 2 1 stream=1\na 3 1 stream=2\na 4 1 stream=3\na 5 1 stream=3\n", nil},
		{"nothing asked", "7,12:00:00,allocate,(nil),0,0\n7,12:00:01,allocate,0x1,0,0\n7,12:00:02,free,(nil),0,0\n7,12:00:03,free,0x0,0,0\n",
			"a 0 0 at=1000000000\n", nil},
		{"refused once", "7,12:00:00,allocate failure,(nil),99,0\n7,12:00:00,allocate,0x1,5,0\n", "a 0 99 refused\na 0 5\n",
			[]string{"the recorded run was refused 1 request: 99 B (line 1)"}},
		{"refused, a size that underflowed", "7,12:00:00,allocate failure,0x0,18446744073709551615,0\n7,12:00:00,allocate,0x1,5,0\n", "a 0 18446744073709551615 refused\na 0 5\n",
			[]string{"the recorded run was refused 1 request: 16.00 EiB (line 1)"}},
		{"older, freed in the order 3, 1", "7,12:00:00,allocate,0x2,5,0\n7,12:00:01,free,0x3,30,0\n7,12:00:02,free,0x1,10,0\n7,12:00:03,free,0x2,5,0\n7,12:00:04,free,0x3,30,0\n",
			"a 2 10\na 1 30\na 0 5\nf 1 at=1000000000\nf 2 at=2000000000\nf 0 at=3000000000\n",
			[]string{"2 blocks older than the recording (40 B) are allocated at its start, in the order of the addresses; known from the frees",
				"1 free of blocks that are not live; dropped"}},
		{"an address allocated twice", "7,12:00:00,allocate,0x1,5,0\n7,12:00:00,allocate,0x1,6,0\n", "a 0 5\nf 0\na 0 6\n",
			[]string{"1 allocation at the address of a live block; the older block is freed there"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), tape.Options{Format: "rmm"})
			if d := cmp.Diff(c.want, tracetest.ListEvents(tracetest.Events(t, tr.Pools[0], 3))); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(c.notes, tr.Notes); d != "" {
				t.Error(d)
			}
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRMMErrors(t *testing.T) {
	const is = "; a line of an RMM log is Thread,Time,Action,Pointer,Size,Stream"
	for _, c := range []struct{ name, in, want string }{
		{"another line", "1,12:00:00,free,0x1,1,0\nhello\n", `in:2: "hello" has 1 column` + is},
		{"too few", "1,12:00:00,free,0x1,1\n", `in:1: "1,12:00:00,free,0x1,1" has 5 columns` + is},
		{"too many", "1,12:00:00,free,0x1,1,0,7\n", `in:1: "1,12:00:00,free,0x1,1,0,7" has more than 6 columns` + is},
		{"thread", "x,12:00:00,free,0x1,1,0\n", `in:1: "x" is not the number of a thread` + is},
		{"a second header", "1,12:00:00,free,0x1,1,0\n" + rmmHeader + "\n", `in:2: "Thread" is not the number of a thread` + is},
		{"hour", "1,24:00:00,free,0x1,1,0\n", `in:1: "24:00:00" is not a time such as 14:21:19.998533 or 1634567890.123456`},
		{"short time", "1,12:00,free,0x1,1,0\n", `in:1: "12:00" is not a time such as 14:21:19.998533 or 1634567890.123456`},
		{"fraction", "1,12:00:00.1x,free,0x1,1,0\n", `in:1: "12:00:00.1x" is not a time such as 14:21:19.998533 or 1634567890.123456`},
		{"behind the time", "1,12:00:00;1,free,0x1,1,0\n", `in:1: "12:00:00;1" is not a time such as 14:21:19.998533 or 1634567890.123456`},
		{"too late", "1,9223372037.0,free,0x1,1,0\n", `in:1: "9223372037.0" is not a time such as 14:21:19.998533 or 1634567890.123456`},
		{"action", "1,12:00:00,grow,0x1,1,0\n", `in:1: "grow" is not an action; the actions are allocate, allocate failure, free and deallocate`},
		{"pointer", "1,12:00:00,free,0xg,1,0\n", `in:1: "0xg" is not a pointer such as 0x30a000000`},
		{"long pointer", "1,12:00:00,free,0x12345678901234567,1,0\n", `in:1: "0x12345678901234567" is not a pointer such as 0x30a000000`},
		{"size", "1,12:00:00,free,0x1,-1,0\n", `in:1: "-1" is not a number of bytes below 2^64`},
		{"size of 65 bits", "1,12:00:00,allocate failure,0x0,18446744073709551616,0\n", `in:1: "18446744073709551616" is not a number of bytes below 2^64`},
		{"stream", "1,12:00:00,free,0x1,1,\n", `in:1: "" is not a stream such as 0 or 0x7f8a38001020`},
		{"no pointer", "1,12:00:00,allocate,(nil),1,0\n", "in:1: the allocation of 1 bytes has no pointer"},
		{"long line", "1,12:00:00,free,0x1,1,0\n" + string(bytes.Repeat([]byte{'1'}, input.MaxLine+1)), "in:2: the line is longer than 65536 bytes; this is not an RMM log"},
		{"only a header", rmmHeader + "\n", "in: the recording has no events"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := formats.Read(context.Background(), bytes.NewReader([]byte(c.in)), "in", tape.Options{Format: "rmm"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
	var many bytes.Buffer
	for i := range 2*2048 + 1 { // a builder takes as many far ones as dense ones
		fmt.Fprintf(&many, "1,12:00:00,allocate,%#x,1,%#x\n", i+1, i+16)
	}
	_, err := readString(many.String())
	tracetest.WantInputError(t, err, "in:4096: the recording has more than 2048 streams; it is damaged")
}

// TestRMMModel writes logs at random, leaves out the first lines, and compares
// with a replay that knows the whole: what is live and the peak from then on
// must be the same, but for blocks that are never freed.
func TestRMMModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in bytes.Buffer
		n := rapid.IntRange(1, 200).Draw(t, "events")
		cut := rapid.IntRange(0, n-1).Draw(t, "cut")
		older, live := map[int]uint64{}, map[int]uint64{} // by address, allocated before and after the cut
		var now, peak, allocs uint64
		var freedOlder uint64
		// peaks has the live bytes after each event but for older blocks; older
		// blocks that are freed count in all events before that.
		var after []uint64
		base := 0
		for i := range n {
			if i == cut {
				older, live = live, map[int]uint64{}
				now = 0
			}
			addr := rapid.IntRange(1, 40).Draw(t, "addr")
			size := rapid.Uint64Range(0, 1<<40).Draw(t, "size")
			line := ""
			switch {
			case live[addr] > 0:
				now -= live[addr]
				line = fmt.Sprintf("1,12:00:%02d.%06d,free,%#x,%d,0\n", i/100, i, addr, live[addr])
				delete(live, addr)
			case older[addr] > 0:
				for k := base; k < len(after); k++ {
					after[k] += older[addr]
				}
				freedOlder += older[addr]
				line = fmt.Sprintf("1,12:00:%02d.%06d,free,%#x,%d,0\n", i/100, i, addr, older[addr])
				delete(older, addr)
				allocs++
			default:
				live[addr] = size + 1
				now += size + 1
				line = fmt.Sprintf("1,12:00:%02d.%06d,allocate,%#x,%d,0\n", i/100, i, addr, size+1)
				allocs++
			}
			if i >= cut {
				in.WriteString(line)
				after = append(after, now)
			} else {
				allocs = 0
			}
		}
		tr, err := formats.Read(context.Background(), &in, "in", tape.Options{SpoolLimit: rapid.SampledFrom([]int{0, -1}).Draw(t, "limit")})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		for _, b := range after {
			peak = max(peak, b)
		}
		peak = max(peak, freedOlder)
		p := tr.Pools[0]
		if p.EndLive != now || p.Allocs != allocs || p.PeakLive != peak || tr.PeakLive != peak {
			t.Fatalf("end %d, allocs %d, peak %d and %d; want %d, %d, %d", p.EndLive, p.Allocs, p.PeakLive, tr.PeakLive, now, allocs, peak)
		}
	})
}

func FuzzRMM(f *testing.F) {
	f.Add(tracetest.Sample(f, "rmm.csv"))
	f.Add([]byte("1,1634567890.1,deallocate,0x1,1,7f\n1,00:00:00,allocate failure,(nil),1,0\n1,23:59:60:5,free,2,2,0x2\n"))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "rmm") })
}
