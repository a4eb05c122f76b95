// Memory of a pool that can leave the GPU and come back to the same addresses.

package shim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"gpumem/device"
)

// pages is the memory beneath a pool of a program that lends it, or that runs by turns with
// others ([Config].Moves). What the allocator has as a handle is a number of this file, behind
// which memory of the driver is there or not, so that the allocator, its blocks and the
// program's addresses stay as they are while the memory is elsewhere.
//
// # One way out and back
//
//	leave      a run is what lies side by side: [0, 6) and [64, 70), in MiB, of pages of 2
//	  room     12 MiB of the host, or nothing is done
//	  copy     both runs to the host. What fails up to here has changed nothing
//	  unmap    a call a run; release, a call a handle
//	  look     the driver has 12 MiB more free, or somebody keeps the memory (see kept)
//	  account  12 MiB less are held; addresses, handles and contents are books now
//	...        creates, maps, unmaps and releases of the allocator change these books
//	return     12 MiB in the account first: others may have the room, then it is tried again later
//	  create   a handle each, map, access a run, copy. What fails is undone, and the
//	           contents are on the host still
//
// # What holds
//
// The contents of a page are on the GPU, or on the host, or in both places and equal; a page
// that was copied to the host is not written until it is back: the caller keeps the program
// from submitting work meanwhile.
type pages struct {
	*gpu
	room func(bytes uint64) (HostMemory, error)

	// moving is held while memory leaves or returns, and by the calls of the allocator. It is
	// taken with the lock of the pool above held, never the other way round.
	moving sync.Mutex
	away   bool // the memory has left; guarded by moving, as is what follows
	host   HostMemory
	link   *link
	last   device.Handle
	memory map[device.Handle]*backing
	mapped map[uint64]*backing // by address
	plain  map[uint64]*grant   // by address
	kept   int                 // ways out in a row after which what was released was not free
	fixed  error               // why the memory is not to leave any more; nil: it may
}

// backing is what is behind a handle of the allocator.
type backing struct {
	bytes uint64
	there bool          // the driver's memory is there, and counted
	real  device.Handle // of it
	addr  uint64        // where it is mapped, for the allocator; 0: nowhere
	bound bool          // and for the driver, too
	seen  bool          // the GPU has access there, for the allocator
	saved bool          // what lies in it is on the host, too
	off   uint64        // at this offset
}

// HostMemory is memory of the host for what lay on a GPU, and how it is given back; nil: not at all.
type HostMemory struct {
	Bytes   []byte
	Release func() error
}

func (h HostMemory) end() error {
	if h.Release == nil {
		return nil
	}
	return h.Release()
}

func newPages(g *gpu, c *Config) *pages {
	return &pages{
		gpu: g, room: c.Room, link: newLink(g.Driver, c),
		memory: map[device.Handle]*backing{}, mapped: map[uint64]*backing{}, plain: map[uint64]*grant{},
	}
}

// held returns the bytes that the pool has for its allocator, on the GPU or on the host.
func (p *pages) held() (bytes uint64) {
	for _, b := range p.memory {
		bytes += b.bytes
	}
	return bytes
}

// create makes a handle. While the memory is away it is counted when it returns, and no more of
// it than could.
func (p *pages) create(bytes uint64) (device.Handle, error) {
	p.moving.Lock()
	defer p.moving.Unlock()
	b := &backing{bytes: bytes}
	if !p.away {
		if err := p.fetch(b); err != nil {
			return 0, err
		}
	} else if most := p.most(); bytes > less(most, p.held()) {
		return 0, p.refused("cuMemCreate", bytes, device.ErrOutOfMemory)
	}
	p.last++
	p.memory[p.last] = b
	return p.last, nil
}

// most is the most memory that can return: what the lease has beside what stays, of this process and of others.
func (p *pages) most() uint64 {
	return less(min(p.account.Reachable(), p.info.Total), p.account.Beside())
}

// fetch takes memory of the driver.
func (p *pages) fetch(b *backing) (err error) {
	if err := p.take("cuMemCreate", b.bytes); err != nil {
		return err
	}
	if b.real, err = p.Driver.MemCreate(b.bytes); err != nil {
		p.denied.Add(1)
		p.account.Give(Held, b.bytes)
		return err
	}
	b.there = true
	return nil
}

