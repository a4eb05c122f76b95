package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/regular"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newGPU makes a registry.
func newGPU(t *testing.T) GPU {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "registry"))
	must(t, err)
	return r.GPU("gpu")
}

// digits is the ID of a container.
func digits(n int) string { return fmt.Sprintf("%064x", n) }

// sample is a file's record.
func sample(device string) Record {
	return Record{Kind: LeaseKind, ID: "0123456789abcdef", Device: device, Bytes: 1 << 30, PID: 1, Start: 1, Since: 1}
}

// pod returns n containers with names.
func pod(n int) (all []Container) {
	for i := range n {
		all = append(all, Container{digits(i), "team-a", fmt.Sprintf("trainer-%d", i), "main"})
	}
	return all
}

// TestRecordKeepsTheContainersThatFit: whatever does not fit is left out and counted, the
// ledger and the first containers stay.
func TestRecordKeepsTheContainersThatFit(t *testing.T) {
	for _, tc := range []struct {
		name    string
		put     []Container
		command []string
		named   int // containers that keep their names
		kept    int
	}{
		{"none", nil, nil, 0, 0},
		{"one", pod(1), []string{"agent"}, 1, 1},
		{"names of the last go first", pod(40), nil, 17, 40},
		{"then the command", pod(46), []string{strings.Repeat("x", 1000)}, 0, 46},
		{"then containers", pod(60), []string{"agent"}, 0, 52},
		{"a great many", pod(2000), nil, 0, 52},
		{"long names", []Container{{digits(1), strings.Repeat("\x01", 500), "", ""}, {digits(2), strings.Repeat("\x01", 500), "", ""}}, nil, 1, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := sample("gpu")
			r.Command = tc.command
			put := slices.Clone(tc.put)
			r, err := r.Use(put, "/run/gpumem/shares/1/ledger")
			must(t, err)
			got, err := Decode(r.Encode())
			must(t, err)
			named := 0
			for i, c := range got.Containers {
				if c == tc.put[i] {
					named++
				} else if c != tc.put[i].bare() {
					t.Errorf("container %d is %+v", i, c)
				}
			}
			if len(got.Containers) != tc.kept || named != tc.named || got.More != len(tc.put)-tc.kept || got.Ledger != r.Ledger {
				t.Errorf("%d containers, %d with names, %d more, ledger %q; want %d, %d and %d", len(got.Containers), named, got.More, got.Ledger, tc.kept, tc.named, len(tc.put)-tc.kept)
			}
			if !slices.Equal(put, tc.put) {
				t.Error("the caller's containers have changed")
			}
		})
	}
}

