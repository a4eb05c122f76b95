package profile

// Device memory profiles: made here, and one that JAX wrote.

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// ppSample is a sample of a profile that is being made.
type ppSample struct {
	count, bytes int64
	device, kind string
	stack        []uint64 // locations
}

// ppProfile makes a profile as jaxlib does. Location n is line n of function n
// in file n.py.
func ppProfile(samples ...ppSample) tracetest.PB {
	strs := []string{"", "allocations", "count", "space", "bytes", "kind", "device"}
	index := func(s string) uint64 {
		for i, o := range strs {
			if o == s {
				return uint64(i)
			}
		}
		strs = append(strs, s)
		return uint64(len(strs) - 1)
	}
	out := tracetest.PB{}.Bytes(1, tracetest.PB{}.Num(1, 1).Num(2, 2)).Bytes(1, tracetest.PB{}.Num(1, 3).Num(2, 4))
	used := map[uint64]bool{}
	for _, s := range samples {
		var stack, values tracetest.PB
		for _, n := range s.stack {
			stack = append(stack, tracetest.PB{}.Num(1, n)[1:]...)
			used[n] = true
		}
		for _, v := range []int64{s.count, s.bytes} {
			values = append(values, tracetest.PB{}.Num(1, uint64(v))[1:]...)
		}
		m := tracetest.PB{}.Bytes(1, stack).Bytes(2, values)
		if s.kind != "" {
			m = m.Bytes(3, tracetest.PB{}.Num(1, 5).Num(2, index(s.kind)))
		}
		if s.device != "" {
			m = m.Bytes(3, tracetest.PB{}.Num(1, 6).Num(2, index(s.device)))
		}
		out = out.Bytes(2, m)
	}
	for n := range uint64(100) {
		if used[n] {
			out = out.Bytes(4, tracetest.PB{}.Num(1, n).Bytes(4, tracetest.PB{}.Num(1, n).Num(2, n)))
			out = out.Bytes(5, tracetest.PB{}.Num(1, n).Num(2, index(fmt.Sprint("f", n))).Num(4, index(fmt.Sprintf("/home/u/%d.py", n))).Num(5, 1))
		}
	}
	for _, s := range strs {
		out = out.Text(6, s)
	}
	return out
}

const notePprof = "a device memory profile is one instant: every live block is allocated, in no known order, and nothing is freed"

func readPP(t testing.TB, data []byte, opt tape.Options) (*tape.Trace, string) {
	t.Helper()
	tr := mustRead(t, data, opt)
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	var all strings.Builder
	for _, p := range tr.Pools {
		list, err := tracetest.ShowBlocks(tr, p)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(list)
	}
	return tr, all.String()
}

