package shared

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/internal/ofd"
	"gpumem/internal/proc"
)

// plain is a device of 1000 bytes, 900 of which are free.
func plain() Descriptor {
	return Descriptor{Name: "sim", Total: 1000, Granularity: 2, Used: 40, Display: 60, Context: 5, CCMajor: 9}
}

// makeFile makes a file of the devices, or of two plain ones.
func makeFile(t testing.TB, devs ...Descriptor) string {
	t.Helper()
	if devs == nil {
		devs = []Descriptor{plain(), plain()}
	}
	path := filepath.Join(t.TempDir(), "gpu")
	must(t, Create(path, devs))
	return path
}

func openFile(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// look looks and checks what holds at every look.
func look(t reporter, path string) []State {
	t.Helper()
	states, err := Look(path)
	must(t, err)
	for i, s := range states {
		if s.Free+s.Used != s.Device.Total {
			t.Fatalf("device %d: free %d + used %d is not %d", i, s.Free, s.Used, s.Device.Total)
		}
		sum := s.Device.Display + s.Device.Used
		for _, p := range s.Processes {
			if sum += p.Used; p.Used == 0 || !p.Known || p.Kind != "compute" {
				t.Fatalf("device %d: process %+v", i, p)
			}
		}
		if sum != s.Used {
			t.Fatalf("device %d: display, others and processes hold %d, used is %d: %+v", i, sum, s.Used, s)
		}
	}
	return states
}

func TestCreateAndOpen(t *testing.T) {
	all := Descriptor{
		Name: "NVIDIA é 1", Total: MaxTotal, Granularity: 1 << 40, Used: 1 << 50, Display: 7, Context: 1 << 30, Host: 1<<64 - 1,
		CCMajor: 12, CCMinor: 1, NoPages: true, NoPools: true, NoManaged: true, Unified: true, MIG: "1g.10gb",
	}
	devs := []Descriptor{plain(), all}
	path := makeFile(t, devs...)
	f := openFile(t, path)
	if diff := cmp.Diff(devs, f.Devices()); diff != "" {
		t.Error("devices (-want +got):\n" + diff)
	}
	f.Devices()[0].Name = "mine" // a copy
	if f.Devices()[0].Name != "sim" {
		t.Error("Devices gives its own slice away")
	}
	states := look(t, path)
	if diff := cmp.Diff(devs, []Descriptor{states[0].Device, states[1].Device}); diff != "" {
		t.Error("devices by Look (-want +got):\n" + diff)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 || st.Size() != int64(fileSize) {
		t.Errorf("the file is %v of %d bytes, %v", st.Mode(), st.Size(), err)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("files left beside it: %v", files)
	}
	before, _ := os.ReadFile(path)
	err := Create(path, devs)
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "remove the file first") {
		t.Errorf("made twice: %v", err)
	}
	if after, _ := os.ReadFile(path); !slices.Equal(before, after) {
		t.Error("the second Create wrote to the file")
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(path, link))
	must(t, openFile(t, link).Take(0, 900))
	if err := f.Take(0, 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("take what was taken through a symbolic link: %v", err)
	}
}

// bad are descriptions that neither Create nor Open takes.
var bad = []struct {
	name  string
	alter func(*Descriptor)
	want  string
}{
	{"no memory", func(d *Descriptor) { d.Total = 0 }, "total 0"},
	{"too much memory", func(d *Descriptor) { d.Total = MaxTotal + 1 }, "total"},
	{"no granularity", func(d *Descriptor) { d.Granularity = 0 }, "granularity 0"},
	{"granularity", func(d *Descriptor) { d.Granularity = 1<<40 + 1 }, "granularity"},
	{"display", func(d *Descriptor) { d.Display = 1001 }, "display"},
	{"context", func(d *Descriptor) { d.Context = 1001 }, "context"},
	{"major", func(d *Descriptor) { d.CCMajor = 100 }, "capability 100.0"},
	{"minor", func(d *Descriptor) { d.CCMinor = 10 }, "capability 9.10"},
	{"no name", func(d *Descriptor) { d.Name = "" }, "name"},
	{"name not printable", func(d *Descriptor) { d.Name = "a\nb" }, "name"},
	{"name no text", func(d *Descriptor) { d.Name = "\xff" }, "name"},
	{"slice not printable", func(d *Descriptor) { d.MIG = "\x1b[2J" }, "slice name"},
}

func TestCreateErrors(t *testing.T) {
	for _, tc := range append(bad[:len(bad):len(bad)], []struct {
		name  string
		alter func(*Descriptor)
		want  string
	}{
		{"used", func(d *Descriptor) { d.Used = 941 }, "used"},
		{"used and display overflow", func(d *Descriptor) { d.Used = math.MaxUint64 }, "used"},
		{"major below 0", func(d *Descriptor) { d.CCMajor = -1 }, "capability"},
		{"minor below 0", func(d *Descriptor) { d.CCMinor = -1 }, "capability"},
		{"long name", func(d *Descriptor) { d.Name = strings.Repeat("n", 129) }, "name"},
		{"long slice", func(d *Descriptor) { d.MIG = strings.Repeat("n", 65) }, "slice"},
	}...) {
		t.Run(tc.name, func(t *testing.T) {
			d := plain()
			tc.alter(&d)
			path := filepath.Join(t.TempDir(), "gpu")
			err := Create(path, []Descriptor{plain(), d})
			if err == nil || !strings.Contains(err.Error(), "sim@"+path+": device 1: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Error("there is a file")
			}
		})
	}
	path := filepath.Join(t.TempDir(), "gpu")
	for _, n := range []int{0, 17} {
		if err := Create(path, make([]Descriptor, n)); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n, " devices")) {
			t.Errorf("%d devices: %v", n, err)
		}
	}
	if err := Create(filepath.Join(path, "gpu"), []Descriptor{plain()}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	d := plain()
	d.Name, d.MIG = strings.Repeat("n", 128), strings.Repeat("m", 64)
	if got := openFile(t, makeFile(t, d)).Devices()[0]; got.Name != d.Name || got.MIG != d.MIG {
		t.Errorf("the longest names came back as %q and %q", got.Name, got.MIG)
	}
}

