// Copies between the GPU and the host of memory that leaves and comes back.

package shim

import (
	"errors"
	"fmt"
	"sync"

	"gpumem/device"
)

// Pinner is a [Driver] that copies while the host does something else: between the GPU and pinned
// memory of its own.
type Pinner interface {
	HostAlloc(bytes uint64) ([]byte, error)
	HostFree(p []byte) error
	WriteAsync(addr uint64, p []byte, s device.Stream) error
	ReadAsync(p []byte, addr uint64, s device.Stream) error
}

// piece is what one copy moves: at an address of the GPU, and at an offset of the host's memory.
type piece struct{ addr, off, bytes uint64 }

// link copies pieces. Memory of the host that is not pinned it copies by two stages that are: while
// one is on the way to the GPU or from it, the other is filled or emptied. They are made when they are first needed,
// and kept: to pin memory takes as long as to copy it.
//
// Without a Pinner, and once nothing could be pinned, the driver copies by stages of its own, and the caller waits
// for each copy.
type link struct {
	driver Driver
	pinner Pinner // nil for none
	say    func(string)

	stream device.Stream // 0 before it is needed
	stages [2]stage

	keeps bool   // pinned memory for all that is away: the arena, which is not given back
	arena []byte // nil before it is needed
}

// stage is pinned memory, and an event behind the last copy to it or from it.
type stage struct {
	bytes []byte
	done  device.Event // 0 for none
}

const (
	// stageBytes is the most that a stage has, and a piece. A deadline, or the end of the process, waits for no more.
	stageBytes = 64 << 20
	// leastStage is a page of most pools.
	leastStage = 2 << 20
)

func newLink(d Driver, c *Config) *link {
	l := &link{driver: d, say: c.Say, keeps: c.Pinned}
	l.pinner, _ = d.(Pinner)
	if l.say == nil {
		l.say = func(string) {}
	}
	return l
}

// pieceBytes is the most bytes of a piece of so many in all: the stages of a small pool are small.
func pieceBytes(all uint64) uint64 {
	half := (all/2 + leastStage - 1) / leastStage * leastStage
	return min(max(half, leastStage), stageBytes)
}

// unpinned has the driver copy from now on. The pinned memory is left alone: a copy may still meet it, and what is
// away may lie in it.
func (l *link) unpinned(err error) {
	l.pinner, l.stages, l.arena = nil, [2]stage{}, nil
	l.sayf("memory that leaves is copied without pinned memory of the host, which is slower: %v", err)
}

func (l *link) sayf(format string, args ...any) {
	l.say(fmt.Sprintf("GPU %d: %s", l.driver.Info().Ordinal, fmt.Sprintf(format, args...)))
}

// begin makes what copies of pieces of so many bytes need, and returns whether they are asynchronous.
func (l *link) begin(bytes uint64) bool {
	if l.pinner == nil {
		return false
	}
	if err := l.prepare(bytes); err != nil {
		l.unpinned(err)
		return false
	}
	return true
}

func (l *link) prepare(bytes uint64) (err error) {
	if l.stream == 0 {
		if l.stream, err = l.driver.StreamCreate(); err != nil {
			return err
		}
	}
	for i := range l.stages {
		s := &l.stages[i]
		if s.done == 0 {
			if s.done, err = l.driver.EventCreate(); err != nil {
				return err
			}
		}
		if l.arena != nil || uint64(len(s.bytes)) >= bytes {
			continue
		}
		if s.bytes != nil {
			if err = l.pinner.HostFree(s.bytes); err != nil {
				return err
			}
		}
		if s.bytes, err = l.pinner.HostAlloc(bytes); err != nil {
			return err
		}
	}
	return nil
}

// keep makes the arena as large as that, where room allows it, and returns so much of it; nil where
// there is none.
func (l *link) keep(bytes uint64, room func(uint64) (HostMemory, error)) ([]byte, error) {
	if !l.keeps || l.pinner == nil || bytes == 0 {
		return nil, nil
	}
	if uint64(len(l.arena)) >= bytes {
		return l.arena[:bytes], nil
	}
	small := l.arena
	l.arena = nil
	if small != nil {
		if err := l.pinner.HostFree(small); err != nil {
			l.unpinned(err)
			return nil, nil
		}
	}
	there, err := room(bytes)
	if err != nil {
		return nil, err
	}
	if err := there.end(); err != nil {
		return nil, err
	}
	if l.arena, err = l.pinner.HostAlloc(bytes); err != nil {
		l.keeps, l.arena = false, nil
		l.sayf("pinned memory for all that leaves cannot be kept: %v", err)
	}
	return l.arena, nil
}

