// The books: which leases are held on this node, by which containers, and the files with
// which they count.
//
// An account is one lease: some shares of one GPU. It has a lease of the registry, so that
// gpumem run and gpumem ps on the node know of it, and a ledger, in which the programs of
// all its containers count together. It lives as long as a sandbox of a pod that has it. A
// new agent takes up the accounts of the one before it by the containers that run: the
// ledgers are where they were, so no limit changes meanwhile.
//
// A ledger that is gone or damaged while containers with it may run is never made anew: a
// second one would count what they hold a second time. New containers are refused then,
// until those have ended.

package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gpumem/node/ledger"
	"gpumem/node/share"
)

// GPU is a GPU of this node that the agent can read.
type GPU struct {
	UUID  string
	Key   string      // of the registry of leases
	Meter share.Meter // what is in use on it
}

// member is a container with an account.
type member struct {
	share.Container
	pod podRef
	box string // the ID of its sandbox: a pod whose sandbox was lost gets another

	stopped bool // the runtime has said so
}

// account is one lease that pods of this node have.
type account struct {
	lease
	gpu     GPU
	path    string                       // the ledger
	header  ledger.Header                // that it was made with
	ledger  *ledger.Ledger               // open for reading; nil if it could not be opened
	lost    error                        // why no new container can have it
	written bool                         // a program has written another limit into it, or made it larger
	said    struct{ lost, written bool } // in events
	dirty   bool                         // the lease's record is not what members are
	held    *share.Lease                 // nil where the registry had no room for one that was taken up

	members map[string]member // by the container's ID
	boxes   map[string]podRef // the pods, by the IDs of their sandboxes
	refused uint64            // requests that programs were refused, as last seen
}

// sortedMembers are the containers by pod and name.
func (a *account) sortedMembers() []member {
	return slices.SortedFunc(maps.Values(a.members), func(x, y member) int {
		return strings.Compare(x.Namespace+"/"+x.Pod+"/"+x.Name+x.ID, y.Namespace+"/"+y.Pod+"/"+y.Name+y.ID)
	})
}

// use returns the containers for the lease's record.
func (a *account) use() (list []share.Container) {
	for _, m := range a.sortedMembers() {
		list = append(list, m.Container)
	}
	return list
}

// books are the accounts of the node. The registry's locks are other programs', too, which
// may hold them for long: so it is not asked with mu held, and lists are brought up to date
// in the background.
type books struct {
	dir      string // a folder for each account
	registry *share.Registry
	gpus     map[string]GPU // by UUID
	proc     string         // the folder /proc of the host's pid namespace
	log      *slog.Logger
	changed  chan struct{} // of capacity 1: an account is dirty

	mu       sync.Mutex
	accounts map[string]*account // by key
	moving   map[string]moving   // accounts that are being opened or closed, by key
	swept    bool                // all containers that run have their accounts, so a file without one is nobody's
}

type moving struct {
	shares []string
	done   chan struct{}
}

func newBooks(run, proc string, gpus []GPU, log *slog.Logger) (*books, error) {
	r, err := share.Open(run)
	if err != nil {
		return nil, err
	}
	b := &books{dir: filepath.Join(run, "shares"), registry: r, gpus: map[string]GPU{}, proc: proc, log: log,
		changed: make(chan struct{}, 1), accounts: map[string]*account{}, moving: map[string]moving{}}
	for _, g := range gpus {
		b.gpus[g.UUID] = g
	}
	if st, err := os.Stat(run); err == nil && st.Mode()&(fs.ModeSticky|fs.ModePerm) == 0o755 {
		// As the kubelet makes it. Without this users of the node, with gpumem run, would take
		// another registry.
		if err := os.Chmod(run, 0o777|fs.ModeSticky); err != nil {
			return nil, err
		}
	}
	return b, MakeOwn(b.dir)
}

