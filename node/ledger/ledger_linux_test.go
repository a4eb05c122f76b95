package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"gpumem/internal/ofd"
	"gpumem/internal/procstat"
	"gpumem/internal/regular"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeLedger makes a ledger of 100 bytes on a GPU of 1000.
func makeLedger(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	must(t, Create(path, Header{UUID: "GPU-1", Limit: 100, Total: 1000}))
	return path
}

func openLedger(t testing.TB, path string) *Ledger {
	t.Helper()
	l, err := Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// writable returns a ledger's file, open for writing by another description.
func writable(t testing.TB, l *Ledger) *file {
	t.Helper()
	again, err := l.f.Reopen()
	must(t, err)
	f, err := mapped(again)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func join(t testing.TB, l *Ledger) *Member {
	t.Helper()
	m, err := l.Join()
	must(t, err)
	t.Cleanup(func() { must(t, m.Leave()) })
	return m
}

// TestLayoutIsAsDocumented: a reader in C has the same offsets.
func TestLayoutIsAsDocumented(t *testing.T) {
	var img image
	var s slot
	for name, x := range map[string]struct{ got, want uintptr }{
		"file":         {unsafe.Sizeof(img), 135168},
		"limit":        {unsafe.Offsetof(img.limit), 8},
		"total":        {unsafe.Offsetof(img.total), 16},
		"futex":        {unsafe.Offsetof(img.wanted), 24},
		"slots":        {unsafe.Offsetof(img.number), 28},
		"wanted bytes": {unsafe.Offsetof(img.bytes), 32},
		"refusals":     {unsafe.Offsetof(img.refusals), 40},
		"last refused": {unsafe.Offsetof(img.lastRefused), 48},
		"flags":        {unsafe.Offsetof(img.flags), 56},
		"uuid":         {unsafe.Offsetof(img.uuid), 64},
		"first slot":   {unsafe.Offsetof(img.slots), 4096},
		"slot":         {unsafe.Sizeof(s), 128},
		"pid":          {unsafe.Offsetof(s.pid), 0},
		"start":        {unsafe.Offsetof(s.start), 8},
		"held":         {unsafe.Offsetof(s.held), 16},
		"outside":      {unsafe.Offsetof(s.outside), 24},
		"in use":       {unsafe.Offsetof(s.inUse), 32},
		"peak held":    {unsafe.Offsetof(s.peakHeld), 40},
		"peak in use":  {unsafe.Offsetof(s.peakInUse), 48},
		"refused":      {unsafe.Offsetof(s.refused), 56},
		"driver calls": {unsafe.Offsetof(s.driverCalls), 64},
		"charged":      {unsafe.Offsetof(s.charged), 72},
	} {
		if x.got != x.want {
			t.Errorf("%s at %d, want %d", name, x.got, x.want)
		}
	}
	path := makeLedger(t)
	m := join(t, openLedger(t, path))
	must(t, m.Take(Held, 7))
	must(t, m.Take(Outside, 8))
	must(t, m.Take(Charged, 9))
	must(t, m.Want(11))
	m.Publish(Figures{InUse: 3, PeakInUse: 4, Refused: 5, DriverCalls: 6})
	file, err := os.ReadFile(path)
	must(t, err)
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(file[at:]) }
	if string(file[:8]) != "gpumemL1" || word(8) != 100 || word(16) != 1000 || binary.LittleEndian.Uint32(file[24:]) != 1 || word(32) != 11 || string(file[64:70]) != "GPU-1\x00" {
		t.Errorf("header %q", file[:128])
	}
	for at, want := range map[int]uint64{0: uint64(os.Getpid()), 8: procstat.Self().Start, 16: 7, 24: 8, 32: 3, 40: 7, 48: 4, 56: 5, 64: 6, 72: 9} {
		if got := word(4096 + at); got != want {
			t.Errorf("slot 0, byte %d: %d, want %d", at, got, want)
		}
	}
	if procstat.Self().Start == 0 {
		t.Error("no start time")
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		h    Header
		want string
	}{
		{"no limit", Header{Total: 5}, "limit of 0 bytes"},
		{"more than the GPU", Header{Limit: 6, Total: 5}, "limit of 6 bytes on a GPU of 5"},
		{"a GPU beyond all", Header{Limit: 6, Total: 1 << 51}, "at most"},
		{"a long UUID", Header{UUID: strings.Repeat("x", 64), Limit: 1, Total: 1}, "UUID of 64 bytes"},
		{"an odd UUID", Header{UUID: "GPU-\n", Limit: 1, Total: 1}, "printable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			if err := Create(path, tc.h); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if _, err := os.Lstat(path); err == nil {
				t.Error("a file is left")
			}
		})
	}
	path := makeLedger(t)
	if err := Create(path, Header{Limit: 1, Total: 1}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestOpenRefuses: whatever has the name, it is an error and no fault.
func TestOpenRefuses(t *testing.T) {
	good, err := os.ReadFile(makeLedger(t))
	must(t, err)
	with := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	file := func(b []byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, b, 0o600) }
	}
	for _, tc := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"nothing", func(string) error { return nil }, "no such file"},
		{"empty", file(nil), "0 bytes and not 135168"},
		{"short", file(good[:5000]), "5000 bytes and not"},
		{"long", file(append(bytes.Clone(good), 0)), "135169 bytes and not"},
		{"foreign", file(make([]byte, fileBytes)), "not a ledger"},
		{"another version", file(with(7, '2')), "not a ledger of this version"},
		{"half made", file(with(0, 0, 0, 0, 0, 0, 0, 0, 0)), "not a ledger"},
		{"no limit", file(with(8, 0)), "limit of 0 bytes"},
		{"limit beyond the GPU", file(with(15, 1)), "on a GPU of 1000"},
		{"slots", file(with(28, 9)), "1033 slots and not 1024"},
		{"UUID without an end", file(with(64, bytes.Repeat([]byte{'x'}, 64)...)), "UUID of 64 bytes"},
		{"something behind the UUID", file(with(100, 'x')), "makes no sense"},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		{"a link", func(path string) error {
			return errors.Join(file(good)(path+"2"), os.Symlink(path+"2", path))
		}, "not a regular file"},
		{"a pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		{"others may write", func(path string) error {
			return errors.Join(file(good)(path), os.Chmod(path, 0o620))
		}, "other users may write to it (mode 0620)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			must(t, tc.make(path))
			l, err := Open(path)
			if err == nil {
				l.Close()
				t.Fatal("it is opened")
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestTakeAndGiveCountAllMembers(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	if h := l.Header(); h != (Header{UUID: "GPU-1", Limit: 100, Total: 1000}) {
		t.Errorf("header %+v", h)
	}
	a, b := join(t, l), join(t, l)
	for i, step := range []struct {
		m       *Member
		give    bool
		kind    Kind
		n, left uint64
		err     error
	}{
		{a, false, Held, 60, 40, nil},
		{b, false, Outside, 20, 20, nil},
		{b, false, Charged, 20, 0, nil},
		{a, false, Held, 1, 0, ErrFull},
		{b, false, Held, 1 << 63, 0, ErrFull},
		{b, false, Held, 0, 0, nil},
		{b, true, Held, 1, 0, ErrGive},
		{b, true, Outside, 21, 0, ErrGive},
		{b, true, Charged, 20, 20, nil},
		{a, true, Held, 10, 30, nil},
		{b, false, Held, 30, 0, nil},
		{a, true, Held, 51, 0, ErrGive},
		{a, true, Held, 50, 50, nil},
		{a, true, Held, 1, 50, ErrGive},
	} {
		do := step.m.Take
		if step.give {
			do = step.m.Give
		}
		if err := do(step.kind, step.n); !errors.Is(err, step.err) {
			t.Errorf("step %d: %v, want %v", i, err, step.err)
		}
		if held := l.Held(); a.Left() != step.left || b.Left() != step.left || held != 100-step.left {
			t.Errorf("step %d: left %d and %d, held %d; want %d left", i, a.Left(), b.Left(), held, step.left)
		}
	}
	var full *FullError
	if err := a.Take(Held, 51); !errors.As(err, &full) || *full != (FullError{100, 50, 51}) || err.Error() != "the lease is full: limit 100 bytes, held 50, requested 51" {
		t.Errorf("%v", err)
	}
	if f := a.Own(); f.PeakHeld != 60 || f.Held != 0 {
		t.Errorf("own %+v", f)
	}
	if err := a.Take(kinds, 1); err == nil {
		t.Error("a kind beyond all is taken")
	}
	if err := a.Give(-1, 1); err == nil {
		t.Error("a kind below all is given")
	}
}

func TestLeaveFreesWhatIsHeld(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	a, b := join(t, l), join(t, l)
	must(t, a.Take(Held, 100))
	must(t, a.Leave())
	must(t, a.Leave())
	for name, err := range map[string]error{"take": a.Take(Held, 1), "give": a.Give(Held, 1), "want": a.Want(1)} {
		if err != ErrClosed {
			t.Errorf("%s after leave: %v", name, err)
		}
	}
	if n, _ := a.Wanted(); n != 0 || a.Left() != 0 {
		t.Errorf("after leave wanted %d, left %d", n, a.Left())
	}
	must(t, b.Take(Held, 100))
	if list := l.Members(); len(list) != 1 || list[0].Held != 100 {
		t.Errorf("members %+v", list)
	}
	must(t, l.Close())
	if _, err := l.Join(); err != ErrClosed || l.Members() != nil {
		t.Errorf("after close: %v", err)
	}
	must(t, b.Give(Held, 100)) // a member stays
}

// TestTakeClearsDeadSlots: what a killed process held is free before a request is
// refused.
func TestTakeClearsDeadSlots(t *testing.T) {
	for name, damage := range map[string]uint64{"dead": 0, "dead and damaged": 1 << 60} {
		l := openLedger(t, makeLedger(t))
		dead, m := join(t, l), join(t, l)
		must(t, dead.Take(Held, 100))
		if err := m.Take(Held, 1); !errors.Is(err, ErrFull) {
			t.Errorf("%s: beside the living: %v", name, err)
		}
		must(t, dead.pokeSlot(unsafe.Offsetof(slot{}.charged), damage))
		must(t, dead.Forget()) // as the kernel does at its end
		must(t, m.Take(Held, 100))
	}
}

// TestLookingWritesNothing refuses members that clear the slots of the dead, and a ledger
// that is open for writing: who only looks, as root does, changes nobody's file.
func TestLookingWritesNothing(t *testing.T) {
	path := makeLedger(t)
	l := openLedger(t, path)
	dead := join(t, l)
	must(t, dead.Take(Held, 100))
	must(t, dead.Forget()) // as the kernel does at its end
	before, err := os.ReadFile(path)
	must(t, err)
	if list := l.Members(); len(list) > 0 || l.Held() != 0 {
		t.Errorf("the dead are members: %+v", list)
	}
	after, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the file has changed")
	}
	if _, err := syscall.Write(l.f.Descriptor(), []byte("x")); err != syscall.EBADF {
		t.Errorf("it can be written to: %v", err)
	}
}

