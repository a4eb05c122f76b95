package overhead

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"gpumem/node/internal/privdir"
)

// storeIn is a store in a folder.
func storeIn(dir string) Store {
	return Store{func() (*privdir.Dir, error) { return privdir.Open(dir) }}
}

// TestStore: against a list for each program and framework.
func TestStore(t *testing.T) {
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
			if err := store.Save(program, framework, bytes); err != nil {
				t.Fatal(err)
			}
			if model[program] == nil {
				model[program] = map[string][]uint64{}
			}
			model[program][framework] = append(model[program][framework], bytes)
			want := map[string]uint64{}
			for f, list := range model[program] {
				most := uint64(0)
				for i, n := range list {
					if i >= len(list)-8 && n > most {
						most = n
					}
				}
				want[f] = most + most/8
			}
			got, err := store.Load(program)
			if err != nil || !maps.Equal(got, want) {
				t.Fatalf("%q: got %v, %v; want %v", program, got, err, want)
			}
		}
	})
}

// TestStoreDamaged: what is damaged counts as nothing, says so, and is replaced.
func TestStoreDamaged(t *testing.T) {
	dir := t.TempDir()
	l := storeIn(dir)
	if room, err := l.Load("prog"); len(room) != 0 || err != nil {
		t.Errorf("never measured: %v, %v", room, err)
	}
	save := func() {
		t.Helper()
		if err := l.Save("prog", "jax", 800); err != nil {
			t.Fatal(err)
		}
	}
	save()
	file := filepath.Join(dir, fileName("prog"))
	for name, text := range map[string]string{
		"empty": "", "cut off": `{"format":1,"prog`, "another program's": `{"format":1,"program":"other"}`, "newer": `{"format":2,"program":"prog"}`,
		"a minus": `{"format":1,"program":"prog","outside_pool_bytes":{"jax":[-1]}}`, "too much": `{"format":1,"program":"prog","outside_pool_bytes":{"jax":[18446744073709551615]}}`,
		"no measurement": `{"format":1,"program":"prog","outside_pool_bytes":{"jax":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			room, err := l.Load("prog")
			if len(room) != 0 || err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, %v", room, err)
			}
			save()
			if room, err := l.Load("prog"); err != nil || room["jax"] != 900 {
				t.Errorf("then %v, %v", room, err)
			}
		})
	}
	if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if room, err := l.Load("prog"); len(room) != 0 {
		t.Errorf("where all may write: %v, %v", room, err)
	}
	if err := l.Save("prog", "jax", 1); err == nil {
		t.Error("saved where all may write")
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
				if err := store.Save("prog", "jax", uint64(800+i)); err != nil {
					t.Error(err)
				}
				if room, err := store.Load("prog"); err != nil || room["jax"] < 900 {
					t.Errorf("%v, %v", room, err)
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
	f.Add([]byte(`{"format":1,"program":"prog","outside_pool_bytes":{"jax":[1,2]}}`))
	f.Add([]byte(`{"format":1,"program":"prog","outside_pool_bytes":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse("file", "prog", data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		for framework, list := range file.Bytes {
			if framework == "" || len(list) == 0 || len(list) > kept {
				t.Errorf("%q gives %v", data, file)
			}
		}
	})
}
