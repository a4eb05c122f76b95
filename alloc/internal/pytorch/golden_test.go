package pytorch_test

import (
	"bufio"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// recorder is a device that writes down what it was asked, as the stand-in of
// testdata/pytorch did. Offsets are from the first grant or reservation.
type recorder struct {
	device.GPU
	base    uint64
	size    map[uint64]uint64 // of each grant
	digest  golden.Digest
	log     func(kind byte, offset, bytes uint64) // nil if it is not wanted
	calls   int
	refused int
	// How often each was called with success.
	malloc, free, addresses, create, release int
}

func newRecorder(dev device.GPU) *recorder {
	return &recorder{GPU: dev, size: map[uint64]uint64{}, digest: golden.NewDigest()}
}

func (r *recorder) call(kind byte, addr, bytes uint64) {
	r.calls++
	h := (uint64(r.digest) ^ uint64(kind)) * 1099511628211
	r.digest = golden.Digest(h)
	offset := addr - r.base
	if kind == 'X' {
		r.refused++
		offset = golden.Refused
	}
	r.digest.Add(offset)
	r.digest.Add(bytes)
	if r.log != nil {
		r.log(kind, offset, bytes)
	}
}

func (r *recorder) begin(addr uint64) {
	if r.base == 0 {
		r.base = addr
	}
}

func (r *recorder) Alloc(n uint64) (device.Range, error) {
	got, err := r.GPU.Alloc(n)
	if err != nil {
		r.call('X', 0, n)
		return got, err
	}
	r.begin(got.Addr)
	r.size[got.Addr] = n
	r.malloc++
	r.call('M', got.Addr, n)
	return got, nil
}

func (r *recorder) Free(addr uint64) error {
	r.free++
	r.call('F', addr, r.size[addr])
	return r.GPU.Free(addr)
}

func (r *recorder) AddressReserve(bytes, align uint64) (uint64, error) {
	addr, err := r.GPU.AddressReserve(bytes, align)
	r.begin(addr)
	r.addresses++
	r.call('V', addr, bytes)
	return addr, err
}

func (r *recorder) AddressFree(addr, bytes uint64) error {
	r.addresses++
	return r.GPU.AddressFree(addr, bytes)
}

func (r *recorder) MemCreate(bytes uint64) (device.Handle, error) {
	h, err := r.GPU.MemCreate(bytes)
	if err != nil {
		r.call('X', 0, bytes)
		return h, err
	}
	r.create++
	return h, nil
}

func (r *recorder) MemRelease(h device.Handle) error {
	r.release++
	return r.GPU.MemRelease(h)
}

func (r *recorder) MemMap(addr, bytes uint64, h device.Handle) error {
	r.call('m', addr, bytes)
	return r.GPU.MemMap(addr, bytes, h)
}

func (r *recorder) MemUnmap(addr, bytes uint64) error {
	r.call('u', addr, bytes)
	return r.GPU.MemUnmap(addr, bytes)
}

// op is a line of a trace: an allocation of bytes, or a free. Blocks are numbered by
// their ids; the free of an id that was never allocated is of block -1.
type op struct {
	free  bool
	block int
	bytes uint64
}

// readTrace reads testdata/NAME.txt or .txt.gz.
func readTrace(t testing.TB, name string) []op {
	t.Helper()
	path := filepath.Join(golden.Dir(), filepath.FromSlash(name)) + ".txt"
	var ops []op
	blocks := map[string]int{}
	for _, line := range readLines(t, path) {
		w := strings.Fields(line)
		if len(w) == 0 || w[0] != "a" && w[0] != "f" {
			continue
		}
		b, known := blocks[w[1]]
		if w[0] == "f" {
			if !known {
				b = -1
			}
			ops = append(ops, op{free: true, block: b})
			continue
		}
		if !known {
			b = len(blocks)
			blocks[w[1]] = b
		}
		n, err := strconv.ParseUint(w[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op{block: b, bytes: n})
	}
	return ops
}

// readLines reads a file, or the one with .gz behind its name.
func readLines(t testing.TB, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	var r io.Reader = f
	if err != nil {
		if f, err = os.Open(path + ".gz"); err == nil {
			r, err = gzip.NewReader(f)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	if sc.Err() != nil {
		t.Fatal(sc.Err())
	}
	return lines
}

// goldenRow is a row of golden.tsv by the names of its columns.
type goldenRow map[string]string

func goldenRows(t testing.TB) []goldenRow {
	t.Helper()
	lines := readLines(t, filepath.Join(golden.Dir(), "pytorch", "golden.tsv"))
	head := strings.Split(lines[0], "\t")
	var rows []goldenRow
	for _, line := range lines[1:] {
		row := goldenRow{}
		for i, field := range strings.Split(line, "\t") {
			row[head[i]] = field
		}
		rows = append(rows, row)
	}
	return rows
}

// total is the device's size.
func (r goldenRow) total(t testing.TB) uint64 {
	t.Helper()
	n, err := size.Parse(r["total"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// policy is how a release was run, as --policy takes it.
func (r goldenRow) policy(t testing.TB, release string) policy.Policy {
	t.Helper()
	spec := "pytorch@" + release
	sep := ":"
	if r["conf"] != "" {
		spec += sep + r["conf"]
		sep = ","
	}
	if r["fraction"] != "" {
		spec += sep + "fraction=" + r["fraction"]
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// runGolden runs a trace and returns the columns.
func runGolden(t testing.TB, p policy.Policy, total uint64, ops []op) goldenRow {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: total})
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder(dev)
	made, err := build.New(rec, p, build.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := made.(*pytorch.Allocator)
	blocks := make([]alloc.Block, len(ops))
	placed := golden.NewDigest()
	refused, first := 0, -1
	for i, o := range ops {
		if o.free {
			if o.block >= 0 {
				if err := a.Free(blocks[o.block]); err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				blocks[o.block] = alloc.Block{}
			}
			continue
		}
		b, err := a.Alloc(alloc.Request{Bytes: o.bytes})
		switch {
		case errors.Is(err, alloc.ErrNoMemory):
			refused++
			if first < 0 {
				first = i
			}
			placed.Add(golden.Refused)
		case err != nil:
			t.Fatalf("event %d: %v", i, err)
		case b.IsZero():
			placed.Add(golden.Refused)
		default:
			placed.Add(b.Addr - rec.base)
		}
		blocks[o.block] = b
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	s, m := a.Stats(), a.MemoryStats()
	out := goldenRow{
		"first_refused": strconv.Itoa(first), "calls_fnv1a64": rec.digest.String(), "placement_fnv1a64": placed.String(),
	}
	for name, n := range map[string]uint64{
		"refused": uint64(refused), "num_ooms": m.OOMs, "num_alloc_retries": m.Retries, "requested_peak": m.RequestedPeak,
		"allocated_end": s.BytesInUse, "allocated_peak": s.PeakBytesInUse, "reserved_end": m.Reserved, "reserved_peak": m.ReservedPeak,
		"reserved_small_end": m.ReservedSmall, "inactive_split_end": m.InactiveSplit, "inactive_split_peak": m.InactiveSplitPeak,
		"segments_end": m.Segments, "segments_peak": m.SegmentsPeak, "segments_made": m.SegmentsMade,
		"oversize_allocs": m.OversizeAllocs, "oversize_segments": m.OversizeSegments,
		"cuda_malloc": uint64(rec.malloc), "cuda_free": uint64(rec.free), "vmm_reserve": uint64(rec.addresses),
		"vmm_create": uint64(rec.create), "vmm_release": uint64(rec.release), "device_refusals": uint64(rec.refused), "calls": uint64(rec.calls),
	} {
		out[name] = strconv.FormatUint(n, 10)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if held, _ := dev.Held(); held != 0 {
		t.Errorf("%d bytes are held after Close", held)
	}
	return out
}

var everyRelease = flag.Bool("every-release", false, "in TestGolden run long traces, too, as every release")

// TestGolden runs every row of golden.tsv and compares all columns: a trace of at most 20,000
// lines for every release that the row names, a longer one for one of them, which is another
// from row to row, or for every one with -every-release. Releases that are one to the
// allocator are run once.
func TestGolden(t *testing.T) {
	traces := map[string][]op{}
	compared, runs := 0, 0
	for i, row := range goldenRows(t) {
		ops, ok := traces[row["trace"]]
		if !ok {
			ops = readTrace(t, row["trace"])
			traces[row["trace"]] = ops
		}
		releases := strings.Split(row["releases"], ",")
		if long := len(ops) > 20_000; long && testing.Short() {
			continue
		} else if long && !*everyRelease {
			k := i % len(releases)
			releases = releases[k : k+1]
		}
		t.Run(fmt.Sprintf("%d %s %s %s", i+2, row["trace"], row["total"], row["setting"]), func(t *testing.T) {
			outcome := map[policy.Policy]goldenRow{}
			for _, release := range releases {
				compared++
				p := row.policy(t, release)
				p.Spec, p.Version = "", ""
				got, ok := outcome[p]
				if !ok {
					runs++
					got = runGolden(t, p, row.total(t), ops)
					outcome[p] = got
				}
				for name, value := range got {
					if row[name] != value {
						t.Errorf("%s: %s = %s, want %s", release, name, value, row[name])
					}
				}
			}
		})
	}
	t.Logf("%d runs for %d of PyTorch's", runs, compared)
	want := 3844
	if *everyRelease {
		want = 4711
	}
	if !testing.Short() && compared != want {
		t.Errorf("%d runs of PyTorch compared, want %d", compared, want)
	}
}