// TestOpenOfAnotherUsersLedger: whose it must be is another than whose it is.
func TestOpenOfAnotherUsersLedger(t *testing.T) {
	path := makeLedger(t)
	l, err := OpenOf(path, os.Getuid())
	must(t, err)
	must(t, l.Close())
	if _, err := OpenOf(path, os.Getuid()+1); !errors.Is(err, regular.ErrOwner) {
		t.Errorf("%v", err)
	}
}

// TestForgetKeepsTheSlot: a child that was forked shares the description, and must not
// free what is its parent's. A second descriptor stands for the child's here.
func TestForgetKeepsTheSlot(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	m := join(t, l)
	must(t, m.Take(Held, 10))
	parents, err := syscall.Dup(m.Descriptor())
	must(t, err)
	must(t, m.Forget())
	if l.Held() != 10 {
		t.Errorf("held %d, want 10", l.Held())
	}
	syscall.Close(parents)
	if l.Held() != 0 {
		t.Errorf("held %d after the parent's end, want 0", l.Held())
	}
}

// TestTakeAfterDescriptorWasClosed: a program that closes all of its descriptors keeps
// its slot, and the next request finds the file again.
func TestTakeAfterDescriptorWasClosed(t *testing.T) {
	for _, reused := range []bool{false, true} {
		l := openLedger(t, makeLedger(t))
		m, second := join(t, l), join(t, l)
		must(t, m.Take(Held, 10))
		fd := m.Descriptor()
		must(t, syscall.Close(fd))
		if reused {
			other, err := os.Create(filepath.Join(t.TempDir(), "other"))
			must(t, err)
			defer other.Close()
			must(t, syscall.Dup3(int(other.Fd()), fd, syscall.O_CLOEXEC))
			defer syscall.Close(fd)
		}
		must(t, second.Take(Held, 5))
		must(t, m.Take(Held, 20))
		if l.Held() != 35 || m.Left() != 65 {
			t.Errorf("held %d, left %d", l.Held(), m.Left())
		}
		must(t, m.Give(Held, 25))
		must(t, m.Leave())
		if l.Held() != 5 {
			t.Errorf("held %d after leave, want 5", l.Held())
		}
		var st syscall.Stat_t
		if err := syscall.Fstat(fd, &st); reused && (err != nil || st.Size != 0) {
			t.Errorf("the other file's descriptor %d was closed: %v", fd, err)
		}
	}
}