// drop releases it.
func (p *pages) drop(b *backing) error {
	if !b.there {
		return nil
	}
	if err := p.Driver.MemRelease(b.real); err != nil {
		return err
	}
	b.there, b.real = false, 0
	return nil
}

func (p *pages) release(h device.Handle) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	b, err := p.of("cuMemRelease", h)
	if err != nil {
		return err
	}
	if b.addr != 0 {
		return p.invalid("cuMemRelease")
	}
	there := b.there
	if err := p.drop(b); err != nil {
		return err
	}
	delete(p.memory, h)
	if there {
		p.account.Give(Held, b.bytes)
	}
	return nil
}

func (p *pages) bind(addr, bytes uint64, h device.Handle) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	b, err := p.of("cuMemMap", h)
	if err != nil {
		return err
	}
	if b.addr != 0 || bytes != b.bytes || p.mapped[addr] != nil {
		return p.invalid("cuMemMap")
	}
	if b.there && !p.away {
		if err := p.Driver.MemMap(addr, bytes, b.real); err != nil {
			return err
		}
		b.bound = true
	}
	b.addr, b.seen = addr, false
	p.mapped[addr] = b
	return nil
}

// access gives the GPU access to a range of whole mappings.
func (p *pages) access(addr, bytes uint64) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	list, err := p.within("cuMemSetAccess", addr, bytes)
	if err != nil {
		return err
	}
	if !p.away {
		if err := p.open(addr, bytes); err != nil {
			return err
		}
	}
	for _, b := range list {
		b.seen = true
	}
	return nil
}

func (p *pages) unbind(addr, bytes uint64) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	list, err := p.within("cuMemUnmap", addr, bytes)
	if err != nil {
		return err
	}
	if !p.away {
		if err := p.Driver.MemUnmap(addr, bytes); err != nil {
			return err
		}
	}
	for _, b := range list {
		if p.away && b.bound { // it did not leave
			if err := p.Driver.MemUnmap(b.addr, b.bytes); err != nil {
				return err
			}
		}
		delete(p.mapped, b.addr)
		b.addr, b.bound, b.seen, b.saved = 0, false, false, false // no allocator asks for what lay in a free page
	}
	return nil
}

func (p *pages) of(call string, h device.Handle) (*backing, error) {
	if b := p.memory[h]; b != nil {
		return b, nil
	}
	return nil, p.invalid(call)
}

func (p *pages) invalid(call string) error {
	return &device.CallError{Call: call, Device: p.info.Name, Err: device.ErrInvalidValue}
}

// within returns the mappings that a range consists of.
func (p *pages) within(call string, addr, bytes uint64) (list []*backing, err error) {
	for at := addr; at < addr+bytes; {
		b := p.mapped[at]
		if b == nil || b.bytes > addr+bytes-at {
			return nil, p.invalid(call)
		}
		list = append(list, b)
		at += b.bytes
	}
	return list, nil
}

// grant is plain memory, made of a page. What of it is gone is 0.
type grant struct {
	bytes  uint64
	handle device.Handle
	mapped bool
}

// alloc is a plain grant.
func (p *pages) alloc(bytes uint64) (r device.Range, err error) {
	page := p.info.Page
	if bytes > 1<<62 {
		return r, p.refused("cuMemAlloc", bytes, device.ErrOutOfMemory)
	}
	g := &grant{bytes: (bytes + page - 1) / page * page}
	if g.handle, err = p.create(g.bytes); err != nil {
		return r, err
	}
	addr, err := p.AddressReserve(g.bytes, 0)
	if err != nil {
		return r, errors.Join(err, p.release(g.handle))
	}
	p.moving.Lock()
	p.plain[addr] = g
	p.moving.Unlock()
	if err = p.bind(addr, g.bytes, g.handle); err == nil {
		g.mapped = true
		err = p.access(addr, g.bytes)
	}
	if err != nil {
		return r, errors.Join(err, p.end(addr, g))
	}
	return device.Range{Addr: addr, Bytes: g.bytes}, nil
}

// free ends a plain grant. The driver's waits for all work, and so does this. After an error it
// can be called again.
func (p *pages) free(addr uint64) error {
	p.moving.Lock()
	g := p.plain[addr]
	p.moving.Unlock()
	if g == nil {
		return p.invalid("cuMemFree")
	}
	if err := p.Driver.SynchronizeContext(); err != nil {
		return err
	}
	return p.end(addr, g)
}

