package shared

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gpumem/device"
)

// fileOf writes bytes to a file.
func fileOf(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpu")
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

// refused opens and looks; both must fail with an error that wraps want (nil:
// any) and has the text.
func refused(t *testing.T, path string, want error, text string) {
	t.Helper()
	f, err := Open(path)
	if err == nil {
		f.Close()
	}
	_, lookErr := Look(path)
	for _, err := range []error{err, lookErr} {
		if err == nil || want != nil && !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "sim@"+path+": ") || !strings.Contains(err.Error(), text) {
			t.Errorf("%v\nwant %v with %q", err, want, text)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	refused(t, dir, nil, "")
	missing := filepath.Join(dir, "missing")
	refused(t, missing, os.ErrNotExist, "make it: gpumem devices --device sim@"+missing+",total=24GiB,create")
	fifo := filepath.Join(dir, "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	refused(t, fifo, nil, "not a regular file")
	refused(t, os.DevNull, nil, "not a regular file")
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	refused(t, socket, syscall.ENXIO, "")
	refused(t, fileOf(t, []byte(strings.Repeat("not a shared GPU\n", 20_000))), nil, "not a shared GPU")
	if _, err := Open(dir); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
	if os.Getuid() == 0 {
		t.Skip("root may do all")
	}
	path := makeFile(t)
	must(t, os.Chmod(path, 0o400))
	if _, err := Open(path); !errors.Is(err, os.ErrPermission) {
		t.Errorf("read-only: %v", err)
	}
	look(t, path)
	must(t, os.Chmod(path, 0))
	refused(t, path, os.ErrPermission, "another user")
}

// TestHeader alters every field of the header.
func TestHeader(t *testing.T) {
	for _, tc := range []struct {
		name  string
		alter func(*fixed)
		want  error
		text  string
	}{
		{"magic", func(f *fixed) { f.magic[7] ^= 1 }, nil, "not a shared GPU"},
		{"byte order", func(f *fixed) { f.order = bits.ReverseBytes64(order) }, ErrDamaged, "byte order"},
		{"newer", func(f *fixed) { f.version = 4 }, ErrVersion, "its layout is version 4, this program's is 3. It is newer than this program: upgrade"},
		{"older", func(f *fixed) { f.version = 1 }, ErrVersion, "version 1, this program's is 3. It is older"},
		{"newer and longer", func(f *fixed) { f.version, f.size = 4, 1<<40 }, ErrVersion, "newer"},
		{"size", func(f *fixed) { f.size++ }, ErrDamaged, "by its header 193745"},
		{"no devices", func(f *fixed) { f.count = 0 }, ErrDamaged, "0 devices"},
		{"too many devices", func(f *fixed) { f.count = 17 }, ErrDamaged, "17 devices"},
		{"far too many devices", func(f *fixed) { f.count = 1<<64 - 1 }, ErrDamaged, "devices"},
		{"a device that is none", func(f *fixed) { f.count = 3 }, ErrDamaged, "device 2: total 0"},
		{"flags", func(f *fixed) { f.devices[0].flags = 16 }, ErrDamaged, "device 0: flags 0x10"},
		{"large major", func(f *fixed) { f.devices[1].ccMajor = 1<<32 - 1 }, ErrDamaged, "device 1: compute"},
		{"large minor", func(f *fixed) { f.devices[1].ccMinor = 1<<32 - 1 }, ErrDamaged, "device 1: compute"},
		{"name full of nothing printable", func(f *fixed) {
			for i := range f.devices[0].name {
				f.devices[0].name[i] = 0x80
			}
		}, ErrDamaged, "device 0: name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := newImage([]Descriptor{plain(), plain()})
			must(t, err)
			tc.alter(&m.fixed)
			m.fixed.sum = m.fixed.checksum()
			refused(t, fileOf(t, bytesOf(m)), tc.want, tc.text)
		})
	}
	for _, tc := range bad {
		t.Run(tc.name, func(t *testing.T) {
			m, err := newImage([]Descriptor{plain()})
			must(t, err)
			d := plain()
			tc.alter(&d)
			m.fixed.devices[0] = d.encode()
			m.fixed.sum = m.fixed.checksum()
			path := fileOf(t, bytesOf(m))
			refused(t, path, ErrDamaged, "device 0: ")
			refused(t, path, ErrDamaged, tc.want)
		})
	}
	t.Run("sum", func(t *testing.T) {
		m, err := newImage([]Descriptor{plain()})
		must(t, err)
		m.fixed.devices[0].total++
		refused(t, fileOf(t, bytesOf(m)), ErrDamaged, "checksum of its header")
	})
}

// TestLength: files that are too short or too long.
func TestLength(t *testing.T) {
	m, err := newImage([]Descriptor{plain()})
	must(t, err)
	b := bytesOf(m)
	state, slots := int(unsafe.Offsetof(m.state)), int(unsafe.Offsetof(m.slots))
	for _, n := range []int{0, 1, 7, 8, 16, 23} {
		refused(t, fileOf(t, b[:n]), nil, "not a shared GPU, or no more than a piece")
	}
	for _, n := range []int{24, 39, 40, 1000, state - 1, state, slots, slots + 1, 100_000, fileSize - 1} {
		refused(t, fileOf(t, b[:n]), ErrDamaged, fmt.Sprintf("it has %d bytes, by its header ", n))
	}
	refused(t, fileOf(t, append(b, 0)), ErrDamaged, "it has 193745 bytes")
}

// TestScribble writes over a file in use: the next call that reads the place
// says so, and so does who opens or looks.
func TestScribble(t *testing.T) {
	for _, tc := range []struct {
		name     string
		scribble func(m *image, own *slot)
		text     string
	}{
		{"pid", func(_ *image, own *slot) { own.pid++ }, "slot 1: its checksum"},
		{"start", func(_ *image, own *slot) { own.start ^= 1 << 63 }, "slot 1: its checksum"},
		{"name", func(_ *image, own *slot) { own.name[maxComm-1] = 'x' }, "slot 1: its checksum"},
		{"check", func(_ *image, own *slot) { own.check = 0 }, "slot 1: its checksum"},
		{"a record copied", func(m *image, own *slot) { copy(bytesOf(own), bytesOf(&m.slots[0])) }, "slot 1: its checksum"},
		{"held is no sum", func(_ *image, own *slot) { own.held[1].Add(1) }, "device 1: slot 1"},
		{"held is zero", func(_ *image, own *slot) { own.held[0].Store(0) }, "device 0: slot 1"},
		{"held is another sum", func(_ *image, own *slot) { own.held[0].Store(pack(101)) }, "the slots hold 111 bytes, by their sum 110"},
		{"held is more than the total", func(_ *image, own *slot) { own.held[0].Store(pack(1001)) }, "device 0: slot 1"},
		{"held with others is more", func(_ *image, own *slot) { own.held[0].Store(pack(991)) }, "device 0: the slots hold more"},
		{"held with the display is more", func(m *image, own *slot) { m.state.dirty.Store(1); own.held[0].Store(pack(891)) }, "device 0: more is held"},
		{"used is no sum", func(m *image, _ *slot) { m.state.used[0].Store(110) }, "device 0: the sum of what is held"},
		{"used is another sum", func(m *image, _ *slot) { m.state.used[0].Store(pack(0)) }, "by their sum"},
		{"used is more than the total", func(m *image, _ *slot) { m.state.used[0].Store(pack(1 << 50)) }, "device 0: the sum of what is held"},
		{"others is no sum", func(m *image, _ *slot) { m.state.others[1].Store(0) }, "device 1: what others hold"},
		{"others beside the display", func(m *image, _ *slot) { m.state.others[1].Store(pack(941)) }, "device 1: others hold more"},
		{"others beside the slots", func(m *image, _ *slot) { m.state.others[0].Store(pack(831)) }, "device 0: more is held"},
		{"a mark lost", func(m *image, _ *slot) { m.state.marks[0].Store(1) }, ""},
		{"a mark too many", func(m *image, _ *slot) { m.state.marks[9].Store(1 << 60) }, "slot 636: its checksum"},
		{"all marks", func(m *image, _ *slot) {
			for i := range m.state.marks {
				m.state.marks[i].Store(1<<64 - 1)
			}
		}, "its checksum"},
		{"all but the header", func(m *image, _ *slot) { clear(bytesOf(m)[unsafe.Offsetof(m.state):]) }, ""},
		{"all but the header, with ones", func(m *image, _ *slot) {
			for i := unsafe.Offsetof(m.state); i < unsafe.Sizeof(*m); i++ {
				bytesOf(m)[i] = 0xff
			}
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := makeFile(t)
			first := openFile(t, path)
			must(t, first.Take(0, 10))
			f := openFile(t, path)
			must(t, f.Take(0, 100))
			tc.scribble(f.h.img, &f.h.img.slots[f.h.own])
			if _, err := f.Free(0); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("free: %v, want %q", err, tc.text)
			}
			if err := f.SetUsed(1, 0); !errors.Is(err, ErrDamaged) {
				t.Errorf("set used: %v", err)
			}
			if _, err := f.Processes(1); !errors.Is(err, ErrDamaged) {
				t.Errorf("processes: %v", err)
			}
			// These need not see it, but must stand it.
			f.Take(0, 1)
			f.Give(0, 1)
			f.Take(0, 900)
			refused(t, path, ErrDamaged, tc.text)
			must(t, f.Close())
		})
	}
	// What a plain take or give reads.
	for _, tc := range []struct {
		name     string
		scribble func(m *image, own *slot)
	}{
		{"magic", func(m *image, _ *slot) { m.fixed.magic[0] = 0 }},
		{"order", func(m *image, _ *slot) { m.fixed.order = 0 }},
		{"version", func(m *image, _ *slot) { m.fixed.version = version + 1 }},
		{"held", func(_ *image, own *slot) { own.held[0].Store(1) }},
		{"used", func(m *image, _ *slot) { m.state.used[0].Store(1) }},
		{"used above the rest", func(m *image, _ *slot) { m.state.used[0].Store(pack(901)) }},
		{"used below one's own", func(m *image, _ *slot) { m.state.used[0].Store(pack(99)) }},
		{"others", func(m *image, _ *slot) { m.state.others[0].Store(1) }},
		{"the own mark", func(m *image, _ *slot) { m.state.marks[0].Store(0) }},
	} {
		t.Run("plain/"+tc.name, func(t *testing.T) {
			f := openFile(t, makeFile(t))
			must(t, f.Take(0, 100))
			tc.scribble(f.h.img, &f.h.img.slots[f.h.own])
			if err := f.Give(0, 1); !errors.Is(err, ErrDamaged) {
				t.Errorf("give: %v", err)
			}
			if err := f.Take(0, 1); !errors.Is(err, ErrDamaged) && tc.name != "used below one's own" {
				t.Errorf("take: %v", err)
			}
		})
	}
}

// TestFlips changes one byte at a time. In the header none goes unseen, nor in
// the part of a slot that is in use. Elsewhere the file is refused or right.
func TestFlips(t *testing.T) {
	path := makeFile(t)
	f := openFile(t, path)
	must(t, f.Take(0, 100))
	must(t, f.Take(1, 200))
	b := bytesOf(f.h.img)
	slots := int(unsafe.Offsetof(image{}.slots))
	flip := func(i int, x byte) error {
		b[i] ^= x
		defer func() { b[i] ^= x }()
		g, err := Open(path)
		if err == nil {
			err = g.Take(0, 1)
			if err == nil {
				look(t, path)
				err = g.Give(0, 1)
			}
			g.Close()
		}
		if err != nil && !errors.Is(err, device.ErrOutOfMemory) && !strings.HasPrefix(err.Error(), "sim@"+path) {
			t.Fatalf("byte %d: %v", i, err)
		}
		return err
	}
	for i := range b[:slots+int(unsafe.Offsetof(slot{}.held))+16] {
		if i >= int(unsafe.Sizeof(fixed{})) && i < slots {
			continue
		}
		if flip(i, byte(1+rand.IntN(255))) == nil {
			t.Errorf("byte %d changed and nobody saw", i)
		}
	}
	if t.Failed() {
		return
	}
	for range 2000 {
		saved := append([]byte(nil), b...)
		i := rand.IntN(len(b))
		if rand.IntN(2) == 0 {
			i = int(unsafe.Sizeof(fixed{})) + rand.IntN(slots-int(unsafe.Sizeof(fixed{})))
		}
		flip(i, byte(1+rand.IntN(255)))
		copy(b, saved)
	}
	if n, err := f.Free(0); n != 800 || err != nil {
		t.Errorf("at the end free %d, %v", n, err)
	}
}

// TestCutShort: the file loses its pages while it is mapped.
func TestCutShort(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int64
		back bool // and is made as long as it was
	}{
		{"nothing left", 0, false},
		{"a page left", int64(os.Getpagesize()), false},
		{"part of the header left", 100, false},
		{"part of the slots left", int64(unsafe.Offsetof(image{}.slots)) + 100, false},
		{"nothing left, then zeros", 0, true},
		{"the header left, then zeros", int64(unsafe.Offsetof(image{}.state)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := makeFile(t)
			f := openFile(t, path)
			must(t, f.Take(0, 100))
			must(t, os.Truncate(path, tc.size))
			if tc.back {
				must(t, os.Truncate(path, int64(fileSize)))
			}
			for range 2 {
				_, freeErr := f.Free(0)
				_, listErr := f.Processes(0)
				for i, err := range []error{freeErr, listErr, f.SetUsed(0, 1), f.Take(0, 1), f.Give(0, 1)} {
					// A plain take or give sees only what it touches.
					if !errors.Is(err, ErrDamaged) && (i < 3 || err != nil || tc.size < int64(unsafe.Offsetof(image{}.slots))) {
						t.Errorf("call %d: %v", i, err)
					}
				}
			}
			if _, err := Look(path); err == nil {
				t.Error("Look succeeds")
			}
			must(t, f.Close())
		})
	}
}

// TestFaultElsewherePanics: only a fault in the file's own mapping is the file's
// damage. Any other is a bug of the program, which must not be hidden.
func TestFaultElsewherePanics(t *testing.T) {
	other, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	must(t, err)
	defer syscall.Munmap(other)
	f := openFile(t, makeFile(t))
	defer func() {
		if recover() == nil {
			t.Error("a fault outside the file is no panic")
		}
	}()
	err = f.exclusive(time.Time{}, func() error { other[0] = 1; return nil })
	t.Errorf("no fault: %v", err)
}
