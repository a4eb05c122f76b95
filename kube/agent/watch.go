// What is looked at while containers run: requests beyond a lease, and use of the GPU
// past it.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gpumem/size"
)

const (
	looks   = time.Second      // at ledgers: a header word each
	retries = 2 * time.Second  // of containers that ran before the agent
	pasts   = 5 * time.Second  // at processes of containers
	regains = 10 * time.Second // of leases that the registry had no room for, and of the node's condition
	compare = 5 * time.Minute  // of the node with what it should be: a request to the API server
)

// watch looks until ctx is done. It calls end if the agent has to begin anew.
func (a *Agent) watch(ctx context.Context, end func(error)) {
	every := func(d time.Duration, f func()) {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				f()
			}
		}
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.books.changed:
				a.books.write()
			}
		}
	}()
	go every(retries, a.takeUp)
	go every(pasts, a.past)
	go every(regains, func() { a.books.again(ctx); a.status.write(ctx) })
	look := func() {
		if err := a.status.compare(ctx); err != nil {
			end(err)
		}
	}
	go func() { look(); every(compare, look) }()
	every(looks, func() { a.look("") })
}

// look reports the requests that ledgers have refused, of one pod or, with "", of all.
func (a *Agent) look(pod string) {
	a.books.all(func(acc *account) {
		if acc.ledger == nil || pod != "" && !slices.ContainsFunc(slices.Collect(maps.Values(acc.boxes)), func(p podRef) bool { return p.uid == pod }) {
			return
		}
		n, last := acc.ledger.Refusals()
		if n == acc.refused {
			return
		}
		more := n - acc.refused
		acc.refused = n
		a.counts.outOfLease.Add(more)
		text := outOfLease(acc, last)
		for p := range acc.pods() {
			a.events.say(p, OutOfLease, acc.Key(), text)
		}
	})
}

// outOfLease says what was refused and what would help.
func outOfLease(a *account, last uint64) string {
	held := a.holds()
	text := fmt.Sprintf("%s: a request for %s of GPU memory was refused: the claim's %s hold ", names(a.sortedMembers()), size.Format(last), size.Format(a.Bytes))
	if n := len(a.ledger.Members()); n == 0 {
		text += "nothing any more"
	} else {
		text += fmt.Sprintf("%s of %d process(es)", size.Format(held), n)
	}
	if max(held+last, a.Bytes+1) > a.Total {
		return text + fmt.Sprintf(". With the request that is more than the GPU's %s: make the program use less, or take a larger GPU", size.Format(a.Total))
	}
	if last > a.Bytes {
		return text + fmt.Sprintf(". The request alone is more than the claim: claim at least %s, or make the program use less", size.Format(last))
	}
	return text + fmt.Sprintf(". Claim at least %s, or make the program use less. If its framework goes on after this, by freeing what it keeps, nothing is needed", size.Format((max(held+last, a.Bytes+1)+1<<20-1)>>20<<20))
}

// past finds programs of containers with a lease that use a GPU without the library: with
// another LD_LIBRARY_PATH, by the path of the driver's library, or static. They are ended,
// or reported alone, as the configuration says: nothing limits them. What a GPU says of its
// memory is looked at, too, where it can be read.
func (a *Agent) past() {
	ids := map[string]bool{}
	a.books.all(func(acc *account) {
		for id := range acc.members {
			ids[id] = true
		}
		acc.check()
		said := acc.said
		acc.said.lost, acc.said.written = acc.lost != nil, acc.written
		for p := range acc.pods() {
			if acc.lost != nil && !said.lost {
				a.events.ignored(p, acc.Key(), acc.lost.Error())
			}
			if acc.written && !said.written {
				a.events.ignored(p, acc.Key(), fmt.Sprintf("a program of %s has written into the ledger of its claim: the limit of %s stays", names(acc.sortedMembers()), size.Format(acc.Bytes)))
			}
		}
	})
	if len(ids) == 0 {
		return
	}
	list := processes(a.cfg.Proc, ids)
	a.books.idle(list)
	for _, p := range list {
		how, err := p.past(a.cfg.Proc)
		if errors.Is(err, fs.ErrPermission) {
			a.blind.Do(func() {
				a.log.Error("processes of containers cannot be looked into, so use of a GPU past the library is not seen: the agent needs the capability SYS_PTRACE", "err", err)
			})
		}
		if err == nil && how != "" {
			a.pastLibrary(p, how)
		}
	}
	a.overLease(list)
}

// pastLibrary ends or reports a program that uses a GPU without the library.
func (a *Agent) pastLibrary(p process, how string) {
	did := "nothing limits it"
	if !a.cfg.KeepPast {
		did = "it was ended, for nothing would limit it"
		if err := p.end(a.cfg.Proc); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return
			}
			did = fmt.Sprintf("it could not be ended (%v), and nothing limits it", err)
		}
	}
	a.counts.past.Add(1)
	a.books.all(func(acc *account) {
		if m, ok := acc.members[p.container]; ok {
			a.log.Error("a program uses a GPU past the library", "pod", m.pod.String(), "container", m.Name, "pid", p.pid, "how", how, "ended", !a.cfg.KeepPast)
			a.events.ignored(m.pod, m.Name+how, fmt.Sprintf("container %s: process %d %s, and not the library in %s: %s. LD_LIBRARY_PATH must begin with that folder, as the container gets it", m.Name, p.inner, how, LibraryFolder, did))
		}
	})
}

// overLease reports leases whose containers hold more than they have, as GPUs say it.
func (a *Agent) overLease(list []process) {
	own := map[int]string{} // container by pid
	for _, p := range list {
		own[p.pid] = p.container
	}
	used := map[string]map[string]uint64{} // by GPU, then by container
	for _, g := range a.cfg.GPUs {
		st, err := g.Meter.Status()
		if err != nil {
			a.log.Warn("a GPU cannot be read", "gpu", g.UUID, "err", err)
			continue
		}
		used[g.UUID] = map[string]uint64{}
		for _, p := range st.Processes {
			used[g.UUID][own[p.PID]] += p.Used
		}
	}
	a.books.all(func(acc *account) {
		var sum uint64
		for id := range acc.members {
			sum += used[acc.UUID][id]
		}
		if sum <= acc.Bytes {
			return
		}
		in := names(acc.sortedMembers())
		for p := range acc.pods() {
			a.events.ignored(p, acc.Key(), fmt.Sprintf("%s: %s of GPU memory are in use, and the claim has %s", in, size.Format(sum), size.Format(acc.Bytes)))
		}
	})
}