// end ends what there is of a grant.
func (p *pages) end(addr uint64, g *grant) error {
	if g.mapped {
		if err := p.unbind(addr, g.bytes); err != nil {
			return err
		}
		g.mapped = false
	}
	if g.handle != 0 {
		if err := p.release(g.handle); err != nil {
			return err
		}
		g.handle = 0
	}
	if err := p.AddressFree(addr, g.bytes); err != nil {
		return err
	}
	p.moving.Lock()
	delete(p.plain, addr)
	p.moving.Unlock()
	return nil
}

// run is mappings side by side.
type run struct {
	addr, bytes uint64
	of          []*backing
}

// runs returns the mappings by address, joined where they lie side by side and all are alike.
func (p *pages) runs(alike func(b *backing) bool) (list []run) {
	all := make([]*backing, 0, len(p.mapped))
	for _, b := range p.mapped {
		if alike(b) {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *backing) int { return cmp.Compare(a.addr, b.addr) })
	for _, b := range all {
		if n := len(list) - 1; n >= 0 && list[n].addr+list[n].bytes == b.addr {
			list[n].bytes += b.bytes
			list[n].of = append(list[n].of, b)
			continue
		}
		list = append(list, run{b.addr, b.bytes, []*backing{b}})
	}
	return list
}

// mayLeave returns why the memory is not to leave any more.
func (p *pages) mayLeave() error {
	p.moving.Lock()
	defer p.moving.Unlock()
	return p.fixed
}

// movable returns the bytes that would be free if the memory left.
func (p *pages) movable() uint64 {
	p.moving.Lock()
	defer p.moving.Unlock()
	if p.away || p.fixed != nil {
		return 0
	}
	return p.held()
}

// isAway reports whether the memory has left, and how much it takes to return.
func (p *pages) isAway() (needs uint64, away bool) {
	p.moving.Lock()
	defer p.moving.Unlock()
	if !p.away {
		return 0, false
	}
	return p.missing(), true
}

// leave moves the memory to the host. Nothing runs on the GPU that uses it, and nothing is
// submitted until it is back. After an error the memory is where it was, or, as away then
// says, on the host, and will return as usual.
func (p *pages) leave() (m Moved, err error) {
	p.moving.Lock()
	defer p.moving.Unlock()
	if p.away {
		return m, nil
	}
	runs := p.runs(func(b *backing) bool { return b.bound && b.seen })
	for _, r := range runs {
		m.Host += r.bytes
	}
	if p.host, err = p.hostMemory(m.Host); err != nil {
		return Moved{}, err
	}
	if err := p.link.copyOut(p.host.Bytes, save(runs)); err != nil {
		p.forget()
		return Moved{}, err
	}
	before, _, err := p.Driver.MemInfo()
	if err != nil {
		p.forget()
		return Moved{}, err
	}
	p.away = true
	m.GPU, err = p.letGo()
	if err == nil {
		err = p.check(before, m.GPU)
	}
	if err != nil { // some of it may be gone
		return m, errors.Join(err, p.back())
	}
	p.account.Give(Held, m.GPU)
	return m, nil
}

// hostMemory takes memory of the host: kept pinned memory where there is to be some.
func (p *pages) hostMemory(bytes uint64) (HostMemory, error) {
	if arena, err := p.link.keep(bytes, p.room); arena != nil || err != nil {
		return HostMemory{Bytes: arena}, err
	}
	return p.room(bytes)
}

// save gives what lies in runs its place on the host, one behind the other.
func save(runs []run) []piece {
	off := uint64(0)
	for _, r := range runs {
		for _, b := range r.of {
			b.saved, b.off = true, off
			off += b.bytes
		}
	}
	return pieces(runs)
}

// pieces returns what of runs is on the host, as pieces that are as large as they can be. What lies
// side by side now did so when it left, and does on the host.
func pieces(runs []run) (list []piece) {
	var all uint64
	for _, r := range runs {
		all += r.bytes
	}
	most := pieceBytes(all)
	for _, r := range runs {
		begins := true
		for _, b := range r.of {
			if !b.saved {
				begins = true
				continue
			}
			for at := uint64(0); at < b.bytes; {
				if n := len(list) - 1; !begins && list[n].bytes < most {
					more := min(most-list[n].bytes, b.bytes-at)
					list[n].bytes += more
					at += more
					continue
				}
				list, begins = append(list, piece{b.addr + at, b.off + at, 0}), false
			}
		}
	}
	return list
}

