package overhead

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/node/internal/privdir"
)

// storeIn is a store in a folder.
func storeIn(dir string) Store {
	return Store{func() (*privdir.Dir, error) { return privdir.Open(dir) }}
}

// of is a Key of a framework on some GPU.
func of(framework string) Key {
	return Key{Framework: framework, Release: "1.2", GPU: "sim:24GiB, 24 GiB"}
}

const total = 24 << 30

// bytesOf are the figures by framework.
func bytesOf(list []Figure) map[string]uint64 {
	m := map[string]uint64{}
	for _, f := range list {
		m[f.Framework] = f.Bytes
	}
	return m
}

// TestStoreAgainstLists: against a list for each program and framework.
func TestStoreAgainstLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "store")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		store := storeIn(dir)
		model := map[string]map[string][]uint64{}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			program := rapid.SampledFrom([]string{"a", "python x.py", "ü/\x00"}).Draw(t, "program")
			framework := rapid.SampledFrom([]string{"jax", "pytorch"}).Draw(t, "framework")
			bytes := rapid.Uint64Range(0, 1<<40).Draw(t, "bytes")
			if err := store.Save(program, of(framework), total, Measurement{Bytes: bytes}); err != nil {
				t.Fatal(err)
			}
			if model[program] == nil {
				model[program] = map[string][]uint64{}
			}
			model[program][framework] = append(model[program][framework], min(bytes, total/4))
			want := map[string]uint64{}
			for f, list := range model[program] {
				most := uint64(0)
				for i, n := range list {
					if i >= len(list)-8 && n > most {
						most = n
					}
				}
				want[f] = min(most+most/8, total/4)
			}
			got, err := store.Load(program)
			if err != nil || !maps.Equal(bytesOf(got), want) {
				t.Fatalf("%q: got %v, %v; want %v", program, got, err, want)
			}
		}
	})
}

