package ledger

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"gpumem/internal/slotfile"
)

// FuzzOpen: whatever the file has in it, it is refused or it works. data is the
// beginning of the file if whole; otherwise it changes a good one: each 4 bytes are a
// position (3 bytes, modulo the length) and a value.
func FuzzOpen(f *testing.F) {
	good := func() []byte {
		img := &image{limit: 100, total: 1000, number: Slots}
		copy(img.magic[:], magic)
		img.slots[0].store(Figures{PID: 1 << 22, Start: 5, Held: 3, InUse: 2})
		return slotfile.Bytes(img)
	}
	f.Add([]byte{}, true)
	f.Add(good()[:4000], true)
	f.Add([]byte{}, false)
	f.Add([]byte{8, 0, 0, 0}, false)                   // no limit
	f.Add([]byte{28, 0, 0, 9}, false)                  // slots
	f.Add([]byte{64, 0, 0, 'G', 65, 0, 0, 7}, false)   // UUID
	f.Add([]byte{23, 16, 0, 255}, false)               // held of slot 0
	f.Add([]byte{128, 16, 0, 9, 151, 16, 0, 1}, false) // slot 1
	f.Add([]byte{24, 0, 0, 255, 25, 0, 0, 255}, false) // announcements
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		file := good()
		if whole {
			file = data
		} else {
			for ; len(data) >= 4; data = data[4:] {
				file[int(binary.LittleEndian.Uint32(data)&0xffffff)%len(file)] = data[3]
			}
		}
		path := filepath.Join(t.TempDir(), "ledger")
		must(t, os.WriteFile(path, file, 0o600))
		l, err := Open(path)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		defer l.Close()
		if n := len(l.Members()); n != 0 {
			t.Fatalf("%d members, and nobody has a lock", n)
		}
		m, err := l.Join()
		must(t, err)
		defer m.Leave()
		limit := l.Header().Limit
		if err := m.Take(Held, limit); err != nil { // the dead hold nothing
			t.Fatal(err)
		}
		if err := m.Take(Outside, 1); err == nil || l.Held() != limit || m.Left() != 0 {
			t.Fatalf("take beyond the limit: %v, held %d", err, l.Held())
		}
		must(t, m.Give(Held, limit))
		number, _ := m.Wanted()
		must(t, m.Want(1))
		if next, n := m.Wanted(); next == number || next == 0 || n != 1 {
			t.Fatalf("wanted %d then %d, %d bytes", number, next, n)
		}
	})
}