// TestBooks: what two Files in one process hold.
func TestBooks(t *testing.T) {
	path := makeFile(t)
	a, b := openFile(t, path), openFile(t, path)
	free := func(want uint64) {
		t.Helper()
		for _, f := range []*File{a, b} {
			if got, err := f.Free(0); got != want || err != nil {
				t.Errorf("free %d, %v, want %d", got, err, want)
			}
		}
		if s := look(t, path); s[0].Free != want || s[1].Free != 900 {
			t.Errorf("free by Look %d and %d, want %d and 900", s[0].Free, s[1].Free, want)
		}
	}
	must(t, a.Take(0, 100))
	must(t, b.Take(0, 200))
	must(t, b.Take(0, 0))
	free(600)
	if err := a.Take(0, 601); err != device.ErrOutOfMemory {
		t.Errorf("more than is free: %v", err)
	}
	if err := a.Take(0, math.MaxUint64); err != device.ErrOutOfMemory {
		t.Errorf("far more than is free: %v", err)
	}
	if err := a.Give(0, 101); !errors.Is(err, device.ErrInvalidValue) {
		t.Errorf("give more than one's own: %v", err)
	}
	for _, dev := range []int{-1, 2} {
		if err := a.Take(dev, 1); !errors.Is(err, device.ErrInvalidValue) {
			t.Errorf("device %d: %v", dev, err)
		}
	}
	free(600)

	// Two files of one process are one process.
	comm, _ := os.ReadFile("/proc/self/comm")
	self, _ := proc.ReadStat(os.Getpid())
	want := []device.Process{{PID: os.Getpid(), Start: self.Start, Name: strings.TrimSpace(string(comm)), Kind: "compute", Used: 300, Known: true}}
	got, err := a.Processes(0)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("processes: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(want, look(t, path)[0].Processes); diff != "" {
		t.Error("processes by Look (-want +got):\n" + diff)
	}
	if got, err := a.Processes(1); got != nil || err != nil {
		t.Errorf("processes of the other device: %v, %v", got, err)
	}

	must(t, b.SetUsed(0, 0))
	free(640)
	must(t, b.SetUsed(0, math.MaxUint64))
	free(0)
	must(t, b.SetUsed(0, 40))
	must(t, b.Close())
	must(t, b.Close())
	if err := b.Give(0, 1); !errors.Is(err, device.ErrClosed) {
		t.Errorf("give after close: %v", err)
	}
	b = a
	free(800)
	must(t, a.Give(0, 100))
	free(900)

	// What a dead one holds can be taken without asking what is free.
	c := openFile(t, path)
	must(t, c.Take(0, 900))
	must(t, c.Close())
	must(t, a.Take(0, 900))
	free(0)
}

