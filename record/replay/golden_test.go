package replay_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/golden"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

// TestGolden replays each recorded run of the original allocator the way a user
// would: the file, a policy and a device in words. What came out there must come
// out here.
func TestGolden(t *testing.T) {
	rows, err := golden.Rows()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 35 {
		t.Fatalf("%d rows, want 35", len(rows))
	}
	traces := map[string]*trace.Trace{}
	for _, row := range rows {
		if traces[row.Trace] == nil {
			name := filepath.Join(golden.Dir(), "bfc", row.Trace+".txt")
			if _, err := os.Stat(name); err != nil {
				name += ".gz"
			}
			traces[row.Trace] = file(t, name)
		}
		t.Run(row.Name, func(t *testing.T) {
			if slow && traces[row.Trace].Events > 200_000 {
				t.Skip("long, and nothing in it is concurrent")
			}
			device, policy := words(row)
			r := run(t, traces[row.Trace], config(t, device, policy)).Results[0]
			if diff := cmp.Diff(row.Out, columns(r)); diff != "" {
				t.Errorf("%s on %s (-original +ours)\n%s", policy, device, diff)
			}
			if r.Fits != (r.Refused == 0) || (r.FirstRefused == nil) != r.Fits {
				t.Errorf("fits %v, refused %d, first %v", r.Fits, r.Refused, r.FirstRefused)
			}
		})
	}
}

// TestGoldenOfPyTorch replays the runs of PyTorch's own allocator, each as one of the releases
// that it was the same in: every placement, counted from the first that its device gave, is
// where it was there. Expandable segments lie in reservations, the others in grants.
func TestGoldenOfPyTorch(t *testing.T) {
	rows := pytorchRows(t)
	traces := map[string]*trace.Trace{}
	compared := 0
	for i, row := range rows {
		name := row["trace"]
		if traces[name] == nil {
			traces[name] = text(t, lines(t, filepath.Join(golden.Dir(), filepath.FromSlash(name))+".txt"))
		}
		if traces[name].Events > 20_000 { // TestGolden of alloc/internal/pytorch has those
			continue
		}
		compared++
		total, err := size.Parse(row["total"])
		if err != nil {
			t.Fatal(err)
		}
		releases := strings.Split(row["releases"], ",")
		policy, separator := "pytorch@"+releases[i%len(releases)], ":"
		if row["conf"] != "" {
			policy, separator = policy+":conf="+strings.ReplaceAll(row["conf"], ",", ";"), ","
		}
		if row["fraction"] != "" {
			policy += separator + "fraction=" + row["fraction"]
		}
		cfg := config(t, fmt.Sprintf("sim:%d", total), policy)
		cfg.Untimed = true
		r := run(t, traces[name], cfg).Results[0]
		if got := strconv.FormatUint(r.Refused, 10); r.Digest != row["placement_fnv1a64"] || got != row["refused"] {
			t.Errorf("%s on %s: %s: digest %s, refused %s; PyTorch: %s, %s",
				name, row["total"], policy, r.Digest, got, row["placement_fnv1a64"], row["refused"])
		}
	}
	if compared != 409 {
		t.Errorf("%d runs compared, want 409", compared)
	}
}

// pytorchRows reads PyTorch's golden.tsv, rows by the names of the columns.
func pytorchRows(t *testing.T) (rows []map[string]string) {
	t.Helper()
	all := strings.Split(strings.TrimSpace(lines(t, filepath.Join(golden.Dir(), "pytorch", "golden.tsv"))), "\n")
	head := strings.Split(all[0], "\t")
	for _, line := range all[1:] {
		row := map[string]string{}
		for i, field := range strings.Split(line, "\t") {
			row[head[i]] = field
		}
		rows = append(rows, row)
	}
	return rows
}

// lines returns a text file, or the one with .gz behind its name, less the free of an id
// that was never allocated: the original does nothing there, and a replay refuses it.
func lines(t *testing.T, name string) string {
	t.Helper()
	var r io.Reader
	f, err := os.Open(name)
	r = f
	if err != nil {
		if f, err = os.Open(name + ".gz"); err == nil {
			r, err = gzip.NewReader(f)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(all), "\nf nosuch\n", "\n", 1)
}

// words says a row's options as --device and --policy.
func words(row golden.Row) (device, policy string) {
	device = fmt.Sprintf("sim:%d,granularity=%d", row.DeviceTotal, row.Granularity)
	policy = fmt.Sprintf("bfc:limit=%d", row.Limit)
	if row.Limit%(1<<30) == 0 { // units are read as well
		policy = fmt.Sprintf("bfc:limit=%dGiB", row.Limit>>30)
	}
	if row.Growth {
		policy += ",preallocate=false"
	}
	if row.Spatial {
		policy += ",spatial=true"
	}
	if row.GC {
		policy += ",gc=true"
	}
	if row.Coalesce {
		policy += ",coalesce=true"
	}
	if row.Frag != 0 {
		policy += fmt.Sprintf(",fragmentation=%v", row.Frag)
	}
	if row.Align != 0 {
		policy += fmt.Sprintf(",align=%d", row.Align)
	}
	return device, policy
}

// columns are a result in the names and forms of golden.tsv.
func columns(r *replay.Result) map[string]string {
	u := func(n uint64) string { return strconv.FormatUint(n, 10) }
	s := r.Stats
	return map[string]string{
		"oom": u(r.Refused), "num_allocs": strconv.FormatInt(s.NumAllocs, 10),
		"bytes_in_use": u(s.BytesInUse), "peak_bytes_in_use": u(s.PeakBytesInUse),
		"largest_alloc_size": u(s.LargestAllocSize), "bytes_limit": u(s.BytesLimit),
		"largest_free_block_bytes": u(s.LargestFreeBlock),
		"pool_bytes":               u(s.PoolBytes), "peak_pool_bytes": u(s.PeakPoolBytes),
		"fragmentation":     strconv.FormatFloat(r.Fragmentation, 'g', 9, 64),
		"placement_fnv1a64": r.Digest,
	}
}