func TestPprof(t *testing.T) {
	buffer := func(device string, count, bytes int64, stack ...uint64) ppSample {
		return ppSample{count, bytes, device, "buffer", stack}
	}
	program := func(count, bytes int64) ppSample { return ppSample{count, bytes, "", "executable", nil} }
	for _, c := range []struct {
		name    string
		samples []ppSample
		want    string
		notes   []string
	}{
		{"one", []ppSample{buffer("gpu:0", 1, 100, 1, 2)}, "gpu:0: 0 seeds\na 0 100 f1 (1.py:1)\nf2 (2.py:2)\n", nil},
		{"several of a size", []ppSample{buffer("gpu:0", 3, 300)}, "gpu:0: 0 seeds\na 0 100 \na 1 100 \na 2 100 \n", nil},
		{"a rest", []ppSample{buffer("gpu:0", 3, 302)}, "gpu:0: 0 seeds\na 0 102 \na 1 100 \na 2 100 \n", nil},
		{"none", []ppSample{buffer("gpu:0", 0, 0), buffer("gpu:1", 1, 0)}, "gpu:0: 0 seeds\ngpu:1: 0 seeds\na 0 0 \n", nil},
		{"devices and programs", []ppSample{program(2, 30), buffer("cuda:10", 1, 1), buffer("cuda:2", 1, 2), buffer("TPU_0(process=0,(0,0,0,0))", 1, 3)},
			"cuda:2: 0 seeds\na 0 2 \ncuda:10: 0 seeds\na 0 1 \nTPU_0(process=0,(0,0,0,0)): 0 seeds\na 0 3 \nexecutable: 0 seeds\na 0 15 \na 1 15 \n",
			[]string{"the pool executable is the code of 2 programs (30 B), which lies outside of the devices' pools"}},
		{"sizes that are not known", []ppSample{program(2, -2), program(1, 5)}, "executable: 0 seeds\na 0 0 \na 1 0 \na 2 5 \n",
			[]string{"the pool executable is the code of 3 programs (5 B), which lies outside of the devices' pools", "executable: 2 blocks without a size; counted as 0 bytes"}},
		{"no labels", []ppSample{{count: 1, bytes: 7}}, ": 0 seeds\na 0 7 \n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, got := readPP(t, ppProfile(c.samples...), tape.Options{})
			if d := gocmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if d := gocmp.Diff(append([]string{notePprof}, c.notes...), tr.Notes); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
	deep := make([]uint64, 99)
	for i := range deep {
		deep[i] = uint64(i)
	}
	tr := mustRead(t, ppProfile(buffer("gpu:0", 1, 1, deep...)), tape.Options{KeepPaths: true})
	if s := strings.Split(tr.Site(1), "\n"); len(s) != tape.MaxFrames || s[5] != "f5 (/home/u/5.py:5)" {
		t.Errorf("%d frames, %q", len(s), s)
	}
	// Until 2022: the number of the device.
	old := ppProfile(ppSample{1, 5, "", "buffer", nil})
	old = bytes.Replace(old, tracetest.PB{}.Bytes(3, tracetest.PB{}.Num(1, 5).Num(2, 7)), tracetest.PB{}.Bytes(3, tracetest.PB{}.Num(1, 6).Num(3, 7)), 1)
	if _, got := readPP(t, old, tape.Options{}); got != "7: 0 seeds\na 0 5 \n" {
		t.Errorf("%q", got)
	}
}

func TestPprofDamaged(t *testing.T) {
	sample := func(count, bytes int64) ppSample { return ppSample{count: count, bytes: bytes, device: "gpu:0"} }
	many := make([]ppSample, maxPools+1)
	for i := range many {
		many[i] = ppSample{count: 1, bytes: 1, device: fmt.Sprint("gpu:", i)}
	}
	wrong := func(from, to string) []byte {
		return bytes.Replace(ppProfile(sample(1, 1)), tracetest.PB{}.Text(6, from), tracetest.PB{}.Text(6, to), 1)
	}
	const again = "; copy the file again"
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"absurd count", ppProfile(sample(1, 1), sample(1<<60, 1)), "in: damaged: sample 2 counts 1152921504606846976 blocks; a profile has 16777216 at most" + again},
		{"absurd sum", ppProfile(sample(2, 1), sample(maxBlocks-1, 1)), "in: damaged: sample 2 counts 16777215 blocks; a profile has 16777216 at most" + again},
		{"negative count", ppProfile(sample(-1, 1)), "in: damaged: sample 1 counts -1 blocks; a profile has 16777216 at most" + again},
		{"a value is missing", append(ppProfile(), tracetest.PB{}.Bytes(2, tracetest.PB{}.Num(2, 1))...), "in: damaged: sample 1 has 1 value, and the profile 2" + again},
		{"sample breaks off", append(ppProfile(), tracetest.PB{}.Bytes(2, tracetest.PB{0x12, 1, 0x80})...), "in: damaged: bad varint" + again},
		{"label breaks off", append(ppProfile(), tracetest.PB{}.Bytes(2, tracetest.PB{}.Bytes(3, tracetest.PB{8}))...), "in: damaged: bad varint" + again},
		{"line breaks off", append(ppProfile(), tracetest.PB{}.Bytes(4, tracetest.PB{}.Bytes(4, tracetest.PB{8}))...), "in: damaged: bad varint" + again},
		{"function breaks off", append(ppProfile(), tracetest.PB{}.Bytes(5, tracetest.PB{8})...), "in: damaged: bad varint" + again},
		{"too many devices", ppProfile(many...), "in: damaged: the profile has more than 256 devices" + again},
		{"nothing", ppProfile(), "in: the profile has no live buffers"},
		{"of time", wrong("space", "cpu"), `in: is a pprof profile of "allocations/count and cpu/bytes", and not of allocations/count and space/bytes, which jax.profiler.save_device_memory_profile writes`},
		{"without types", tracetest.PB{}.Text(6, ""), `in: is a pprof profile of "", and not of allocations/count and space/bytes, which jax.profiler.save_device_memory_profile writes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := formats.Read(context.Background(), bytes.NewReader(c.data), "in", tape.Options{Format: "pprof"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

// TestPprofModel: every sample becomes its count of blocks with its bytes in
// all, of sizes that differ by the rest at most, in the pool of its device.
func TestPprofModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples []ppSample
		for i := range rapid.IntRange(1, 20).Draw(t, "samples") {
			samples = append(samples, ppSample{
				count:  rapid.Int64Range(1, 5).Draw(t, "count"),
				bytes:  rapid.Int64Range(-5, 1<<40).Draw(t, "bytes"),
				device: rapid.SampledFrom([]string{"gpu:0", "gpu:1", ""}).Draw(t, "device"),
				kind:   "executable",
				stack:  []uint64{uint64(i + 1)}, // names the sample
			})
		}
		tr, err := formats.Read(context.Background(), bytes.NewReader(ppProfile(samples...)), "in", tape.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		count := make([]int64, len(samples))
		sum := make([]int64, len(samples))
		for _, p := range tr.Pools {
			evs, err := tracetest.EventsOf(p, 4)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range evs {
				var n int
				fmt.Sscanf(tr.Site(e.Site), "f%d", &n)
				s := samples[n-1]
				if e.Op != tape.Alloc || p.Name != s.device && (p.Name != "executable" || s.device != "") || int64(e.Bytes) > max(0, s.bytes/s.count+s.count-1) {
					t.Fatalf("%+v in %s of %+v", e, p.Name, s)
				}
				count[n-1]++
				sum[n-1] += int64(e.Bytes)
			}
		}
		for i, s := range samples {
			if count[i] != s.count || sum[i] != max(0, s.bytes) {
				t.Fatalf("%+v became %d blocks of %d bytes", s, count[i], sum[i])
			}
		}
	})
}

// TestPprofJAX: three arrays of 100 rows and a product of 40,000 bytes on the
// first device, two batches on the second.
func TestPprofJAX(t *testing.T) {
	tr, _ := readPP(t, tracetest.Sample(t, "jax.pprof"), tape.Options{})
	got := map[string]int{}
	for _, p := range tr.Pools {
		for _, e := range tracetest.Events(t, p, 5) {
			got[fmt.Sprint(p.Name, " ", e.Bytes)]++
			if !strings.HasSuffix(tr.Site(e.Site), "\n<module> (make_profiles.py:72)") {
				t.Errorf("site %q", tr.Site(e.Site))
			}
		}
	}
	want := map[string]int{"cpu:0 400000": 3, "cpu:0 40000": 1, "cpu:1 40000": 1, "cpu:1 80000": 1, "executable 0": 5}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// FuzzPprof: any bytes give a consistent trace or an *Error.
func FuzzPprof(f *testing.F) {
	f.Add(tracetest.Sample(f, "jax.pprof"))
	f.Add([]byte(ppProfile(ppSample{3, 302, "gpu:0", "buffer", []uint64{1, 2}}, ppSample{1, -1, "", "executable", nil})))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "pprof") })
}

// A sample may name a location with very many lines: those beyond a stack's are dropped.
func TestLongLocationsAreCutToAStack(t *testing.T) {
	lines := tracetest.PB{}.Num(1, 1)
	for k := range 1000 {
		lines = lines.Bytes(4, tracetest.PB{}.Num(1, 1).Num(2, uint64(k+1)))
	}
	data := ppProfile(ppSample{1, 1, "gpu:0", "buffer", []uint64{1}})
	data = bytes.Replace(data, tracetest.PB{}.Bytes(4, tracetest.PB{}.Num(1, 1).Bytes(4, tracetest.PB{}.Num(1, 1).Num(2, 1))), tracetest.PB{}.Bytes(4, lines), 1)
	tr := mustRead(t, data, tape.Options{})
	if frames := strings.Split(tr.Site(1), "\n"); len(frames) != tape.MaxFrames || frames[63] != "f1 (1.py:64)" {
		t.Errorf("%d frames, the last %q", len(frames), frames[len(frames)-1])
	}
}

// A stack may name locations and functions that the profile does not have, and a label may
// be the number 0, which is not written: a buffer without a device is of device 0.
func TestWhatTheProfileLacks(t *testing.T) {
	data := ppProfile(ppSample{1, 8, "", "buffer", []uint64{1, 200, 2}})
	data = bytes.Replace(data, tracetest.PB{}.Bytes(5, tracetest.PB{}.Num(1, 2)), tracetest.PB{}.Bytes(5, tracetest.PB{}.Num(1, 3)), 1)
	data = bytes.Replace(data, tracetest.PB{}.Num(1, 2).Num(2, 2), tracetest.PB{}.Num(1, 9).Num(2, 2), 1) // line 2 of function 9
	if _, got := readPP(t, data, tape.Options{}); got != "0: 0 seeds\na 0 8 f1 (1.py:1)\n?\n" {
		t.Errorf("%q", got)
	}
}
