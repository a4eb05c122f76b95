// The registry: a folder with a lock file for each GPU and files for each lease
// and ticket. Their names are
//
//	KEY.lock   KEY.ID.held   KEY.ID.lease   KEY.ID.ledger   KEY.NUMBER.ticket   KEY.ID.new
//
// with KEY of 16 hex digits from the GPU's key, ID of 16 by chance, and NUMBER of
// 16 that count up. The last is a file that is being made, where the file system
// cannot make one without a name. See record.go for what they hold.

package share

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"gpumem/internal/proc"
)

// The folders where the machine's registry is, unless the environment says
// otherwise. Tests have others.
var (
	runDir = "/run/gpumem"
	shmDir = "/dev/shm/gpumem"
)

// Times, which tests shorten.
var (
	// silence is how long a waiter may give no sign of life before it is passed over.
	// One that is seen to run, on a machine with too much to do, has frozen times
	// as long.
	silence = 5 * time.Second
	// recently is how long it may take until memory of an ended program is free, or
	// a new program has allocated what it needs.
	recently = time.Second
)

const frozen = 12

// patienceOfClose is how long Close waits for the GPU's lock to tidy up; without
// it, the next one does.
const patienceOfClose = 100 * time.Millisecond

// Registry is a folder with leases. It may be used by several goroutines.
type Registry struct {
	dir       string // absolute
	namespace uint64
}

// Open opens the registry in a folder, which is made if it is missing, with mode
// 1777: all may add files, and remove only their own. "" means the folder that
// GPUMEM_RUN_DIR names, an absolute path, else /run/gpumem if all may write there,
// else /dev/shm/gpumem. (/run/gpumem is not made: only root could, and where others
// already use the second there would be two registries.)
//
// A folder that another user than root owns, or that others may write to without
// the sticky bit, is refused with [ErrUntrusted]: there another user could remove
// or rename the files of a lease. An error names the folder and the way out.
func Open(dir string) (*Registry, error) {
	if dir == "" {
		if dir = os.Getenv(EnvDir); dir != "" && !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("registry %s: %s is a relative path, which is another folder in each working directory; give an absolute one", dir, EnvDir)
		}
	}
	if dir == "" {
		dir = shmDir
		if info, err := os.Lstat(runDir); err == nil && info.IsDir() && info.Mode().Perm()&0o003 == 0o003 {
			dir = runDir
		}
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("registry %s: it is a symbolic link; remove it, or set %s to another folder", dir, EnvDir)
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", dir, err)
	}
	r := &Registry{dir: abs, namespace: namespace()}
	return r, r.make()
}

// make makes the folder if it is missing, and checks that it can be used.
func (r *Registry) make() error {
	if err := os.Mkdir(r.dir, 0o700); err == nil {
		// Not by Mkdir, which leaves the sticky bit out and heeds the umask.
		if err := os.Chmod(r.dir, fs.ModeSticky|0o777); err != nil {
			return r.why(r.dir, err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return r.why(r.dir, err)
	}
	info, err := os.Stat(r.dir)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err == nil {
		err = trusted(info)
	}
	if err == nil {
		const writable, searchable = 2, 1
		err = syscall.Access(r.dir, writable|searchable)
	}
	if err != nil {
		return r.why(r.dir, err)
	}
	return nil
}

// trusted returns an error that names the other users who could remove or rename files
// in a folder.
func trusted(info fs.FileInfo) error {
	const others = 0o022
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch {
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%w: it belongs to user %d", ErrUntrusted, owner)
	case info.Mode().Perm()&others != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("%w: its mode is %04o without the sticky bit", ErrUntrusted, info.Mode().Perm())
	}
	return nil
}

// why returns an error of the file system with a remedy.
func (r *Registry) why(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	way := fmt.Sprintf("set %s to another folder, the same for all who share the GPU", EnvDir)
	switch {
	case errors.Is(err, ErrUntrusted):
		way = fmt.Sprintf("as root make a folder for all users (mkdir -m 1777 %s), or set %s to a folder of root's or of this user", runDir, EnvDir)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		way = fmt.Sprintf("let all users write there (as root: chmod 1777 %s), or %s", r.dir, way)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG):
		way = "make room on its disk, or " + way
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported):
		err = fmt.Errorf("this system or this file system has no locks of open file descriptions (fcntl F_OFD_SETLK): %w", err)
	}
	if path != r.dir {
		return fmt.Errorf("registry %s: %s: %w; %s", r.dir, filepath.Base(path), err, way)
	}
	return fmt.Errorf("registry %s: %w; %s", r.dir, err, way)
}

