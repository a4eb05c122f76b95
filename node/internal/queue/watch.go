// The wait in the kernel for the owner of a ticket.

package queue

import (
	"io/fs"
	"os"
	"sync"

	"gpumem/node/internal/registry"
)

// watch is a wait in the kernel for a ticket's owner to leave the queue. All requests
// of this process that wait for one ticket share it, and the thread that it takes.
type watch struct {
	f     *os.File
	gone  chan struct{} // closed when the ticket's lock is gone
	woken map[chan<- bool]bool
}

// watches are the waits of this process by the ticket's file, which is open, so its inode is
// no other file's. The mutex guards their woken, too.
var watches = struct {
	sync.Mutex
	of map[registry.FileID]*watch
}{of: map[registry.FileID]*watch{}}

// isOver reports whether the wait has ended.
func (w *watch) isOver() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// watchTicket returns the wait for a ticket. The error is that of a ticket that is gone.
// The wait ends only when the ticket's owner leaves the queue, for whatever reason.
// woken, a channel with room for one value, then has one, unless [watch.leave] came
// before.
func watchTicket(t registry.Claim, woken chan<- bool) (*watch, error) {
	f, err := registry.OpenTicket(t.Path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && registry.IDOf(info).Inode != t.Inode {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	id := registry.IDOf(info)
	watches.Lock()
	defer watches.Unlock()
	if w := watches.of[id]; w != nil {
		f.Close()
		w.woken[woken] = true
		return w, nil
	}
	w := &watch{f, make(chan struct{}), map[chan<- bool]bool{woken: true}}
	watches.of[id] = w
	go func() {
		registry.WaitTicket(f)
		watches.Lock()
		defer watches.Unlock()
		delete(watches.of, id)
		close(w.gone)
		f.Close()
		for c := range w.woken {
			select {
			case c <- true:
			default:
			}
		}
	}()
	return w, nil
}

// leave ends the wait of one request.
func (w *watch) leave(woken chan<- bool) {
	watches.Lock()
	defer watches.Unlock()
	delete(w.woken, woken)
}