func TestUseRefuses(t *testing.T) {
	deep := sample(strings.Repeat("\x01", MaxDevice)) // JSON writes six bytes for one
	for _, tc := range []struct {
		name       string
		r          Record
		containers []Container
		ledger     string
		want       string
	}{
		{"a short id", sample("gpu"), []Container{{ID: "12ab", Pod: "p"}}, "", `container "12ab" (/p): its id has not 64 hex digits`},
		{"no digits", sample("gpu"), []Container{{ID: strings.Repeat("g", 64)}}, "", "64 hex digits"},
		{"a relative path", sample("gpu"), nil, "ledger", "absolute path"},
		{"a long path", sample("gpu"), nil, "/" + strings.Repeat("x", maxLedger), "1025 bytes"},
		{"no room for a path", deep, nil, "/" + strings.Repeat("x", maxLedger-1), "want a shorter one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := tc.r.Use(tc.containers, tc.ledger); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestDecodeRefusesContainers: a part of an ID would name others' containers.
func TestDecodeRefusesContainers(t *testing.T) {
	r := sample("gpu")
	r.Containers = []Container{{ID: "0"}}
	if _, err := Decode(r.Encode()); err == nil || !strings.Contains(err.Error(), `its container is "0"`) {
		t.Error(err)
	}
	r.Containers, r.More = nil, -1
	if _, err := Decode(r.Encode()); err == nil {
		t.Error("-1 containers are left out")
	}
}

func TestContainerString(t *testing.T) {
	for want, c := range map[string]Container{
		"team-a/trainer/main": {digits(1), "team-a", "trainer", "main"},
		digits(1)[:12]:        {ID: digits(1)},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRecordOfAnotherGPUIsDamaged: a whole record, copied to the name of another GPU.
func TestRecordOfAnotherGPUIsDamaged(t *testing.T) {
	rec := Record{Kind: LeaseKind, ID: NewID(), Device: "A", Bytes: 1, PID: 1}
	path := filepath.Join(t.TempDir(), "record")
	if err := os.WriteFile(path, rec.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, damaged := range map[string]bool{KeyOf("A"): false, KeyOf("B"): true} {
		if _, err := (GPU{Key: key}).readRecord(path, rec.ID, regular.Anyone); errors.Is(err, ErrDamaged) != damaged {
			t.Errorf("under key %s: %v; damaged: %v", key, err, damaged)
		}
	}
}

// TestLedgerInARecordIsFollowedOnlyIfTrusted refuses a list that leads root, who looks at it,
// to any path that another user has written into a record.
func TestLedgerInARecordIsFollowedOnlyIfTrusted(t *testing.T) {
	own := os.Geteuid()
	for _, tc := range []struct {
		name string
		uid  int
		want string
	}{
		{"root's", 0, "/etc/ledger"},
		{"of this user", own, "/etc/ledger"},
		{"another's", own + 1, ""},
		{"nobody knows whose", -1, ""},
	} {
		rec := Record{Kind: LeaseKind, ID: NewID(), Device: "A", Bytes: 1, PID: 1, Ledger: "/etc/ledger"}
		if got := (&Registry{}).Entry(Claim{Record: rec, UID: tc.uid}).Ledger; got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestLedgerByTurnsIsTheLeasesOnlyWhileItStands: a lease counts in the ledger that it was given. One
// that was put in its place, or is another user's, is not that.
func TestLedgerByTurnsIsTheLeasesOnlyWhileItStands(t *testing.T) {
	r := newGPU(t)
	own := os.Geteuid()
	path := r.TurnsPath(own)
	must(t, os.WriteFile(path, nil, 0o600))
	rec := sample("gpu")
	inode, _ := fileAt(path)
	for _, tc := range []struct {
		name  string
		turns uint64
		uid   int
		want  string
		part  uint64
	}{
		{"its own", inode, own, path, 0x0123456789abcdef},
		{"none", 0, own, "/other", 0},
		{"another file", inode + 1, own, "", 0},
		{"of another user", inode, own + 1, "", 0},
	} {
		rec.TurnsInode, rec.Ledger = tc.turns, "/other"
		if e := r.Entry(Claim{Record: rec, UID: tc.uid}); e.Ledger != tc.want || e.Part != tc.part {
			t.Errorf("%s: ledger %q and part %x", tc.name, e.Ledger, e.Part)
		}
	}
	must(t, os.Remove(path))
	rec.TurnsInode = inode
	if e := r.Entry(Claim{Record: rec, UID: own}); e.Ledger != "" || e.Part != 0 {
		t.Errorf("gone: ledger %q and part %x", e.Ledger, e.Part)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sample("gpu").Encode())
	ticket := sample("gpu")
	ticket.Kind, ticket.Number, ticket.Command = TicketKind, 3, []string{"a", "\xff\x00"}
	f.Add(ticket.Encode())
	used := sample("gpu")
	used.Containers, used.More, used.Ledger = []Container{{digits(1), "team-a", "trainer", "main"}, {ID: digits(2)}}, 3, "/run/gpumem/shares/1/ledger"
	f.Add(used.Encode())
	f.Add([]byte("gpumem-share 3 x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			// A checksum keeps chance out; so put a right one on what is left.
			r = sample("gpu")
			r.Command = strings.Split(string(b), "\n")
			for i, name := range r.Command[:min(len(r.Command), 60)] {
				r.Containers = append(r.Containers, Container{ID: digits(i), Pod: name})
			}
		}
		file := r.Encode()
		again, err := Decode(file)
		if err != nil || len(file) != fileSize || again.Bytes != r.Bytes || again.ID != r.ID || len(again.Containers)+again.More != len(r.Containers)+r.More {
			t.Fatalf("%+v becomes %+v, %v", r, again, err)
		}
	})
}