// keyOf returns the beginning of the names of a GPU's files.
func keyOf(device string) string {
	sum := sha256.Sum256([]byte(device))
	return fmt.Sprintf("%x", sum[:8])
}

// base returns the offset at which the locks of a GPU's leases begin. It differs
// between registries, by folder and file system. A lease is at most mostBytes.
func (r *Registry) base(key string) uint64 {
	var dev uint64
	if info, err := os.Stat(r.dir); err == nil {
		dev = uint64(info.Sys().(*syscall.Stat_t).Dev)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s", r.dir, dev, key))
	return lowestBase | binary.BigEndian.Uint64(sum[:])>>4
}

const (
	lowestBase = 1 << 62
	mostBytes  = 1 << 61 // 2 EiB; with the highest base still below 1<<63
)

func (r *Registry) path(key, id, kind string) string {
	return filepath.Join(r.dir, key+"."+id+"."+kind)
}

// publish makes a file that appears under its name as a whole: fill writes and
// locks it before. The file is open for writing. It never replaces another.
func (r *Registry) publish(path string, mode fs.FileMode, fill func(*os.File) error) (*os.File, error) {
	const tmpfile = 0x400000 | syscall.O_DIRECTORY // O_TMPFILE of fcntl.h
	temp := ""
	f, err := os.OpenFile(r.dir, tmpfile|os.O_RDWR, 0o600)
	if named || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.EINVAL) {
		if err == nil {
			f.Close()
		}
		key, _, _ := strings.Cut(filepath.Base(path), ".")
		temp = r.path(key, newID(), newKind)
		f, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, err
	}
	at("publish: opened")
	if err = f.Chmod(mode); err == nil {
		err = fill(f)
	}
	at("publish: filled")
	if err == nil && temp == "" {
		err = linkFile(f, path)
	} else if err == nil {
		err = os.Link(temp, path)
	}
	at("publish: named")
	if temp != "" {
		os.Remove(temp)
		at("publish: unlinked")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// named makes publish use files that have a name from the start; only tests set it.
var named = false

// linkFile gives a name to a file that has none.
func linkFile(f *os.File, path string) error {
	const follow = 0x400 // AT_SYMLINK_FOLLOW
	here := -100         // AT_FDCWD
	from, err := syscall.BytePtrFromString(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return err
	}
	to, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(here), uintptr(unsafe.Pointer(from)), uintptr(here), uintptr(unsafe.Pointer(to)), follow, 0)
	if errno != 0 {
		return &fs.PathError{Op: "linkat", Path: path, Err: errno}
	}
	return nil
}

// lockFile makes the lock file of a lease, locked.
func (r *Registry) lockFile(key string, rec record) (*os.File, error) {
	path := r.path(key, rec.ID, lockKind)
	base := r.base(key)
	f, err := r.publish(path, 0o644, func(f *os.File) error {
		return fcntl(f, ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(base), Len: int64(rec.Bytes)})
	})
	if err != nil {
		return nil, r.why(path, err)
	}
	return f, nil
}

// write writes a lease's record, over the one that is there.
func (r *Registry) write(key string, rec record) error {
	path := r.path(key, rec.ID, leaseKind)
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case err == nil:
		_, err = f.WriteAt(rec.encode(), 0)
	case errors.Is(err, fs.ErrNotExist):
		f, err = r.publish(path, 0o644, func(f *os.File) error {
			_, err := f.WriteAt(rec.encode(), 0)
			return err
		})
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return r.why(path, err)
	}
	return nil
}

// newID returns a name for a lease.
func newID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// lease makes the files of a new lease and returns its lock file. Caller holds the
// lock of the GPU.
func (r *Registry) lease(key string, rec record) (*os.File, error) {
	f, err := r.lockFile(key, rec)
	if err != nil {
		return nil, err
	}
	if err := r.write(key, rec); err != nil {
		r.remove(key, rec.ID)
		f.Close()
		return nil, err
	}
	return f, nil
}