func TestSlotOfAnotherIsAnError(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	m := join(t, l)
	must(t, m.pokeSlot(unsafe.Offsetof(slot{}.start), m.own.Start+1))
	if err := m.Take(Held, 1); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	if n := m.Left(); n != 0 {
		t.Errorf("%d bytes are left of which none can be taken", n)
	}
}

// TestFileCutShortIsAnError: a file that is cut short while it is in use is an error, also where no
// fault can be caught: reads and writes are system calls.
func TestFileCutShortIsAnError(t *testing.T) {
	path := makeLedger(t)
	l := openLedger(t, path)
	m := join(t, l)
	must(t, m.Take(Held, 10))
	must(t, os.Truncate(path, 4096))
	for name, err := range map[string]error{"take": m.Take(Held, 1), "give": m.Give(Held, 1)} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.Publish(Figures{InUse: 1})
	if m.Left() != 0 || l.Members() != nil || l.Held() != 0 {
		t.Errorf("left %d, members %v", m.Left(), l.Members())
	}
	must(t, os.Truncate(path, 0))
	if err := m.Want(1); !errors.Is(err, ErrDamaged) {
		t.Errorf("want: %v", err)
	}
	if n, _ := m.Wanted(); n != 0 {
		t.Errorf("wanted %d", n)
	}
	if _, err := Open(path); !errors.Is(err, ErrDamaged) {
		t.Errorf("open: %v", err)
	}
}