// TestCloseWithChild: a child that was forked and has not exec'ed yet has the
// description too. What is closed is free all the same.
func TestCloseWithChild(t *testing.T) {
	path := makeFile(t)
	f, g := openFile(t, path), openFile(t, path)
	must(t, f.Take(0, 900))
	fd, err := syscall.Dup(f.h.Descriptor())
	must(t, err)
	defer syscall.Close(fd)
	must(t, f.Close())
	must(t, g.Take(0, 900))
}

// TestFull: 1024 processes. All but one are made up: one description has the
// locks of their slots.
func TestFull(t *testing.T) {
	path := makeFile(t)
	f := openFile(t, path)
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	must(t, err)
	defer syscall.Close(fd)
	must(t, ofd.Lock{FD: uintptr(fd), Start: slotByte + 1, Len: MaxProcesses - 1}.Try(ofd.Write))
	for i := 1; i < MaxProcesses; i++ {
		fillSlot(&f.h.img.slots[i], i)
		m := &f.h.img.state.marks[i/64]
		m.Store(m.Load() | 1<<(i%64))
	}
	if _, err := Open(path); !errors.Is(err, ErrFull) {
		t.Fatalf("the 1025th: %v", err)
	}
	must(t, ofd.Lock{FD: uintptr(fd), Start: slotByte + 777, Len: 1}.Unlock())
	if g := openFile(t, path); g.h.own != 777 {
		t.Errorf("the next has slot %d", g.h.own)
	}
	// A slot that is not marked but locked, as by a forked child of who left, is
	// passed over.
	f.h.img.state.marks[0].Store(1)
	must(t, ofd.Lock{FD: uintptr(fd), Start: slotByte + 30, Len: 1}.Unlock())
	if g := openFile(t, path); g.h.own != 30 {
		t.Errorf("the next has slot %d", g.h.own)
	}
}

func fillSlot(s *slot, number int) {
	for dev := range s.held {
		s.held[dev].Store(pack(0))
	}
	s.pid, s.start = uint64(1000+number/2), 5 // two slots each
	copy(s.name[:], "made up")
	s.check = s.checksum(number)
}

// TestProcesses: who is listed, in which order, and what makes two slots one
// process.
func TestProcesses(t *testing.T) {
	path := makeFile(t)
	f := openFile(t, path)
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	must(t, err)
	defer syscall.Close(fd)
	must(t, ofd.Lock{FD: uintptr(fd), Start: slotByte + 1, Len: 4}.Try(ofd.Write))
	for i, s := range []struct{ pid, start, held uint64 }{{7, 1, 10}, {5, 1, 20}, {7, 2, 40}, {7, 1, 80}, {3, 1, 160}} {
		r := &f.h.img.slots[i+1]
		fillSlot(r, i+1)
		r.pid, r.start = s.pid, s.start
		r.check = r.checksum(i + 1)
		r.held[0].Store(pack(s.held))
	}
	f.h.img.state.marks[0].Store(1<<6 - 1)
	f.h.img.state.dirty.Store(1)
	want := []device.Process{
		{PID: 5, Start: 1, Name: "made up", Kind: "compute", Used: 20, Known: true},
		{PID: 7, Start: 1, Name: "made up", Kind: "compute", Used: 90, Known: true}, // twice, from slots 1 and 4
		{PID: 7, Start: 2, Name: "made up", Kind: "compute", Used: 40, Known: true}, // started at another time
	} // 3 is dead
	if diff := cmp.Diff(want, look(t, path)[0].Processes); diff != "" {
		t.Error("Look (-want +got):\n" + diff)
	}
	got, err := f.Processes(0)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Processes: %v (-want +got):\n%s", err, diff)
	}
}