// join has a container in the account of a lease, which is opened if there is none. A
// container that runs already is taken up: nothing is refused then, not even where the
// registry has no room any more, since its ledger limits it all the same.
func (b *books) join(ctx context.Context, l lease, m member, runs bool) (*account, error) {
	key := l.Key()
	b.mu.Lock()
	for {
		w, ok := b.moving[key]
		if !ok {
			break
		}
		b.mu.Unlock()
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("share %s is being opened or closed for another container: %w", key, ctx.Err())
		}
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	a := b.accounts[key]
	if a == nil {
		if err := b.conflict(l); err != nil {
			return nil, err
		}
		done, swept := b.move(key, l.Shares), b.swept
		b.mu.Unlock()
		var err error
		a, err = b.open(ctx, l, m, runs, swept)
		b.mu.Lock()
		done()
		if err != nil {
			return nil, err
		}
		b.accounts[key] = a
	}
	if !runs {
		a.check()
	}
	if a.lost != nil && !runs {
		return nil, a.lost
	}
	if a.Bytes != l.Bytes || a.UUID != l.UUID {
		return nil, fmt.Errorf("share %s has %d bytes of %s, and had %d bytes of %s when its first container started", key, l.Bytes, l.UUID, a.Bytes, a.UUID)
	}
	// A container that starts again has a new ID, and the kubelet keeps the old one a while.
	maps.DeleteFunc(a.members, func(_ string, old member) bool { return old.pod == m.pod && old.Name == m.Name })
	a.members[m.ID], a.boxes[m.box] = m, m.pod
	b.touch(a)
	return a, nil
}

// move notes that an account is being opened or closed, and returns what ends that. Caller
// holds b.mu both times.
func (b *books) move(key string, shares []string) (done func()) {
	w := moving{shares, make(chan struct{})}
	b.moving[key] = w
	return func() {
		delete(b.moving, key)
		close(w.done)
	}
}