// TestSlotBeyondAllIsDamaged: figures that no GPU has do not overflow the sum.
func TestSlotBeyondAllIsDamaged(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	m, other := join(t, l), join(t, l)
	must(t, other.pokeSlot(unsafe.Offsetof(slot{}.held), 1<<63))
	if err := m.Take(Held, 1); !errors.Is(err, ErrDamaged) {
		t.Errorf("take: %v", err)
	}
	if n := m.Left(); n != 0 {
		t.Errorf("%d bytes are left of which none can be taken", n)
	}
	if n := l.Held(); n != 0 {
		t.Errorf("held %d", n)
	}
}

func TestWanted(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	idle, busy := join(t, l), join(t, l)
	must(t, busy.Want(7))
	if number, n := idle.Wanted(); number != 1 || n != 7 {
		t.Errorf("wanted %d, %d", number, n)
	}
	must(t, idle.f.poke(unsafe.Offsetof(image{}.wanted), 1<<32-1))
	must(t, busy.Want(8))
	if number, _ := idle.Wanted(); number != 1 { // 0 means none
		t.Errorf("after the last number %d", number)
	}
}

func TestAlone(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	m := join(t, l)
	if !m.Alone() {
		t.Error("the only member is not alone")
	}
	other := join(t, l)
	if m.Alone() || other.Alone() {
		t.Error("two members, and one is alone")
	}
	must(t, other.Leave())
	if !m.Alone() {
		t.Error("the last member is not alone")
	}
}

func TestJoinBeyondAllSlots(t *testing.T) {
	l := openLedger(t, makeLedger(t))
	m := join(t, l)
	others := writable(t, l)
	for i := range Slots { // locked by nobody who lives, but locked
		if i != m.slot {
			must(t, others.SlotLock(i).Try(ofd.Write))
		}
	}
	if _, err := l.Join(); !errors.Is(err, ErrSlots) {
		t.Errorf("%v", err)
	}
}

