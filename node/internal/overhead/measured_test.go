package overhead

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/device"
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

var gpu = device.Info{Name: "x", Total: total}

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
			if err := store.Save(program, of(framework), gpu, Measurement{Bytes: bytes}); err != nil {
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
		if err := store.Save("/bin/x", of("jax"), gpu, Measurement{Bytes: bytes, When: when.AddDate(0, 0, i), Run: "ab12"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Load("/bin/x")
	if err != nil || len(list) != 1 || list[0].Bytes != 6<<30 {
		t.Fatalf("%+v, %v; want 6 GiB, a quarter of the GPU", list, err)
	}
	const cut = ", lease ab12: at most 20 GiB, cut to 6 GiB, the most that is believed of this GPU: more is memory beside the pool that nothing counted"
	if from := list[0].From(); !strings.HasPrefix(from, "measured in 2 runs, the last 2026-11-") || !strings.HasSuffix(from, cut) {
		t.Error(from)
	}
}

// TestFromSaysWhatWasAdded: the figure beside it was an eighth more than what was measured, and
// the text did not say so.
func TestFromSaysWhatWasAdded(t *testing.T) {
	const gib = 1 << 30
	real, simulated := gpu, gpu
	simulated.Simulated, simulated.Context = true, 8*gib
	for _, tc := range []struct {
		name     string
		gpu      device.Info
		measured []uint64
		bytes    uint64
		from     string
	}{
		{"once", real, []uint64{4 * gib}, 4*gib + gib/2, "once, DATE, lease ab12: 4 GiB, and an eighth more"},
		{"the most of two", real, []uint64{4 * gib, 2 * gib}, 4*gib + gib/2, "in 2 runs, the last DATE, lease ab12: at most 4 GiB, and an eighth more"},
		{"near a quarter", real, []uint64{6*gib - gib/4}, 6 * gib, "once, DATE, lease ab12: 5.75 GiB, and of an eighth more what a quarter of the GPU has"},
		{"a quarter to the byte", real, []uint64{16*gib/3 + 1}, 6 * gib, "once, DATE, lease ab12: 5.33 GiB, and an eighth more"},
		{"simulated", simulated, []uint64{4 * gib}, 4 * gib, "once, DATE, lease ab12: 4 GiB"},
		{"simulated, a context of more than a quarter", simulated, []uint64{8 * gib}, 8 * gib, "once, DATE, lease ab12: 8 GiB"},
		{"simulated, more than the context", simulated, []uint64{9 * gib}, 8 * gib,
			"once, DATE, lease ab12: 9 GiB, cut to 8 GiB, the most that is believed of this GPU: more is memory beside the pool that nothing counted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := storeIn(t.TempDir())
			when := time.Date(2026, 11, 28, 11, 0, 0, 0, time.Local)
			for _, n := range tc.measured {
				if err := store.Save("/bin/x", of("jax"), tc.gpu, Measurement{Bytes: n, When: when, Run: "ab12"}); err != nil {
					t.Fatal(err)
				}
			}
			list, err := store.Load("/bin/x")
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			from := strings.Replace(list[0].From(), "2026-11-28 11:00", "DATE", 1)
			if list[0].Bytes != tc.bytes || from != "measured "+tc.from {
				t.Errorf("%d, %q;\nwant %d, %q", list[0].Bytes, from, tc.bytes, "measured "+tc.from)
			}
		})
	}
}

// TestNextRunIsGivenNoMoreThanTheOneBefore: with an eighth more than was measured its pool was
// smaller, and the program that had filled its lease failed in the same lease the second time.
// More is only what was measured: that run exceeded its lease.
func TestNextRunIsGivenNoMoreThanTheOneBefore(t *testing.T) {
	const unknown = 1<<64 - 1
	type run struct{ bytes, given uint64 }
	for _, tc := range []struct {
		name string
		runs []run
		want uint64
		from string
	}{
		{"room for the eighth", []run{{800, 1000}}, 900, ", and an eighth more"},
		{"room for the eighth to the byte", []run{{800, 900}}, 900, ", and an eighth more"},
		{"room for less", []run{{800, 899}}, 899, ", and of an eighth more what a run was given"},
		{"no room", []run{{800, 800}}, 800, ", and no eighth more, for which a run was given no room"},
		{"more than it was given", []run{{800, 500}}, 800, ", and no eighth more, for which a run was given no room"},
		{"given nothing", []run{{800, 0}}, 800, ", and no eighth more, for which a run was given no room"},
		{"unknown", []run{{800, unknown}}, 900, ", and an eighth more"},
		{"the least of several", []run{{800, 850}, {700, 2000}, {600, unknown}}, 850, ", and of an eighth more what a run was given"},
		{"a quarter of the GPU", []run{{6<<30 - 1, 6<<30 + 1}}, 6 << 30, ", and of an eighth more what a quarter of the GPU has"},
		{"a larger one since", []run{{700, 750}, {800, 2000}}, 800, ", and no eighth more, for which a run was given no room"},
	} {
		store := storeIn(t.TempDir())
		for _, r := range tc.runs {
			m := Measurement{Bytes: r.bytes, Given: &r.given}
			if r.given == unknown {
				m.Given = nil
			}
			if err := store.Save("/bin/x", of("jax"), gpu, m); err != nil {
				t.Fatal(err)
			}
		}
		list, err := store.Load("/bin/x")
		if err != nil || len(list) != 1 || list[0].Bytes != tc.want {
			t.Errorf("%s: %+v, %v, want %d", tc.name, list, err, tc.want)
		} else if from := list[0].From(); !strings.HasSuffix(from, tc.from) {
			t.Errorf("%s: %q, want %q", tc.name, from, tc.from)
		}
	}
}

// TestStoreKeepsReleasesAndGPUsApart: a figure of one is not the other's.
func TestStoreKeepsReleasesAndGPUsApart(t *testing.T) {
	store := storeIn(t.TempDir())
	for i, k := range []Key{{"jax", "1", "a"}, {"jax", "2", "a"}, {"jax", "1", "b"}} {
		if err := store.Save("/bin/x", k, gpu, Measurement{Bytes: uint64(i+1) * 800}); err != nil {
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
	const blanks, module, code = "/usr/bin/python3 /home/my jobs/train.py x.py", "/opt/my python/bin/python3 -m pkg.train", "/bin/sh -c 0123456789ab"
	programs := []string{python, other, third, blanks, module, code}
	for _, tc := range []struct {
		name string
		want []string
		left int
	}{
		{python, []string{python}, 5},
		{"train.py", []string{python, other}, 4},
		{"train", []string{third}, 5},
		{"/home/you/train.py", []string{other}, 5},
		{"train.py x.py", []string{blanks}, 5},
		{"/home/my jobs/train.py x.py", []string{blanks}, 5},
		{"python3", []string{module, python, blanks, other}, 2},
		{"/opt/my python/bin/python3", []string{module}, 5},
		{"-m pkg.train", []string{module}, 5},
		{"pkg.train", []string{module}, 5},
		{"-c 0123456789ab", []string{code}, 5},
		{"0123456789ab", nil, 6},
		{"rain", nil, 6},
		{"my", nil, 6},
		{"x.py", nil, 6},
		{"-m", nil, 6},
		{"", nil, 6},
		{"all", []string{code, third, module, python, blanks, other}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			store := storeIn(dir)
			for _, p := range programs {
				if err := store.Save(p, of("jax"), gpu, Measurement{Bytes: 1}); err != nil {
					t.Fatal(err)
				}
			}
			// Of an earlier release: not listed, and removed with all.
			if err := os.WriteFile(filepath.Join(dir, "00.json"), []byte(`{"format":1,"program":"pitch","outside_pool_bytes":{"cuda":[1]}}`), 0o644); err != nil {
				t.Fatal(err)
			}
			got, note, err := store.Forget(tc.name)
			if note != nil {
				t.Error(note)
			}
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

// TestForgetWithDamagedFiles: one that a whole name stands for is removed, of others it is said that
// they are left, as it is when nothing of that name is there.
func TestForgetWithDamagedFiles(t *testing.T) {
	for _, tc := range []struct {
		name  string
		want  []string
		noted bool
		err   string
	}{
		{"/bin/x", []string{"/bin/x"}, true, ""},
		{"/bin/y", []string{"/bin/y"}, false, ""},
		{"x", []string{"/bin/x"}, true, ""},
		{"y", nil, true, `forget "y": no program of that name was measured; gpumem ps --overhead lists those that were`},
		{"all", []string{"/bin/x"}, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			store := storeIn(dir)
			if err := store.Save("/bin/x", of("jax"), gpu, Measurement{Bytes: 1}); err != nil {
				t.Fatal(err)
			}
			damaged := filepath.Join(dir, fileName("/bin/y"))
			if err := os.WriteFile(damaged, []byte("{"), 0o644); err != nil {
				t.Fatal(err)
			}
			got, note, err := store.Forget(tc.name)
			said := ""
			if err != nil {
				said = err.Error()
			}
			if !slices.Equal(got, tc.want) || (note != nil) != tc.noted || said != tc.err {
				t.Errorf("forgot %q, %v, %v; want %q, a note %t, %q", got, note, err, tc.want, tc.noted, tc.err)
			}
			if note != nil && !strings.HasPrefix(note.Error(), damaged+" is damaged") {
				t.Error(note)
			}
		})
	}
	const none = `forget "x": no program of that name was measured; none was`
	if _, note, err := storeIn(t.TempDir()).Forget("x"); note != nil || err == nil || err.Error() != none {
		t.Errorf("%v, %v", note, err)
	}
}

// TestListSaysWhatCannotBeRead: a folder that is not private has measurements that are not used.
func TestListSaysWhatCannotBeRead(t *testing.T) {
	store := Store{func() (*privdir.Dir, error) { return nil, errors.New("not private") }}
	if list, err := store.List(); len(list) != 0 || err == nil || !strings.HasSuffix(err.Error(), ": not private") {
		t.Errorf("%v, %v", list, err)
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
		if err := l.Save("prog", of("jax"), gpu, Measurement{Bytes: 800}); err != nil {
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
	if err := l.Save("prog", of("jax"), gpu, Measurement{Bytes: 1}); err == nil {
		t.Error("saved where all may write")
	}
}

// TestProgramWithoutANameIsNotMeasured: a Python that reads its program from standard input
// runs another one each time.
func TestProgramWithoutANameIsNotMeasured(t *testing.T) {
	store := storeIn(t.TempDir())
	if err := store.Save("", of("jax"), gpu, Measurement{Bytes: 1}); err != nil {
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
				if err := store.Save("prog", of("jax"), gpu, Measurement{Bytes: uint64(800 + i)}); err != nil {
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

// TestParseRefuses: what no run of this program wrote is not believed, whichever part of it.
func TestParseRefuses(t *testing.T) {
	file := func(program string, kinds int, total, context string, runs int) string {
		one := fmt.Sprintf(`{"framework":"jax","gpu":"x","total_bytes":%s,"context_bytes":%s,"runs":[%s]}`,
			total, context, strings.TrimSuffix(strings.Repeat(`{"bytes":1,"measured_bytes":1},`, runs), ","))
		return fmt.Sprintf(`{"format":2,"program":%q,"of":[%s]}`, program, strings.TrimSuffix(strings.Repeat(one+",", kinds), ","))
	}
	const most, tooMuch = "1125899906842624", "1125899906842625"
	for _, tc := range []struct{ name, text, want string }{
		{"the largest", file("x", mostKeys, most, most, kept), ""},
		{"no program", file("", 1, "4096", "0", 1), "of no program"},
		{"too many GPUs", file("x", mostKeys+1, "4096", "0", 1), "too many GPUs and releases"},
		{"too many runs", file("x", 1, "4096", "0", kept+1), "measurements missing or too many"},
		{"no run", file("x", 1, "4096", "0", 0), "measurements missing or too many"},
		{"too large a GPU", file("x", 1, tooMuch, "0", 1), "more bytes than any GPU has"},
		{"too large a context", file("x", 1, "4096", tooMuch, 1), "more bytes than any GPU has"},
		{"no framework", strings.Replace(file("x", 1, "4096", "0", 1), "jax", "", 1), "measurements missing or too many"},
		{"no GPU", strings.Replace(file("x", 1, "4096", "0", 1), `"gpu":"x"`, `"gpu":""`, 1), "measurements missing or too many"},
	} {
		m, err := parse("file", []byte(tc.text))
		switch {
		case tc.want == "" && (err != nil || len(m.Of) != mostKeys):
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want+")")):
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
	}
}

// TestStoreKeepsItsBounds: of more GPUs and releases than a file may have the last are kept, and
// the file is one that is read.
func TestStoreKeepsItsBounds(t *testing.T) {
	store := storeIn(t.TempDir())
	for i := range mostKeys + 1 {
		if err := store.Save("/bin/x", Key{"jax", fmt.Sprint(i), "a"}, gpu, Measurement{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Load("/bin/x")
	if err != nil || len(list) != mostKeys || list[0].Release != "1" || list[mostKeys-1].Release != fmt.Sprint(mostKeys) {
		t.Errorf("%d figures from %v on, %v", len(list), list[:1], err)
	}
}

// TestContextOfARealGPUIsNoBound: only on a simulated one it is all that lies outside.
func TestContextOfARealGPUIsNoBound(t *testing.T) {
	store := storeIn(t.TempDir())
	if err := store.Save("/bin/x", of("jax"), device.Info{Total: total, Context: total / 2}, Measurement{Bytes: total / 2}); err != nil {
		t.Fatal(err)
	}
	list, err := store.Load("/bin/x")
	if err != nil || len(list) != 1 || list[0].Bytes != total/4 {
		t.Errorf("%+v, %v; want a quarter", list, err)
	}
}

// TestListIsSorted: by program, whatever the names of the files.
func TestListIsSorted(t *testing.T) {
	store := storeIn(t.TempDir())
	var want, got []string
	for i := range 20 {
		program := fmt.Sprintf("/bin/%02d", i)
		want = append(want, program)
		if err := store.Save(program, of("jax"), gpu, Measurement{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.List()
	for _, f := range list {
		got = append(got, f.Program)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestGPUName: a simulated GPU is another with another context.
func TestGPUName(t *testing.T) {
	for _, tc := range []struct {
		info device.Info
		want string
	}{
		{device.Info{Name: "H100", Total: 80 << 30}, "H100, 80 GiB"},
		{device.Info{Name: "H100", Total: 80 << 30, Context: 1 << 20}, "H100, 80 GiB"},
		{device.Info{Name: "sim", Total: 1 << 30, Simulated: true}, "sim, 1 GiB"},
		{device.Info{Name: "sim", Total: 1 << 30, Simulated: true, Context: 1 << 20}, "sim, 1 GiB, context 1 MiB"},
	} {
		if got := GPUName(tc.info); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