// touch has the lease's record written. Caller holds b.mu.
func (b *books) touch(a *account) {
	a.dirty = true
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// write writes the records of leases whose containers have changed.
func (b *books) write() {
	type record struct {
		a    *account
		held *share.Lease
		use  []share.Container
	}
	var list []record
	b.all(func(a *account) {
		if a.dirty && a.held != nil {
			list = append(list, record{a, a.held, a.use()})
			a.dirty = false
		}
	})
	for _, r := range list {
		if err := r.held.SetUse(r.use, r.a.path); err != nil && !errors.Is(err, os.ErrClosed) {
			b.log.Error("a lease's record", "share", r.a.Key(), "err", err)
			b.mu.Lock()
			r.a.dirty = true // again is when it is written
			b.mu.Unlock()
		}
	}
}

// conflict reports that a share of a lease is in use in another combination. Caller holds
// b.mu.
func (b *books) conflict(l lease) error {
	with := func(key string, shares []string, in string) error {
		for _, s := range l.Shares {
			if key != l.Key() && slices.Contains(shares, s) {
				return fmt.Errorf("share %s of %s is in use by %s with other shares of that GPU (%s): give each container the same requests, or a claim for itself", s, strings.Join(l.Claims, ", "), in, key)
			}
		}
		return nil
	}
	for key, a := range b.accounts {
		if err := with(key, a.Shares, names(a.sortedMembers())); err != nil {
			return err
		}
	}
	for key, w := range b.moving {
		if err := with(key, w.shares, "another container"); err != nil {
			return err
		}
	}
	return nil
}

// open opens an account. swept is that of the books.
func (b *books) open(ctx context.Context, l lease, m member, runs, swept bool) (*account, error) {
	a := &account{lease: l, gpu: b.gpus[l.UUID], members: map[string]member{}, boxes: map[string]podRef{}}
	if a.gpu.UUID == "" { // nobody can read it here: what the leases leave is what counts
		a.gpu = GPU{UUID: l.UUID, Key: l.UUID}
	}
	dir := filepath.Join(b.dir, fileName(l.Shares))
	a.path = filepath.Join(dir, "ledger")
	a.header = ledger.Header{UUID: l.UUID, Limit: min(l.Bytes, l.Total), Total: l.Total, Shared: true}
	var err error
	if a.held, err = b.acquire(ctx, a, m, runs); err != nil {
		return nil, err
	}
	create := func() error {
		err := errors.Join(os.Mkdir(dir, 0o711), ledger.Create(a.path, a.header))
		if err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		return a.openLedger()
	}
	_, err = os.Lstat(dir)
	switch {
	case runs || err == nil:
		err = a.openLedger()
	default:
		err = create()
	}
	if err != nil && !runs && swept { // of an agent that was killed while it made the file
		if err = os.RemoveAll(dir); err == nil {
			err = create()
		}
	}
	switch {
	case err == nil:
		a.refused, _ = a.ledger.Refusals()
	case runs:
		a.lose(err)
		b.log.Error("the ledger of containers that run is lost", "share", a.Key(), "err", err)
	default:
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// fileName names the files of a lease by its shares. A name has at most 255 bytes.
func fileName(shares []string) string {
	if len(shares) == 1 {
		return shares[0]
	}
	sum := sha256.Sum256([]byte(strings.Join(shares, "+")))
	return fmt.Sprintf("%s+%x", shares[0], sum[:8])
}

// openLedger opens the ledger and checks that it is this lease's.
func (a *account) openLedger() error {
	l, err := ledger.Open(a.path)
	if err != nil {
		return err
	}
	if err := a.verify(); err != nil {
		return errors.Join(err, l.Close())
	}
	a.ledger = l
	return nil
}

// verify checks the file that containers get. Another limit in it is let be: the library goes
// by the lease file of its container, which no program can write to.
func (a *account) verify() error {
	l, err := ledger.Open(a.path)
	if err != nil {
		return err
	}
	h := l.Header()
	a.written = a.written || h.Limit != a.header.Limit
	h.Limit = a.header.Limit
	if h != a.header {
		err = fmt.Errorf("ledger %s is of another lease: %+v, and not %+v", a.path, h, a.header)
	}
	return errors.Join(err, l.Close())
}

// check finds out whether the ledger is there and whole.
func (a *account) check() {
	if a.lost != nil {
		return
	}
	err := a.verify()
	if st, statErr := os.Stat(a.path); err != nil && statErr == nil && st.Size() > ledger.Bytes {
		// A program has made it larger, to fill the host's memory. Nothing is behind its end.
		err = errors.Join(os.Truncate(a.path, ledger.Bytes), a.verify())
		a.written = true
	}
	if err != nil {
		a.lose(err)
	}
}

func (a *account) lose(err error) {
	a.lost = fmt.Errorf("the ledger of share %s is lost (%w), in which %s count: no other container can have the share before these have ended; delete their pods", a.Key(), err, names(a.sortedMembers()))
}

// holds returns what the containers hold, as far as they count it.
func (a *account) holds() uint64 {
	if a.ledger == nil {
		return 0
	}
	return a.ledger.Held()
}

// freed is how long a request waits for the memory of a program that has just ended. The
// runtime gives up on a plugin after 2 s.
const freed = 500 * time.Millisecond

// acquire takes the registry's lease. It returns none for containers that run where the
// registry has no room for it.
func (b *books) acquire(ctx context.Context, a *account, m member, runs bool) (*share.Lease, error) {
	q := share.Request{Device: a.gpu.Key, Bytes: a.Bytes, Total: a.Total, Settled: true, Command: []string{"kubernetes", m.pod.String() + "/" + m.Name}}
	if !runs && a.gpu.Meter != nil {
		q.Meter = crowdMeter{a.gpu.Meter, b, a.UUID}
	}
	if q.Meter != nil && a.Bytes >= a.Total { // all of it is all but what the driver keeps for itself
		if st, err := q.Meter.Status(); err == nil {
			q.Bytes = min(a.Bytes, st.Total) - min(st.Reserved, a.Bytes/2)
		}
	}
	until := time.Now().Add(freed)
	for {
		leases, err := b.registry.Acquire(ctx, q)
		if err == nil {
			return leases[0], nil
		}
		var short *share.InsufficientMemoryError
		switch {
		case errors.As(err, &short) && runs:
			b.log.Warn("the registry has no room for a lease whose containers run", "share", a.Key(), "err", err)
			return nil, nil
		case short == nil || q.Meter == nil || len(short.Foreign) == 0 || time.Now().After(until) || ctx.Err() != nil:
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// again takes the leases of accounts that have none, see acquire.
func (b *books) again(ctx context.Context) {
	b.write() // also what could not be written
	var list []*account
	b.all(func(a *account) {
		if a.held == nil && len(a.members) > 0 {
			list = append(list, a)
		}
	})
	for _, a := range list {
		limited, cancel := context.WithTimeout(ctx, asking)
		held, err := b.acquire(limited, a, member{}, true)
		cancel()
		if err != nil || held == nil {
			continue
		}
		b.mu.Lock()
		if b.accounts[a.Key()] == a {
			a.held, held = held, nil
			b.touch(a)
		}
		b.mu.Unlock()
		if held != nil { // it has ended meanwhile
			_ = held.Close()
		}
	}
}

// leave ends the use of a container's accounts. The last container of a sandbox ends that,
// too: a runtime that was restarted may not say when a sandbox ends.
func (b *books) leave(container string) {
	b.change(func(a *account) bool {
		m, ok := a.members[container]
		if !ok {
			return false
		}
		delete(a.members, container)
		if !a.has(m.box) {
			delete(a.boxes, m.box)
		}
		return true
	})
}

// has reports whether a container of a sandbox has the account.
func (a *account) has(box string) bool {
	for _, m := range a.members {
		if m.box == box {
			return true
		}
	}
	return false
}

// end ends a sandbox.
func (b *books) end(box string) {
	b.change(func(a *account) bool {
		if _, ok := a.boxes[box]; !ok {
			return false
		}
		delete(a.boxes, box)
		maps.DeleteFunc(a.members, func(_ string, m member) bool { return m.box == box })
		return true
	})
}

// change calls f with each account, which reports whether it has changed it, and closes
// those that no sandbox has any more, with their files.
func (b *books) change(f func(*account) bool) {
	type closing struct {
		a    *account
		done func()
	}
	var list []closing
	b.mu.Lock()
	for key, a := range b.accounts {
		switch {
		case !f(a):
		case len(a.boxes) > 0:
			b.touch(a)
		default:
			delete(b.accounts, key)
			list = append(list, closing{a, b.move(key, a.Shares)})
		}
	}
	b.mu.Unlock()
	for _, c := range list {
		if err := errors.Join(c.a.close(), os.RemoveAll(filepath.Dir(c.a.path))); err != nil {
			b.log.Error("the end of a lease", "share", c.a.Key(), "err", err)
		}
	}
	b.mu.Lock()
	for _, c := range list {
		c.done()
	}
	b.mu.Unlock()
}

// stopped notes that a container has ended or is to end.
func (b *books) stopped(container string) {
	b.all(func(a *account) {
		if m, ok := a.members[container]; ok {
			m.stopped = true
			a.members[container] = m
		}
	})
}

// idle ends the sandboxes all of whose containers have stopped and none of which has a
// process.
func (b *books) idle(list []process) {
	runs := map[string]bool{}
	for _, p := range list {
		runs[p.container] = true
	}
	gone := map[string]bool{}
	b.all(func(a *account) {
		for box := range a.boxes {
			idle := true
			for id, m := range a.members {
				idle = idle && (m.box != box || m.stopped && !runs[id])
			}
			if idle {
				gone[box] = true
			}
		}
	})
	for box := range gone {
		b.end(box)
	}
}

// reconcile ends the sandboxes and containers that are gone, of a runtime that was away.
func (b *books) reconcile(boxes, containers map[string]bool) {
	gone := map[string]bool{}
	b.all(func(a *account) {
		for box := range a.boxes {
			if !boxes[box] {
				gone[box] = true
			}
		}
		maps.DeleteFunc(a.members, func(id string, _ member) bool { return !containers[id] })
	})
	for box := range gone {
		b.end(box)
	}
}

// close ends the lease and leaves the ledger's file.
func (a *account) close() error {
	var err error
	if a.ledger != nil {
		err = a.ledger.Close()
	}
	if a.held != nil {
		err = errors.Join(err, a.held.Close())
	}
	return err
}

// pods are the pods that have the account, each once.
func (a *account) pods() map[podRef]bool {
	list := map[podRef]bool{}
	for _, p := range a.boxes {
		list[p] = true
	}
	return list
}

// sweep removes the files of accounts that no pod has, after a new agent has taken up all.
func (b *books) sweep() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.swept = true
	own := map[string]bool{}
	for _, a := range b.accounts {
		own[fileName(a.Shares)] = true
	}
	for _, w := range b.moving {
		own[fileName(w.shares)] = true
	}
	list, err := os.ReadDir(b.dir)
	for _, e := range list {
		if !own[e.Name()] {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, e.Name())))
		}
	}
	return err
}

// unknown says that there may be others that run.
func (b *books) unknown() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.swept = false
}

// all calls f with each account, by key.
func (b *books) all(f func(*account)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(b.accounts)) {
		f(b.accounts[key])
	}
}

// shutdown ends the leases and leaves the files, for the next agent.
func (b *books) shutdown() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.accounts {
		if err := a.close(); err != nil {
			b.log.Error("the end of a lease", "share", a.Key(), "err", err)
		}
	}
	clear(b.accounts)
}

// names returns the containers as text, a few of many.
func names(list []member) string {
	var text []string
	for i, m := range list {
		if i == 3 && len(list) > 4 {
			text = append(text, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		text = append(text, m.pod.String()+"/"+m.Name)
	}
	if len(text) == 0 {
		return "no container"
	}
	return strings.Join(text, ", ")
}