// TestGoroutinesShareAMember: the goroutines of one process share a member.
func TestGoroutinesShareAMember(t *testing.T) {
	path := makeLedger(t)
	l := openLedger(t, path)
	m, other := join(t, l), join(t, l)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				for _, x := range []*Member{m, other} {
					if err := x.Take(Held, 7); err == nil {
						x.Publish(Figures{InUse: 7})
						if n := l.Held(); n > 100 {
							t.Errorf("held %d of 100", n)
						}
						if err := x.Give(Held, 7); err != nil {
							t.Error(err)
						}
					} else if !errors.Is(err, ErrFull) {
						t.Error(err)
					}
					x.Wanted()
				}
			}
		})
	}
	all.Wait()
	if l.Held() != 0 {
		t.Errorf("held %d at the end", l.Held())
	}
}

// TestPartLimitsItsProcessesTogether: a run inside a lease has a limit of its own, one in
// that has both, and the rest of the lease is the others'.
func TestPartLimitsItsProcessesTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.ledger")
	if err := Create(path, Header{Limit: 100, Total: 1000}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	join := func(parts ...Part) *Member {
		m, err := l.Join(parts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Leave() })
		return m
	}
	outer, inner := Part{7, 40}, Part{8, 10}
	whole, one, two, deep := join(), join(outer), join(outer), join(outer, inner)
	for i, step := range []struct {
		m           *Member
		take, limit uint64 // the limit that refuses it, 0: none
	}{
		{deep, 11, 10}, {deep, 10, 0}, {one, 20, 0}, {two, 11, 40}, {two, 10, 0}, {deep, 1, 40}, {whole, 61, 100}, {whole, 50, 0}, {one, 1, 40}, {whole, 10, 0}, {whole, 1, 100},
	} {
		err := step.m.Take(Held, step.take)
		var full *FullError
		if errors.As(err, &full) != (step.limit != 0) || full != nil && full.Limit != step.limit {
			t.Errorf("step %d: %v, want refused by the limit %d", i, err, step.limit)
		}
	}
	_ = two.Give(Held, 4)
	_ = whole.Give(Held, 30)
	for i, c := range []struct {
		m           *Member
		left, limit uint64
	}{{whole, 34, 100}, {one, 4, 40}, {deep, 0, 10}} {
		if left, limit := c.m.Left(), c.m.Limit(); left != c.left || limit != c.limit {
			t.Errorf("member %d: %d left of %d, want %d of %d", i, left, limit, c.left, c.limit)
		}
	}
	held := map[uint64]uint64{} // by part, as lists add it up
	for _, f := range l.Members() {
		for _, part := range []uint64{0, 7, 8, 9} {
			if f.In(part) {
				held[part] += f.Sum()
			}
		}
	}
	if held[0] != 66 || held[7] != 36 || held[8] != 10 || held[9] != 0 {
		t.Errorf("held by part: %v", held)
	}
	_ = deep.Leave()
	again := join() // may have the slot of a process that was in parts
	if f := again.Own(); f.In(7) || f.In(8) {
		t.Errorf("%+v is in the parts of the process that had its slot", f)
	}
	if err := again.Take(Held, 34); err != nil {
		t.Errorf("a process in no part: %v", err)
	}
	if _, err := l.Join(Part{1, 1}, Part{2, 1}, Part{3, 1}, Part{4, 1}, Part{5, 1}); err == nil {
		t.Error("five parts, one inside the other")
	}
}

func TestPartsAsText(t *testing.T) {
	for _, text := range []string{"", "ab=5", "ab=5,1=2:", ":1=2", "a=1:b=2,c=3"} {
		of, err := ParseParts(text)
		if err != nil || FormatParts(of) != text {
			t.Errorf("%q: %v, %v", text, of, err)
		}
	}
	for _, text := range []string{"x=1", "1", "0=1", "1=-1", "1=1,,2=2", "1=2=3"} {
		if of, err := ParseParts(text); err == nil {
			t.Errorf("%q: %v", text, of)
		}
	}
}