// remove removes the files of a lease, and returns the first error.
func (r *Registry) remove(key, id string) error {
	var first error
	for _, kind := range []string{ledgerKind, leaseKind, lockKind} {
		if err := os.Remove(r.path(key, id, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) && first == nil {
			first = err
		}
		at("removed: " + kind)
	}
	return first
}

// removeLedger removes a ledger whose lease has neither of its files: they were removed
// first, by a clean-up or by another process that was killed meanwhile. If a program of
// the lease lives, its lock on the ledger keeps it.
func (r *Registry) removeLedger(key, id string) {
	for _, kind := range []string{lockKind, leaseKind} {
		if _, err := os.Lstat(r.path(key, id, kind)); err == nil {
			return
		}
	}
	path := r.path(key, id, ledgerKind)
	f, _, _, err := r.locked(path)
	if err == nil {
		f.Close()
	}
	if errors.Is(err, errDead) {
		_ = os.Remove(path)
	}
}

// claim is a lease or a ticket that lives, as read from its files.
type claim struct {
	record
	path  string
	uid   int
	inode uint64    // of the file with the lock
	beat  time.Time // of a ticket: the last sign of life

	attended bool // a lease: a process beside the program holds it too, see Attending
}

func (r *Registry) entry(f claim) Entry {
	e := f.record.entry(f.uid)
	e.Stopped = f.Kind == ticketKind && !r.running(f)
	e.Elsewhere = f.PID > 0 && f.Namespace != r.namespace
	e.inode = f.inode
	e.Ended = r.ended(f)
	return e
}

// running reports whether a waiter runs: whether it has given a sign of life within
// the last five seconds, or within a minute where its process is seen and is not
// stopped. After the clock was set, waiters seem stopped until their next sign.
func (r *Registry) running(f claim) bool {
	silent := time.Since(f.beat).Abs()
	if silent < silence {
		return true
	}
	s, ok := proc.ReadStat(f.PID)
	return ok && f.Namespace == r.namespace && s.Start == f.Start && !s.Stopped() && silent < frozen*silence
}

// errDead: the lock of a file is gone, so what it stood for has ended.
var errDead = errors.New("it has ended")

// locked opens a file and returns its lock. The error is errDead if the file is
// not locked, whatever it is, and fs.ErrNotExist if it is gone.
func (r *Registry) locked(path string) (f *os.File, h extent, info fs.FileInfo, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, a socket
		return nil, h, nil, errDead
	}
	if err != nil {
		return nil, h, nil, err
	}
	if info, err = f.Stat(); err == nil {
		var ok bool
		if !info.Mode().IsRegular() {
			err = errDead
		} else if h, ok, err = lockOf(f); err == nil && !ok {
			err = errDead
		}
	}
	if err != nil {
		f.Close()
		return nil, h, nil, err
	}
	return f, h, info, nil
}

// bad is the error of a file that blocks its GPU.
func bad(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("registry: %s: %w; nothing is granted on its GPU while it is there", path, err)
}

// readLease reads a lease. Its lock reports whether it lives and how large it is. A
// record that is damaged or missing is a note; then only that is known. The error
// is errDead, fs.ErrNotExist, or one that names the file.
func (r *Registry) readLease(key, id string) (l claim, note, err error) {
	path := r.path(key, id, lockKind)
	f, h, info, err := r.locked(path)
	if errors.Is(err, fs.ErrPermission) {
		// Its owner lets no other user open it; the kernel's table has it all the same.
		if info, err = os.Lstat(path); err == nil {
			var ok bool
			if h, ok, err = lockOfInode(inodeOf(info)); err == nil && !ok {
				err = errDead
			}
		}
	}
	if errors.Is(err, errDead) || errors.Is(err, fs.ErrNotExist) {
		return l, nil, err
	}
	if err != nil {
		return l, nil, bad(path, err)
	}
	l = claim{path: r.path(key, id, leaseKind), uid: int(info.Sys().(*syscall.Stat_t).Uid), inode: inodeOf(info)}
	if f != nil {
		l.attended = attended(f)
		f.Close()
	}
	// A record may just be written over.
	for range 3 {
		if l.record, err = readRecord(l.path, key, id); !errors.Is(err, ErrDamaged) {
			break
		}
		at("readLease: damaged")
	}
	switch {
	case errors.Is(err, ErrVersion):
		return l, nil, bad(l.path, err)
	case err != nil && h.length == 0: // not fs.ErrNotExist: the lease is there
		return l, nil, bad(l.path, fmt.Errorf("%w: neither it nor the lock says how large the lease is (%v)", ErrDamaged, err))
	case err != nil:
		note = fmt.Errorf("registry: %s: %w; the lease counts, and its size is read from its lock", l.path, err)
		l.record = record{Kind: leaseKind, ID: id}
	}
	if h.length > 0 {
		l.Bytes = h.length
	}
	return l, note, nil
}

// readRecord reads a record that must have the name of this file.
func readRecord(path, key, id string) (record, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	return readFrom(f, key, id, leaseKind)
}