// TestFigureIsBoundAndSaysWhere: what was taken beside the pool in a run once made the next run
// impossible, since all of it was believed to lie outside.
func TestFigureIsBoundAndSaysWhere(t *testing.T) {
	store := storeIn(t.TempDir())
	when := time.Date(2026, 11, 28, 11, 0, 0, 0, time.UTC)
	for i, bytes := range []uint64{20 << 30, 1 << 30} {
		if err := store.Save("/bin/x", of("jax"), total, Measurement{Bytes: bytes, When: when.AddDate(0, 0, i), Run: "ab12"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Load("/bin/x")
	if err != nil || len(list) != 1 || list[0].Bytes != 6<<30 {
		t.Fatalf("%+v, %v; want 6 GiB, a quarter of the GPU", list, err)
	}
	if from := list[0].From(); !strings.HasPrefix(from, "measured in 2 runs, the last 2026-11-") || !strings.HasSuffix(from, ", lease ab12; cut from 20 GiB to 6 GiB, a quarter of the GPU: more is memory beside the pool that nothing counted") {
		t.Error(from)
	}
}

// TestStoreKeepsReleasesAndGPUsApart: a figure of one is not the other's.
func TestStoreKeepsReleasesAndGPUsApart(t *testing.T) {
	store := storeIn(t.TempDir())
	for i, k := range []Key{{"jax", "1", "a"}, {"jax", "2", "a"}, {"jax", "1", "b"}} {
		if err := store.Save("/bin/x", k, total, Measurement{Bytes: uint64(i+1) * 800}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Load("/bin/x")
	if err != nil || len(list) != 3 || list[0].Bytes != 900 || list[1].Bytes != 1800 || list[2].Bytes != 2700 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestForget: by a program's whole name, by a file's, or all; no other program is forgotten.
func TestForget(t *testing.T) {
	const python, other, third = "/usr/bin/python3 /home/me/train.py", "/usr/bin/python3 /home/you/train.py", "/bin/train"
	for _, tc := range []struct {
		name string
		want []string
		left int
	}{
		{python, []string{python}, 2},
		{"train.py", []string{python, other}, 1},
		{"train", []string{third}, 2},
		{"/home/you/train.py", []string{other}, 2},
		{"rain", nil, 3},
		{"", nil, 3},
		{"all", []string{third, python, other}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			store := storeIn(dir)
			for _, p := range []string{python, other, third} {
				if err := store.Save(p, of("jax"), total, Measurement{Bytes: 1}); err != nil {
					t.Fatal(err)
				}
			}
			// Of an earlier release: not listed, and removed with all.
			if err := os.WriteFile(filepath.Join(dir, "00.json"), []byte(`{"format":1,"program":"pitch","outside_pool_bytes":{"cuda":[1]}}`), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := store.Forget(tc.name)
			if !slices.Equal(got, tc.want) || (err != nil) != (tc.want == nil) {
				t.Errorf("forgot %q, %v; want %q", got, err, tc.want)
			}
			if list, err := store.List(); len(list) != tc.left || err != nil {
				t.Errorf("%d are left, %v; want %d", len(list), err, tc.left)
			}
			if files, _ := os.ReadDir(dir); tc.left == 0 && len(files) != 0 {
				t.Errorf("files are left: %v", files)
			}
		})
	}
}

// TestStoreDamaged: what is damaged counts as nothing, says so, and is replaced.
func TestStoreDamaged(t *testing.T) {
	dir := t.TempDir()
	l := storeIn(dir)
	if list, err := l.Load("prog"); len(list) != 0 || err != nil {
		t.Errorf("never measured: %v, %v", list, err)
	}
	save := func() {
		t.Helper()
		if err := l.Save("prog", of("jax"), total, Measurement{Bytes: 800}); err != nil {
			t.Fatal(err)
		}
	}
	save()
	file := filepath.Join(dir, fileName("prog"))
	const head = `{"format":2,"program":"prog","of":[{"framework":"jax","gpu":"x","total_bytes":4096,"runs":`
	for name, text := range map[string]string{
		"empty": "", "cut off": `{"format":2,"prog`, "another program's": `{"format":2,"program":"other"}`, "newer": `{"format":3,"program":"prog"}`,
		"a minus": head + `[{"bytes":-1}]}]}`, "too much": head + `[{"bytes":1,"measured_bytes":18446744073709551615}]}]}`,
		"above the bound": head + `[{"bytes":1025,"measured_bytes":1025}]}]}`, "no measurement": head + `[]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			list, err := l.Load("prog")
			if len(list) != 0 || err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, %v", list, err)
			}
			save()
			if list, err := l.Load("prog"); err != nil || bytesOf(list)["jax"] != 900 {
				t.Errorf("then %v, %v", list, err)
			}
		})
	}
	if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if list, err := l.Load("prog"); len(list) != 0 {
		t.Errorf("where all may write: %v, %v", list, err)
	}
	if err := l.Save("prog", of("jax"), total, Measurement{Bytes: 1}); err == nil {
		t.Error("saved where all may write")
	}
}

// TestProgramWithoutANameIsNotMeasured: a Python that reads its program from standard input
// runs another one each time.
func TestProgramWithoutANameIsNotMeasured(t *testing.T) {
	store := storeIn(t.TempDir())
	if err := store.Save("", of("jax"), total, Measurement{Bytes: 1}); err != nil {
		t.Error(err)
	}
	if list, err := store.List(); len(list) != 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// TestStoreAtOnce: whoever reads meanwhile sees a whole file.
func TestStoreAtOnce(t *testing.T) {
	dir := t.TempDir()
	store := storeIn(dir)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 20 {
				if err := store.Save("prog", of("jax"), total, Measurement{Bytes: uint64(800 + i)}); err != nil {
					t.Error(err)
				}
				if list, err := store.Load("prog"); err != nil || bytesOf(list)["jax"] < 900 {
					t.Errorf("%v, %v", list, err)
				}
			}
		})
	}
	wg.Wait()
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// FuzzStore: whatever is in the file, it is read within its bounds or not at all.
func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"format":2,"program":"prog","of":[{"framework":"jax","release":"1","gpu":"x","total_bytes":4096,"runs":[{"bytes":1,"measured_bytes":2}]}]}`))
	f.Add([]byte(`{"format":1,"program":"prog","outside_pool_bytes":{"jax":[1,2]}}`))
	f.Add([]byte(`{"format":2,"program":"prog","of":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse("file", data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		for i, g := range file.figures() {
			if g.Framework == "" || len(g.Measurements) == 0 || len(g.Measurements) > kept || g.Bytes > Bound(file.Of[i].Total) || g.From() == "" {
				t.Errorf("%q gives %v", data, g)
			}
		}
	})
}
