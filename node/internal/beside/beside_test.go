package beside

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/ledger"
)

// TestMemoryBesideALease refuses a rule that looks at the libraries alone (same mapping), one
// that looks at the figures alone (JAX with a large context, a pool that has just shrunk), and
// one that calls what was wanted (--pool off, GPUMEM_OFF) or cannot be known a bypass.
func TestMemoryBesideALease(t *testing.T) {
	const mib = 1 << 20
	const front, other = "/opt/gpumem/libcuda.so.1", "/home/x/libcuda.so.1"
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	driver, link := filepath.Join(dir, "libcuda.so.550.1"), filepath.Join(dir, "libcuda.so.1")
	if err := errors.Join(os.WriteFile(driver, nil, 0o644), os.Symlink(driver, link)); err != nil {
		t.Fatal(err)
	}
	leased := []string{"GPUMEM_LEASE_ID=ab", "GPUMEM_POOL=elastic", "GPUMEM_LIB=/opt/gpumem", "GPUMEM_LIBCUDA=" + link, "GPUMEM_OUTSIDE=104857600"}
	exact := append(leased[:4:4], "GPUMEM_OUTSIDE=0")
	member := func(held, charged, outside uint64) *ledger.Figures {
		return &ledger.Figures{Held: held * mib, PeakHeld: held * mib, Charged: charged * mib, Outside: outside * mib}
	}
	shrunk := &ledger.Figures{Held: 10 * mib, PeakHeld: 500 * mib}
	unsure := &ledger.Figures{Held: 10 * mib, PeakHeld: 10 * mib, Uncertain: true}
	served := []string{front, driver}
	for _, tc := range []struct {
		name   string
		env    []string
		loaded []string
		used   uint64 // MiB; 0 is unknown
		member *ledger.Figures
		moved  bool   // the ledger may have changed meanwhile
		want   string // of the sentence; "" is none
	}{
		{"served", leased, served, 612, member(512, 0, 100), false, ""},
		{"served, with a stub beside", exact, append(served, "/cuda/stubs/libcuda.so"), 512, member(512, 0, 0), false, ""},
		{"served, larger context than estimated", leased, served, 700, member(512, 0, 100), false, ""},
		{"served, context made and not yet counted", leased, served, 150, nil, false, ""},
		{"served, charged memory", leased, served, 612, member(412, 100, 100), false, ""},
		{"served, pool shrank, and that is not enough", exact, served, 501, shrunk, true, "took 491 MiB beside its lease: the GPU reports"},
		{"served, pool shrank before the GPU was read", exact, served, 490, shrunk, false, "took 480 MiB beside its lease: the GPU reports"},
		{"served, one MiB more", exact, served, 513, member(512, 0, 0), false, "took 1 MiB beside its lease"},
		{"served, charged memory, and more", exact, served, 520, member(10, 500, 0), false, "took 10 MiB beside its lease"},
		{"served, the GPU has nothing of it", exact, append(served, other), 0, member(512, 0, 0), false, "how much is unknown: it has loaded " + other},
		{"served, pool shrank while the GPU was read", exact, served, 490, shrunk, true, ""},
		{"served, charged memory went while the GPU was read", exact, served, 510, member(10, 1, 0), true, ""},
		{"served, memory beside the pool that is not counted to the byte", exact, served, 600, unsure, false, ""},
		{"served, the GPU reports nothing", leased, served, 0, member(512, 0, 100), false, ""},
		{"off by the caller", []string{"GPUMEM_LEASE_ID=ab"}, []string{driver}, 600, nil, false, ""},
		{"library forwards every call", append(leased, "GPUMEM_OFF=1"), served, 600, nil, false, ""},
		{"preloaded, DT_RPATH or absolute path", exact, []string{driver}, 128, nil, false, "took 128 MiB beside its lease: it has loaded " + driver + " and not the pool library"},
		{"the same with a context", leased, []string{driver}, 228, nil, false, "took 228 MiB beside its lease (about 100 MiB of it by its context and its libraries): it has loaded"},
		{"the same, the GPU reports nothing", leased, []string{driver}, 0, nil, false, "may have taken memory beside its lease, how much is unknown: it has loaded " + driver},
		{"static, or a copy of the driver under another name", exact, nil, 128, nil, false, "took 128 MiB beside its lease: it has loaded neither the pool library nor a driver under its name"},
		{"less than a context", leased, []string{driver}, 64, nil, false, "took 64 MiB beside its lease (about 64 MiB of it by its context and its libraries): it has loaded"},
		{"a stub alone", exact, []string{"/cuda/stubs/libcuda.so"}, 128, nil, false, "took 128 MiB beside its lease: it has loaded neither"},
		{"two drivers", exact, []string{driver, other}, 128, nil, false, "it has loaded " + driver + " and " + other + " and not the pool library"},
		{"library forwards no call: 0", append(exact, "GPUMEM_OFF=0"), []string{driver}, 128, nil, false, "took 128 MiB beside its lease: it has loaded"},
		{"a pool that is off", []string{"GPUMEM_LEASE_ID=ab", "GPUMEM_POOL=off"}, []string{driver}, 600, nil, false, ""},
		{"driver behind the library that was not named", slices.Concat(exact[:3], exact[4:]), served, 192, member(64, 0, 0), false, "took 128 MiB beside its lease: the GPU reports"},
		{"second driver, its context as large as the first's", leased, append(served, other), 564, member(64, 0, 300), false, ""},
		{"second driver, context made and not yet counted", leased, append(served, other), 150, nil, false, ""},
		{"within twice a context of more than a quarter of the GPU", leased, served, 2964, member(64, 0, 1500), false, ""},
		{"less than a context beside the library", exact, served, 200, member(64, 0, 100), false, "took 36 MiB beside its lease (about 36 MiB"},
		{"member that no library is seen of", exact, nil, 128, member(64, 0, 0), false, "took 64 MiB beside its lease: the GPU reports"},
		{"another environment", []string{"A=b"}, []string{driver}, 128, nil, false, "took 128 MiB beside its lease: it was started without the environment of the lease, and has loaded " + driver},
		{"another environment, static", []string{"A=b"}, nil, 128, nil, false, "it was started without the environment of the lease"},
		{"same mapping of the driver", exact, served, 192, member(64, 0, 0), false, "took 128 MiB beside its lease: the GPU reports that much more than the ledger counts"},
		{"same mapping, within what may lie outside on a real GPU", leased, served, 512, member(64, 0, 100), false, ""},
		{"same mapping, beyond that", leased, served, 1536, member(64, 0, 100), false, "took 1.34 GiB beside its lease (about 100 MiB"},
		{"second driver on a real GPU", leased, append(served, other), 512, member(64, 0, 100), false, "took 348 MiB beside its lease (about 100 MiB"},
		{"second driver", exact, append(served, other), 192, member(64, 0, 0), false, "took 128 MiB beside its lease: it has loaded " + other + " beside the pool library"},
		{"second driver without memory", exact, append(served, other), 64, member(64, 0, 0), false, ""},
		{"second driver, not counted to the byte, with a context", leased, append(served, other), 192, unsure, false, "how much is unknown: it has loaded " + other},
		{"second driver, not counted to the byte", exact, append(served, other), 192, unsure, false, "how much is unknown: it has loaded " + other},
		{"driver replaced by an upgrade", exact, []string{front, "/usr/lib/libcuda.so.535 (deleted)"}, 192, member(64, 0, 0), false, "took 128 MiB beside its lease: the GPU reports"},
		{"driver in the memory twice", exact, append(served, driver), 192, member(64, 0, 0), false, "it has loaded " + driver + " beside the pool library"},
		{"gone", leased, []string{"gone"}, 128, nil, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			loaded = func(int, string) (list []proc.Library, err error) {
				at := map[string]int{}
				for _, p := range tc.loaded {
					if p == "gone" {
						return nil, errors.New("it has ended")
					}
					if i, twice := at[p]; twice {
						list[i].Copies++
						continue
					}
					at[p] = len(list)
					file, deleted := strings.CutSuffix(p, " (deleted)")
					list = append(list, proc.Library{Path: file, Deleted: deleted, Copies: 1})
				}
				return list, nil
			}
			defer func() { loaded = proc.Loaded }()
			gpu := device.Info{Total: 4096 * mib, Simulated: slices.Contains(tc.env, "GPUMEM_OUTSIDE=0")}
			got := ""
			if b := Of(Process{GPU: gpu, PID: os.Getpid(), Environ: tc.env, Used: tc.used * mib, Known: tc.used > 0, Member: tc.member, Steady: !tc.moved}); b != nil {
				got = b.String()
				if b.Bytes == nil && tc.member != nil && b.Outside != 0 {
					t.Errorf("%d bytes of an unknown number are outside", b.Outside)
				}
			}
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestOutsideIsTheLeasesWhereTheEnvironmentSaysNothing: that of a program that was started by
// env -i was taken for nothing, and its context for memory of its own.
func TestOutsideIsTheLeasesWhereTheEnvironmentSaysNothing(t *testing.T) {
	loaded = func(int, string) ([]proc.Library, error) {
		return []proc.Library{{Path: "/usr/lib/libcuda.so.1", Copies: 1}}, nil
	}
	defer func() { loaded = proc.Loaded }()
	for _, tc := range []struct {
		environ []string
		want    uint64
	}{
		{nil, 300},
		{[]string{"A=b"}, 300},
		{[]string{"GPUMEM_POOL=elastic", "GPUMEM_OUTSIDE=200"}, 200},
		{[]string{"GPUMEM_POOL=elastic", "GPUMEM_OUTSIDE=0"}, 0},
	} {
		b := Of(Process{PID: os.Getpid(), Environ: tc.environ, Used: 1000, Known: true, Outside: 300})
		if b == nil || *b.Bytes != 1000 || b.Outside != tc.want {
			t.Errorf("%q: %+v, want %d outside", tc.environ, b, tc.want)
		}
	}
}

// TestProcessWithoutMemoryTookNone: a GPU lists processes that have a context, and nothing in it yet.
func TestProcessWithoutMemoryTookNone(t *testing.T) {
	loaded = func(int, string) ([]proc.Library, error) {
		return []proc.Library{{Path: "/usr/lib/libcuda.so.1", Copies: 1}}, nil
	}
	defer func() { loaded = proc.Loaded }()
	if b := Of(Process{PID: os.Getpid(), Environ: []string{"GPUMEM_POOL=elastic"}, Known: true}); b != nil {
		t.Errorf("%+v", b)
	}
}