func readFrom(f *os.File, key, id, kind string) (record, error) {
	b := make([]byte, fileSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	rec, err := decode(b[:n])
	if err == nil && (rec.ID != id || rec.Kind != kind || keyOf(rec.Device) != key) {
		err = fmt.Errorf("%w: it is a copy of another, or has another's name", ErrDamaged)
	}
	return rec, err
}

// readTicket reads a ticket. What cannot be read of one that lives is unknown. The
// error is errDead or fs.ErrNotExist.
func (r *Registry) readTicket(key, id string) (claim, error) {
	path := r.path(key, id, ticketKind)
	f, _, info, err := r.locked(path)
	if errors.Is(err, fs.ErrNotExist) {
		return claim{}, err
	}
	if err != nil {
		return claim{}, errDead // no memory hangs on it
	}
	defer f.Close()
	rec, err := readFrom(f, key, id, ticketKind)
	if err != nil { // or of another version
		rec = record{Kind: ticketKind, ID: id, Waiting: true}
	}
	return claim{record: rec, path: path, uid: int(info.Sys().(*syscall.Stat_t).Uid), inode: inodeOf(info), beat: info.ModTime()}, nil
}

// files returns the ids in the registry by key and kind, those of a kind in order,
// of tickets only those in the queue.
// prefix is a key, or "" for all.
func (r *Registry) files(prefix string) (map[string]map[string][]string, error) {
	d, err := os.Open(r.dir)
	if err != nil {
		return nil, r.why(r.dir, err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, r.why(r.dir, err)
	}
	all := map[string]map[string][]string{}
	for _, name := range names {
		key, rest, ok := strings.Cut(name, ".")
		if !ok || key == "" || prefix != "" && key != prefix {
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
			all[key] = map[string][]string{}
		}
		all[key][kind] = append(all[key][kind], id)
	}
	for _, kinds := range all {
		for _, ids := range kinds {
			slices.Sort(ids)
		}
		kinds[ticketKind] = ticketsAmong(kinds[ticketKind])
	}
	return all, nil
}

// contents are the leases and tickets of the registry for a GPU.
type contents struct {
	leases  []claim
	tickets []string // ids in order; some may be of the dead
}

func records(leases []claim) []record {
	var all []record
	for _, f := range leases {
		all = append(all, f.record)
	}
	return all
}

// holders lists the leases, the largest first.
func (r *Registry) holders(leases []claim) []Entry {
	var all []Entry
	for _, f := range leases {
		all = append(all, r.entry(f))
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return all
}

// scan reads the leases of a GPU and the names of its tickets, and removes the
// files of ended leases. Caller holds the lock of the GPU. A lease of unknown size
// or version is an error.
func (r *Registry) scan(g *guard, key string) (contents, error) {
	var l contents
	files, err := r.files(key)
	if err != nil {
		return l, err
	}
	kinds := files[key]
	for _, id := range kinds[newKind] {
		// Its maker died, or makes it again.
		_ = os.Remove(r.path(key, id, newKind))
		at("look: half a file removed")
	}
	var errs []error
	dead, left := 0, 0
	for _, id := range kinds[lockKind] {
		f, _, err := r.readLease(key, id)
		switch {
		case err == nil:
			l.leases = append(l.leases, f)
		case errors.Is(err, errDead):
			// Others' files cannot be removed, and do no harm.
			dead++
			if r.remove(key, id) != nil {
				left++
			}
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	for _, id := range singles(kinds) {
		if err := r.single(key, id); err != nil {
			errs = append(errs, err)
		} else {
			_ = os.Remove(r.path(key, id, leaseKind))
		}
	}
	for _, id := range kinds[ledgerKind] {
		r.removeLedger(key, id)
	}
	g.saw(dead, left)
	l.tickets = kinds[ticketKind]
	return l, errors.Join(errs...)
}

// singles returns the records that have no lock file.
func singles(kinds map[string][]string) (ids []string) {
	for _, id := range kinds[leaseKind] {
		if _, ok := slices.BinarySearch(kinds[lockKind], id); !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// single reports, as an error, a record without a lock file whose lease lives: it is
// of version 1, which locked the record. nil is one of a lease that has ended.
func (r *Registry) single(key, id string) error {
	path := r.path(key, id, leaseKind)
	f, _, _, err := r.locked(path)
	if err != nil { // a dead one, or one that cannot be opened, has no memory
		return nil
	}
	defer f.Close()
	b := make([]byte, fileSize+1)
	n, _ := f.ReadAt(b, 0)
	if _, err := decode(b[:n]); err != nil {
		return bad(path, err)
	}
	return bad(path, fmt.Errorf("%w: it is locked itself", ErrDamaged))
}

// lost returns leases on a GPU whose lock file was removed while the lease lives.
// The kernel's table of locks has them, with their size; without a table there are
// none to be seen.
func (r *Registry) lost(key string, leases []claim) []claim {
	locks, err := locksAt(r.base(key))
	if err != nil {
		return nil
	}
	known := map[uint64]bool{}
	for _, l := range leases {
		known[l.inode], known[l.Lost] = true, true
	}
	var all []claim
	for _, l := range locks {
		if !known[l.inode] {
			all = append(all, claim{record: record{Kind: leaseKind, Bytes: l.length}, inode: l.inode, uid: -1})
		}
	}
	return all
}

// identify fills in the process of leases whose record is lost, for the count of
// memory: the youngest that has the lock, which is the program and not its launcher.
// Where none is to be seen their memory counts twice.
func (r *Registry) identify(leases []claim) {
	wanted := map[uint64]bool{}
	for _, l := range leases {
		if l.PID == 0 {
			wanted[l.inode] = true
		}
	}
	if len(wanted) == 0 {
		return
	}
	by, err := holders(wanted)
	if err != nil {
		return
	}
	for i := range leases {
		l := &leases[i]
		if pid, start := youngest(by[l.inode], proc.ReadStat); pid > 0 {
			l.PID, l.Start, l.Namespace, l.Command = pid, start, r.namespace, proc.Command(pid)
		}
	}
}

// youngest returns the process that started last, of several the last one; 0: none
// can be seen.
func youngest(pids []int, read func(pid int) (proc.Stat, bool)) (pid int, start uint64) {
	for _, p := range pids {
		if s, ok := read(p); ok && start <= s.Start {
			pid, start = p, s.Start
		}
	}
	return pid, start
}

// List returns every lease that lives and every waiter, of all GPUs: by device,
// leases before waiters, those in order. Leases whose files were removed are there,
// too, on GPUs that other files or the given device keys show. It takes no lock. An
// error names the files that cannot be read; the list has the others.
func (r *Registry) List(devices ...string) ([]Entry, error) {
	files, err := r.files("")
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // devices by key
	for key := range files {
		names[key] = ""
	}
	for _, d := range devices {
		names[keyOf(d)] = d
	}
	var all []Entry
	var errs []error
	for key, device := range names {
		leases, tickets, err := r.all(key, files[key])
		errs = append(errs, err)
		for _, l := range append(leases, tickets...) {
			if device == "" {
				device = l.Device
			}
		}
		for _, l := range append(leases, r.lost(key, leases)...) {
			e := r.entry(l)
			e.Device = device
			if path := r.path(key, e.ID, ledgerKind); e.Ledger == "" && slices.Contains(files[key][ledgerKind], e.ID) {
				e.Ledger = path
			}
			all = append(all, e)
		}
		for i, t := range tickets {
			e := r.entry(t)
			e.Device, e.Place = device, i
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.State, b.State), cmp.Compare(a.Place, b.Place), cmp.Compare(a.ID, b.ID))
	})
	findHolders(all)
	return all, errors.Join(errs...)
}

// all reads the leases and the tickets of a GPU.
func (r *Registry) all(key string, kinds map[string][]string) (leases, tickets []claim, err error) {
	var errs []error
	for _, id := range kinds[lockKind] {
		l, note, err := r.readLease(key, id)
		switch {
		case err == nil:
			leases = append(leases, l)
			if !errors.Is(note, fs.ErrNotExist) { // it may just be made
				errs = append(errs, note)
			}
		case !errors.Is(err, errDead) && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	for _, id := range singles(kinds) {
		errs = append(errs, r.single(key, id))
	}
	for _, id := range kinds[ticketKind] {
		if t, err := r.readTicket(key, id); err == nil {
			tickets = append(tickets, t)
		}
	}
	return leases, tickets, errors.Join(errs...)
}

// findHolders fills in HeldBy of leases whose process is not known to live.
func findHolders(entries []Entry) {
	wanted := map[uint64]bool{}
	for _, e := range entries {
		if e.State == Holds && (e.PID == 0 || e.Ended || e.Elsewhere) {
			wanted[e.inode] = true
		}
	}
	if len(wanted) == 0 {
		return
	}
	by, err := holders(wanted)
	if err != nil {
		return
	}
	for i, e := range entries {
		for _, pid := range by[e.inode] {
			s, _ := proc.ReadStat(pid)
			entries[i].HeldBy = append(entries[i].HeldBy, Holder{pid, proc.Command(pid), s.Start})
		}
		// A program is younger than its launcher.
		slices.SortFunc(entries[i].HeldBy, func(a, b Holder) int { return cmp.Or(cmp.Compare(b.start, a.start), cmp.Compare(b.PID, a.PID)) })
	}
}

// within returns a context for calls that must not hold anything up.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
