// The registry: a folder with a lock file for each GPU and a file for each lease
// and ticket. Their names are
//
//	KEY.lock   KEY.ID.lease   KEY.ID.ticket   KEY.ID.new
//
// with KEY of 16 hex digits from the GPU's key and ID of 16 by chance. The last
// is a file that is being made, under the lock of the GPU.

package share

import (
	"cmp"
	"context"
	"crypto/sha256"
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
)

// The folders where the machine's registry is, unless the environment says
// otherwise. Tests have others.
var (
	runDir = "/run/gpumem"
	shmDir = "/dev/shm/gpumem"
)

// Times, which tests shorten.
var (
	// asleep is how long a waiter gives no sign of life until it is passed over.
	asleep = 5 * time.Second
	// recently is how long it may take until memory of a program that ended is
	// free, or one that started has taken what it takes.
	recently = time.Second
)

// patienceOfClose is how long Close waits for the GPU's lock to tidy up; without
// it, the next one does.
const patienceOfClose = 100 * time.Millisecond

// Registry is a folder with leases. It may be used by several goroutines.
type Registry struct {
	dir       string
	namespace uint64
}

// Open opens the registry in a folder, which is made if there is none, with mode
// 1777: all may add files, and remove only their own. "" means the folder that
// GPUMEM_RUN_DIR names, else /run/gpumem if all may write there, else
// /dev/shm/gpumem. (/run/gpumem is not made: only root could, and where others
// already use the second there would be two registries.) An error names the
// folder and the way out.
func Open(dir string) (*Registry, error) {
	if dir == "" {
		dir = os.Getenv(EnvDir)
	}
	if dir == "" {
		dir = shmDir
		if info, err := os.Lstat(runDir); err == nil && info.IsDir() && info.Mode().Perm()&0o003 == 0o003 {
			dir = runDir
		}
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("registry %s is a symbolic link, which somebody put there; remove it, or set %s to another folder", dir, EnvDir)
		}
	}
	r := &Registry{dir: dir, namespace: namespace()}
	if err := os.Mkdir(dir, 0o700); err == nil {
		// Not by Mkdir, which leaves the sticky bit out and heeds the umask.
		if err := os.Chmod(dir, fs.ModeSticky|0o777); err != nil {
			return nil, r.why(dir, err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, r.why(dir, err)
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err == nil {
		const writable, searchable = 2, 1
		err = syscall.Access(dir, writable|searchable)
	}
	if err != nil {
		return nil, r.why(dir, err)
	}
	return r, nil
}

// Dir is the folder.
func (r *Registry) Dir() string { return r.dir }

// why is an error of the file system, with the way out.
func (r *Registry) why(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	way := fmt.Sprintf("set %s to another folder, the same for all who share the GPU", EnvDir)
	switch {
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

// keyOf is how the names of a GPU's files begin.
func keyOf(device string) string {
	sum := sha256.Sum256([]byte(device))
	return fmt.Sprintf("%x", sum[:8])
}

func (r *Registry) path(key, id, kind string) string {
	return filepath.Join(r.dir, key+"."+id+"."+kind)
}

// found is a file of the registry.
type found struct {
	record
	path  string
	uid   int
	alive bool
	beat  time.Time // of a ticket: the last sign of life
}

// awake: the waiter runs. A clock that was set makes waiters look asleep until
// their next beat.
func (f found) awake() bool { return time.Since(f.beat).Abs() < asleep }

func (f found) entry() Entry {
	e := f.record.entry(f.uid)
	e.Asleep = f.Kind == ticketKind && !f.awake()
	return e
}

// readFile reads a lease or a ticket. An error names it; fs.ErrNotExist is that
// it is gone.
func (r *Registry) readFile(name string) (found, error) {
	path := filepath.Join(r.dir, name)
	key, rest, _ := strings.Cut(name, ".")
	id, kind, _ := strings.Cut(rest, ".")
	bad := func(err error) (found, error) {
		if errors.Is(err, fs.ErrNotExist) {
			return found{}, err
		}
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return found{}, fmt.Errorf("registry: %s: %w; nothing is given on its GPU while it is there; once no program uses it (fuser %s) remove it", path, err, path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return bad(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return bad(err)
	}
	if !info.Mode().IsRegular() {
		return bad(fmt.Errorf("%w: it is not a regular file", ErrDamaged))
	}
	// Before it is read: one that dies in between is as good as alive.
	alive, err := locked(f)
	if err != nil {
		return bad(err)
	}
	b := make([]byte, fileSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return bad(err)
	}
	rec, err := decode(b[:n])
	if err == nil && (rec.ID != id || rec.Kind != kind || keyOf(rec.Device) != key) {
		err = fmt.Errorf("%w: it is a copy of another, or has another's name", ErrDamaged)
	}
	if err != nil {
		return bad(err)
	}
	return found{rec, path, int(info.Sys().(*syscall.Stat_t).Uid), alive, info.ModTime()}, nil
}

// names are the files whose names begin with that, without the locks.
func (r *Registry) names(prefix string) ([]string, error) {
	d, err := os.Open(r.dir)
	if err != nil {
		return nil, r.why(r.dir, err)
	}
	defer d.Close()
	all, err := d.Readdirnames(-1)
	if err != nil {
		return nil, r.why(r.dir, err)
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasPrefix(name, prefix) || len(strings.Split(name, ".")) != 3 || strings.HasPrefix(name, ".")
	}), nil
}

// look is what is alive of a GPU.
type look struct {
	leases  []found
	tickets []found // in order
}

func (l look) records() []record {
	var all []record
	for _, f := range l.leases {
		all = append(all, f.record)
	}
	return all
}

// holders are the leases as others are told of them, the largest first.
func (l look) holders() []Entry {
	var all []Entry
	for _, f := range l.leases {
		all = append(all, f.entry())
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return all
}

// look reads what is there of a GPU and removes what is left of the dead.
// Caller holds the lock of the GPU. A file that cannot be read is an error.
func (r *Registry) look(g *guard, key string) (look, error) {
	var l look
	names, err := r.names(key + ".")
	if err != nil {
		return l, err
	}
	var errs []error
	dead, left := 0, 0
	for _, name := range names {
		if strings.HasSuffix(name, ".new") {
			// Its maker had the lock and died.
			_ = os.Remove(filepath.Join(r.dir, name))
			at("look: half a file removed")
			continue
		}
		f, err := r.readFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case !f.alive:
			// Others' files cannot be removed, and do no harm.
			err := os.Remove(f.path)
			at("look: a dead one removed")
			if f.Kind == leaseKind {
				dead++
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					left++
				}
			}
		case f.Kind == leaseKind:
			l.leases = append(l.leases, f)
		default:
			l.tickets = append(l.tickets, f)
		}
	}
	g.saw(dead, left)
	slices.SortFunc(l.tickets, byNumber)
	return l, errors.Join(errs...)
}

// byNumber is the order of the queue. Only who forges a file has the number of
// another.
func byNumber(a, b found) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.ID, b.ID))
}

// create makes a file: written and locked before it has its name. Caller holds
// the lock of the GPU.
func (r *Registry) create(key string, rec *record) (f *os.File, path string, err error) {
	rec.ID = fmt.Sprintf("%016x", rand.Uint64())
	path = r.path(key, rec.ID, rec.Kind)
	temp := r.path(key, rec.ID, "new")
	f, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, "", r.why(temp, err)
	}
	at("create: opened")
	if err = f.Chmod(0o644); err == nil {
		_, err = f.WriteAt(rec.encode(), 0)
	}
	at("create: written")
	if err == nil {
		err = setLock(f)
	}
	at("create: locked")
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		f.Close()
		os.Remove(temp)
		return nil, "", r.why(path, err)
	}
	at("create: named")
	return f, path, nil
}

// List is every lease that lives and everybody who waits for one, of all GPUs:
// by device, leases before waiters, those in order. It takes no lock. An error
// names the files that cannot be read; the list has the others.
func (r *Registry) List() ([]Entry, error) {
	names, err := r.names("")
	if err != nil {
		return nil, err
	}
	var all []found
	var errs []error
	for _, name := range names {
		if !strings.HasSuffix(name, "."+leaseKind) && !strings.HasSuffix(name, "."+ticketKind) {
			continue
		}
		f, err := r.readFile(name)
		// It may just be written over.
		for try := 0; errors.Is(err, ErrDamaged) && try < 3; try++ {
			f, err = r.readFile(name)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case f.alive:
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Kind, b.Kind), byNumber(a, b))
	})
	var list []Entry
	place := map[string]int{}
	for _, f := range all {
		e := f.entry()
		if f.Kind == ticketKind {
			e.Place = place[f.Device]
			place[f.Device]++
		}
		list = append(list, e)
	}
	return list, errors.Join(errs...)
}

// within is a context for what must not hold anything up.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
