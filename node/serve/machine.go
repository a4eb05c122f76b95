// The state of a machine, and its server.

package serve

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/size"
)

// lastTime is the time that open requests have when the server ends.
const lastTime = 3 * time.Second

// The times that a connection may take to send a request, be written to, and stay idle
// between two. A stream of events sets its own for each event.
var (
	readTime  = 10 * time.Second
	writeTime = time.Minute
	idleTime  = time.Minute
)

// mostHeader is the largest header of a request in bytes; a browser's has some hundreds.
const mostHeader = 64 << 10

// Run serves until the context ends, which is no error, or the listener fails.
func Run(ctx context.Context, l net.Listener, h http.Handler) error {
	watch, stop := context.WithCancel(context.Background())
	defer stop()
	s := &http.Server{Handler: h, ReadHeaderTimeout: readTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: mostHeader, BaseContext: func(net.Listener) context.Context { return watch },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { closeUnread(c); return ctx }}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop() // streams of events end
	last, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	if err := s.Shutdown(last); err != nil {
		return s.Close()
	}
	return nil
}

// Machine shows snapshots of a machine, such as those of package node/probe. The
// title is the host's name.
func Machine(title string, snapshot func() (*machine.Snapshot, error)) Look {
	return func(context.Context) (*State, error) {
		s, err := snapshot()
		if err != nil {
			return nil, err
		}
		return stateOf(title, s), nil
	}
}

func stateOf(title string, s *machine.Snapshot) *State {
	out := &State{Time: s.Time, Title: title, Driver: s.Driver, Devices: []shownDevice{}, snapshot: s}
	for _, n := range s.Notes {
		out.Notes = append(out.Notes, report.OneLine(n))
	}
	for _, d := range s.Devices {
		v := shownDevice{Device: d.Spec, Name: d.Name, UUID: d.UUID, Simulated: d.Simulated, Total: d.Total, Leased: d.Leased,
			Told: d.Used != nil, Programs: []shownProgram{}, Waiting: []shownWaiting{}}
		if v.Told {
			v.Used, v.Free = *d.Used, *d.Free
		}
		for _, p := range d.Programs {
			v.Programs = append(v.Programs, programOf(p))
		}
		for _, l := range d.Waiting {
			v.Waiting = append(v.Waiting, shownWaiting{PID: l.PID, User: l.User, Command: commandOf(l.Command), Wants: l.Wants, Since: l.Since})
		}
		out.Devices = append(out.Devices, v)
	}
	return out
}

func programOf(p machine.Program) shownProgram {
	v := shownProgram{PID: p.PID, Name: p.Name, User: p.User, Command: commandOf(p.Command), Used: p.Holds(), Told: p.Used != nil || p.Kind == "", Started: p.Started} // with a lease alone it holds nothing
	mark := func(format string, args ...any) { v.Marks = append(v.Marks, fmt.Sprintf(format, args...)) }
	if p.Lease != nil {
		v.Lease, v.LeasePool, v.lease = p.Lease.Bytes, p.Lease.Sum, cmp.Or(p.Lease.ID, strconv.Itoa(p.Lease.Holder))
		if p.Lease.Programs > 1 {
			mark("%d programs in one lease", p.Lease.Programs)
		}
	}
	if u := p.Pool; u != nil {
		v.Pool = u
		mark("pool holds %s, %s in use, peak %s, %d refused", size.Format(u.Held), size.Format(u.InUse), size.Format(u.PeakInUse), u.Refused)
	}
	if v.Turn = p.Turn; p.Turn != nil {
		mark("%s", turnMark(p.Turn))
	}
	if p.LeftBy > 0 {
		mark("left by %d", p.LeftBy)
	}
	if p.ParentGone != nil && *p.ParentGone {
		mark("parent gone")
	}
	switch where := view.Where(p.Lease); {
	case p.Pod != nil:
		mark("container %s", p.Pod)
	case p.Started == nil && where != "":
		mark("container %s", where)
	case p.Container != "":
		mark("container %s", p.Container)
	}
	for i, f := range p.Frameworks {
		mark("%s", strings.TrimSpace(f+" "+p.Releases[i]))
	}
	if v.Name == "" && len(p.Command) > 0 {
		v.Name = filepath.Base(p.Command[0])
	}
	return v
}

func commandOf(words []string) string { return report.OneLine(strings.Join(words, " ")) }

// turnMark returns where a program's memory is.
func turnMark(t *machine.Turn) string {
	text := "turn: " + view.TurnWord(t)
	if t.OnHost > 0 {
		text += ", " + size.Format(t.OnHost) + " on the host"
	}
	return text
}