// letGo unmaps and releases all memory of the driver's, and returns the bytes of it.
func (p *pages) letGo() (released uint64, err error) {
	for _, r := range p.runs(func(b *backing) bool { return b.bound }) {
		if err := p.Driver.MemUnmap(r.addr, r.bytes); err != nil {
			return released, err
		}
		for _, b := range r.of {
			b.bound = false
		}
	}
	for _, h := range p.handles() {
		b := p.memory[h]
		if !b.there {
			continue
		}
		if err := p.drop(b); err != nil {
			return released, err
		}
		released += b.bytes
	}
	return released, nil
}

// ErrKept is the error of memory that was released and is not free: something that the driver
// does not tell of keeps it, such as a registration for a network card.
var ErrKept = errors.New("memory that was released is not free")

// mostKept is after how many such ways out in a row the memory is not to leave any more. Another process
// that takes memory just then has the same look, but not each time.
const mostKept = 3

// check reports whether what was released is free. Half of it will do: programs without a lease
// may have taken some meanwhile.
func (p *pages) check(before, released uint64) error {
	after, _, err := p.Driver.MemInfo()
	if err != nil {
		return err
	}
	if after >= before+released/2 {
		p.kept = 0
		return nil
	}
	err = fmt.Errorf("%w: %d bytes were free, %d were released, and %d are free", ErrKept, before, released, after)
	if p.kept++; p.kept >= mostKept {
		p.fixed = err
	}
	return err
}

// comeBack brings the memory back to its addresses. The error wraps device.ErrOutOfMemory where
// there is no room; then all is as before, and it can be called again.
func (p *pages) comeBack() (Moved, error) {
	p.moving.Lock()
	defer p.moving.Unlock()
	if !p.away {
		return Moved{}, nil
	}
	m := Moved{GPU: p.missing()}
	if err := p.account.Take(Held, m.GPU); err != nil {
		return Moved{}, p.refused("cuMemCreate", m.GPU, err)
	}
	for _, b := range p.mapped {
		if b.saved {
			m.Host += b.bytes
		}
	}
	return m, p.back()
}

// handles returns all handles, in the order in which they were made.
func (p *pages) handles() []device.Handle { return slices.Sorted(maps.Keys(p.memory)) }

// missing returns the bytes that are to return.
func (p *pages) missing() (bytes uint64) {
	for _, b := range p.memory {
		if !b.there {
			bytes += b.bytes
		}
	}
	return bytes
}

// back makes the memory that is missing, which is counted, and fills it. Where that fails it
// leaves again, and is counted no longer.
func (p *pages) back() error {
	err := p.rebuild()
	if err == nil {
		p.away = false
		p.forget()
		return nil
	}
	_, undo := p.letGo() // what the driver keeps now stays counted
	p.account.Give(Held, p.missing())
	return errors.Join(err, undo)
}

// rebuild makes, maps and fills what is missing.
func (p *pages) rebuild() (err error) {
	for _, h := range p.handles() {
		b := p.memory[h]
		if b.there {
			continue
		}
		if b.real, err = p.Driver.MemCreate(b.bytes); err != nil {
			return err
		}
		b.there = true
	}
	for _, r := range p.runs(func(b *backing) bool { return !b.bound }) {
		for _, b := range r.of {
			if err := p.Driver.MemMap(b.addr, b.bytes, b.real); err != nil {
				return err
			}
			b.bound = true
		}
	}
	seen := p.runs(func(b *backing) bool { return b.seen })
	for _, r := range seen {
		if err := p.open(r.addr, r.bytes); err != nil {
			return err
		}
	}
	return p.link.copyIn(p.host.Bytes, pieces(seen))
}

// close ends what is away, which nobody has a use for any more.
func (p *pages) close() {
	p.moving.Lock()
	defer p.moving.Unlock()
	if p.away {
		p.away = false
		p.forget()
	}
	_ = p.link.close() // the context, which ends, has it else
}

// forget ends the use of the host's memory.
func (p *pages) forget() {
	for _, b := range p.memory {
		b.saved = false
	}
	_ = p.host.end() // it is ours alone, and nothing else can be done about it
	p.host = HostMemory{}
}

// less is a difference, at least 0.
func less(a, b uint64) uint64 { return a - min(a, b) }
