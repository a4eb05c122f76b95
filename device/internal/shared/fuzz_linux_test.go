package shared

import (
	"testing"
	"unsafe"

	"gpumem/device"
)

// FuzzOpen: whatever the file holds, it is refused or it works. data is the file
// if whole; else it changes a good one, and each 4 bytes of it are where (3
// bytes, modulo the length) and what. sums makes the checksum of the header
// right, so that what is behind it is reached.
func FuzzOpen(f *testing.F) {
	good, err := newImage([]Descriptor{plain(), plain()})
	must(f, err)
	f.Add([]byte{}, true, false)
	f.Add(bytesOf(good)[:200], true, false)
	f.Add([]byte{}, false, true)
	f.Add([]byte{16, 0, 0, 4}, false, true)                                           // a newer version
	f.Add([]byte{32, 0, 0, 255}, false, true)                                         // the number of devices
	f.Add([]byte{byte(unsafe.Offsetof(good.state.dirty)), 0, 0, 1}, false, true)      // in the header
	f.Add([]byte{0x48, 0x10, 0, 1, 0x50, 0x10, 0, 7}, false, false)                   // dirty, used
	f.Add([]byte{0x50, 0x11, 0, 1, 0x50, 0x11, 0, 255}, false, false)                 // marks
	f.Add([]byte{0xd0, 0x11, 0, 5, 0xd1, 0x11, 0, 5, 0x08, 0x12, 0, 9}, false, false) // slot 0
	f.Fuzz(func(t *testing.T, data []byte, whole, sums bool) {
		file := data
		if !whole {
			m := new(image)
			copy(bytesOf(m), bytesOf(good))
			file = bytesOf(m)
			for ; len(data) >= 4; data = data[4:] {
				file[(int(data[0])|int(data[1])<<8|int(data[2])<<16)%len(file)] = data[3]
			}
			if sums {
				m.fixed.sum = m.fixed.checksum()
			}
		}
		path := fileOf(t, file)
		g, err := Open(path)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			Look(path)
			return
		}
		defer g.Close()
		for dev := range g.Devices() {
			free, err := g.Free(dev)
			must(t, err)
			must(t, g.Take(dev, free))
			if err := g.Take(dev, 1); err != device.ErrOutOfMemory {
				t.Fatalf("take more than all: %v", err)
			}
			if s := look(t, path)[dev]; s.Free != 0 {
				t.Fatalf("device %d: %+v", dev, s)
			}
			must(t, g.Give(dev, free))
			must(t, g.SetUsed(dev, 0))
		}
	})
}