// copier copies pieces by the stages.
type copier func(host []byte, pieces []piece) error

// copyOut copies pieces to the host, and copyIn to the GPU. When they return no copy is under way.
func (l *link) copyOut(host []byte, pieces []piece) error {
	return l.copy(host, pieces, l.driver.Read, l.outBy)
}

func (l *link) copyIn(host []byte, pieces []piece) error {
	return l.copy(host, pieces, l.driver.Write, l.inBy)
}

// copy has one copy a piece and wait, or all copy them all.
func (l *link) copy(host []byte, pieces []piece, one func(uint64, []byte) error, all copier) error {
	var largest uint64
	for _, p := range pieces {
		largest = max(largest, p.bytes)
	}
	if len(pieces) == 0 || !l.begin(largest) {
		for _, p := range pieces {
			if err := one(p.addr, host[p.off:p.off+p.bytes]); err != nil {
				return err
			}
		}
		return nil
	}
	err := all(host, pieces)
	if err == nil {
		return nil
	}
	// A copy that comes late must meet nothing else in its place.
	if late := l.driver.StreamSynchronize(l.stream); late != nil {
		l.unpinned(late)
		err = errors.Join(err, late)
	}
	return err
}

// outBy begins a copy to a stage before it empties the other one.
func (l *link) outBy(host []byte, pieces []piece) error {
	begin := func(i int) error {
		if i >= len(pieces) {
			return nil
		}
		p, s := pieces[i], &l.stages[i%2]
		if err := l.pinner.ReadAsync(l.place(s, host, p), p.addr, l.stream); err != nil {
			return err
		}
		return l.driver.EventRecord(s.done, l.stream)
	}
	if err := begin(0); err != nil {
		return err
	}
	for i, p := range pieces {
		if err := begin(i + 1); err != nil {
			return err
		}
		s := &l.stages[i%2]
		if err := l.driver.EventSynchronize(s.done); err != nil {
			return err
		}
		if l.arena == nil {
			copyBytes(host[p.off:p.off+p.bytes], s.bytes)
		}
	}
	return nil
}

// inBy fills a stage while the other one is copied to the GPU.
func (l *link) inBy(host []byte, pieces []piece) error {
	for i, p := range pieces {
		s := &l.stages[i%2]
		if i >= 2 {
			if err := l.driver.EventSynchronize(s.done); err != nil {
				return err
			}
		}
		from := l.place(s, host, p)
		if l.arena == nil {
			copyBytes(from, host[p.off:p.off+p.bytes])
		}
		if err := l.pinner.WriteAsync(p.addr, from, l.stream); err != nil {
			return err
		}
		if err := l.driver.EventRecord(s.done, l.stream); err != nil {
			return err
		}
	}
	return l.driver.EventSynchronize(l.stages[(len(pieces)-1)%2].done)
}

// place is where the GPU copies a piece to or from.
func (l *link) place(s *stage, host []byte, p piece) []byte {
	if l.arena != nil {
		return host[p.off : p.off+p.bytes]
	}
	return s.bytes[:p.bytes]
}

// close gives back the pinned memory, with which nothing is under way.
func (l *link) close() (err error) {
	if l.pinner == nil {
		return nil
	}
	for _, b := range [][]byte{l.stages[0].bytes, l.stages[1].bytes, l.arena} {
		if b != nil {
			err = errors.Join(err, l.pinner.HostFree(b))
		}
	}
	l.stages, l.arena = [2]stage{}, nil
	return err
}

// copiers is how many threads copy within the host's memory: one is slower than a fast link.
const copiers = 8

// copyBytes is copy(to, from) by several threads.
func copyBytes(to, from []byte) {
	const least = 1 << 20 // bytes for which a thread is worth while
	n := min(len(to), len(from))
	part := max((n+copiers-1)/copiers, least)
	var all sync.WaitGroup
	for at := part; at < n; at += part {
		all.Go(func() { copy(to[at:min(at+part, n)], from[at:min(at+part, n)]) })
	}
	copy(to[:min(part, n)], from[:min(part, n)])
	all.Wait()
}
