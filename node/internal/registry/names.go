// The files of one GPU in the registry: their names, and how they are made.

package registry

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/crashpoint"
)

// base returns the offset at which the locks of a GPU's leases begin. It differs
// between registries, by folder and file system. A lease is at most MostBytes.
func (r GPU) base() uint64 {
	var dev uint64
	if info, err := os.Stat(r.dir); err == nil {
		dev = IDOf(info).Device
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s", r.dir, dev, r.Key))
	return lowestBase | binary.BigEndian.Uint64(sum[:])>>4
}

const (
	lowestBase = 1 << 62
	// MostBytes is the largest lease, 2 EiB: with the highest base still below 1<<63.
	MostBytes = 1 << 61
)

// Path returns the name of a file of a lease or ticket.
func (r GPU) Path(id, kind string) string { return filepath.Join(r.dir, r.Key+"."+id+"."+kind) }

// publish makes a file that appears under its name as a whole: fill writes and
// locks it before. The file is open for writing. It never replaces another.
func (r GPU) publish(path string, mode fs.FileMode, fill func(*os.File) error) (*os.File, error) {
	temp := ""
	f, err := openUnnamed(r.dir)
	if NamedOnly || isNamedOnly(err) {
		if err == nil {
			f.Close()
		}
		temp = r.Path(NewID(), newKind)
		f, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, err
	}
	crashpoint.At("publish: opened")
	if err = f.Chmod(mode); err == nil {
		err = fill(f)
	}
	crashpoint.At("publish: filled")
	if err == nil && temp == "" {
		err = nameFile(f, path)
	} else if err == nil {
		err = os.Link(temp, path)
	}
	crashpoint.At("publish: named")
	if temp != "" {
		os.Remove(temp)
		crashpoint.At("publish: unlinked")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// NamedOnly makes publish use files that have a name from the start; only tests set it.
var NamedOnly = false

// NewID returns a name for a lease. As a number it is not 0, which is no part of a ledger.
func NewID() string { return fmt.Sprintf("%016x", max(rand.Uint64(), 1)) }

// files are the ids of a GPU's files by kind, in order; of tickets only those in the queue.
type files map[string][]string

// filesByKey returns the files in the registry by the keys of their GPUs. Those of the key
// only, if it is not empty.
func (r *Registry) filesByKey(only string) (map[string]files, error) {
	d, err := os.Open(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing has been made yet
	}
	if err != nil {
		return nil, r.explain(r.dir, err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, r.explain(r.dir, err)
	}
	all := map[string]files{}
	for _, name := range names {
		key, rest, ok := strings.Cut(name, ".")
		if !ok || key == "" || only != "" && key != only {
			continue
		}
		id, kind, ok := strings.Cut(rest, ".")
		if !ok && rest == "lock" {
			id, kind, ok = "", rest, true
		}
		if !ok {
			continue
		}
		if all[key] == nil {
			all[key] = files{}
		}
		all[key][kind] = append(all[key][kind], id)
	}
	for _, kinds := range all {
		for _, ids := range kinds {
			slices.Sort(ids)
		}
		kinds[TicketKind] = ticketsAmong(kinds[TicketKind])
	}
	return all, nil
}

// files returns the files of the GPU.
func (r GPU) files() (files, error) {
	all, err := r.filesByKey(r.Key)
	return all[r.Key], err
}

// Tickets returns the ids of the tickets in the GPU's queue, in order. Some may be of the
// dead.
func (r GPU) Tickets() ([]string, error) {
	files, err := r.files()
	return files[TicketKind], err
}

// TicketID returns the id of the ticket with a number.
func TicketID(number uint64) string { return fmt.Sprintf("%016x", number) }

// TicketNumber returns the number that a ticket's name has; ok is false if it is no
// name of a ticket.
func TicketNumber(id string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(id, 16, 64)
	return n, err == nil && n > 0 && id == TicketID(n)
}

// farthest is how far a ticket's number may be from the one before it. Numbers count up
// by one and begin again when the queue is empty, so honest ones are near.
const farthest = 1 << 40

// ticketsAmong returns the tickets among names in order. Other names are left out, and
// numbers beyond a gap that counting does not leave: so no file of another user,
// locked or not, makes the numbers run out.
func ticketsAmong(ids []string) []string {
	last := uint64(0)
	return slices.DeleteFunc(ids, func(id string) bool {
		n, ok := TicketNumber(id)
		if !ok || n-last > farthest {
			return true
		}
		last = n
		return false
	})
}