// TestAgainstModel drives several Files of one path and a slow model.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(rt, err)
		path := filepath.Join(dir, "gpu")
		must(rt, Create(path, []Descriptor{plain(), plain()}))
		type model struct {
			f    *File
			held [2]uint64
		}
		var open []*model
		others := [2]uint64{40, 40}
		free := func(dev int) uint64 {
			n := 1000 - 60 - others[dev]
			for _, m := range open {
				n -= m.held[dev]
			}
			return n
		}
		pick := func(rt *rapid.T) (*model, int) {
			if len(open) == 0 {
				rt.Skip()
			}
			return rapid.SampledFrom(open).Draw(rt, "file"), rapid.IntRange(0, 1).Draw(rt, "device")
		}
		bytes := rapid.OneOf(rapid.Uint64Range(0, 400), rapid.Uint64())
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(rt *rapid.T) {
				f, err := Open(path)
				if err != nil {
					rt.Fatal(err)
				}
				open = append(open, &model{f: f})
			},
			"close": func(rt *rapid.T) {
				m, _ := pick(rt)
				if err := m.f.Close(); err != nil {
					rt.Fatal(err)
				}
				open = slices.DeleteFunc(open, func(o *model) bool { return o == m })
			},
			"take": func(rt *rapid.T) {
				m, dev := pick(rt)
				n := bytes.Draw(rt, "bytes")
				err := m.f.Take(dev, n)
				if fits := n <= free(dev); fits != (err == nil) || !fits && err != device.ErrOutOfMemory {
					rt.Fatalf("take %d of %d free: %v", n, free(dev), err)
				} else if fits {
					m.held[dev] += n
				}
			},
			"give": func(rt *rapid.T) {
				m, dev := pick(rt)
				n := bytes.Draw(rt, "bytes")
				err := m.f.Give(dev, n)
				if has := n <= m.held[dev]; has != (err == nil) || !has && !errors.Is(err, device.ErrInvalidValue) {
					rt.Fatalf("give %d of %d held: %v", n, m.held[dev], err)
				} else if has {
					m.held[dev] -= n
				}
			},
			"set used": func(rt *rapid.T) {
				m, dev := pick(rt)
				n := bytes.Draw(rt, "bytes")
				if err := m.f.SetUsed(dev, n); err != nil {
					rt.Fatal(err)
				}
				others[dev] = min(n, free(dev)+others[dev])
			},
			"killed in the middle": func(rt *rapid.T) {
				m, _ := pick(rt)
				m.f.h.img.state.used[0].Store(pack(rapid.Uint64Range(0, 1000).Draw(rt, "sum")))
				m.f.h.img.state.dirty.Store(1)
			},
			"free": func(rt *rapid.T) {
				m, dev := pick(rt)
				if got, err := m.f.Free(dev); err != nil || got != free(dev) {
					rt.Fatalf("free %d, %v, want %d", got, err, free(dev))
				}
			},
			"look": func(rt *rapid.T) {
				for dev, s := range look(rt, path) {
					if s.Free != free(dev) {
						rt.Fatalf("device %d: free %d, want %d", dev, s.Free, free(dev))
					}
				}
			},
		})
		for _, m := range open {
			m.f.Close()
		}
	})
}

// TestPack: what a word can be, and that no change within a byte goes unseen.
func TestPack(t *testing.T) {
	for _, n := range []uint64{0, 1, 2 << 20, 80 << 30, MaxTotal, 1<<56 - 1} {
		w := pack(n)
		if got, ok := unpack(w); got != n || !ok {
			t.Errorf("%d came back as %d, %t", n, got, ok)
		}
		for i := range 8 {
			for x := uint64(1); x < 256; x++ {
				if _, ok := unpack(w ^ x<<(8*i)); ok {
					t.Errorf("%d: byte %d changed by %#x is not seen", n, i, x)
				}
			}
		}
	}
	for _, w := range []uint64{0, math.MaxUint64} {
		if _, ok := unpack(w); ok {
			t.Errorf("%#x is a sum", w)
		}
	}
}

// TestLayout pins where things lie: a change is a new version.
func TestLayout(t *testing.T) {
	var m image
	got := []uintptr{
		unsafe.Sizeof(m.fixed), unsafe.Sizeof(descriptor{}), unsafe.Offsetof(m.fixed.devices),
		unsafe.Offsetof(m.state), unsafe.Offsetof(m.slots), unsafe.Sizeof(slot{}), unsafe.Offsetof(m.slots[0].held),
		unsafe.Sizeof(m),
	}
	want := []uintptr{4144, 256, 40, 4928, 5328, 184, 56, 193744}
	if !slices.Equal(got, want) || version != 3 {
		t.Errorf("layout %d is %d, want %d", version, got, want)
	}
}

// TestWantIsOfOneDevice: an announcement is heard on its device alone, by every process,
// and the last one counts.
func TestWantIsOfOneDevice(t *testing.T) {
	path := makeFile(t)
	f, other := openFile(t, path), openFile(t, path)
	seen := map[uint64]bool{}
	for i, bytes := range []uint64{5, 7, 5} {
		device := i % 2
		f.Want(device, bytes)
		number, n := other.Wanted(device)
		if number == 0 || seen[number] || n != bytes {
			t.Errorf("device %d wants %d: number %d (seen before: %v), %d bytes", device, bytes, number, seen[number], n)
		}
		seen[number] = true
		if number, n := other.Wanted(1 - device); number != 0 && i == 0 || n != 0 {
			t.Errorf("device %d, which nobody wants: number %d, %d bytes", 1-device, number, n)
		}
	}
}
