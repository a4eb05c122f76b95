package sim

// memory is a piece of physical memory: a plain grant's, a pool chunk's, or a
// handle's. Addresses come and go; what was written stays with the memory.
type memory struct {
	bytes uint64
	uses  []use // work that touches it and that the host does not know to be done (hazard.go)
}

// piece is a part of physical memory: what lies behind some addresses.
type piece struct {
	mem        *memory
	off, bytes uint64
}

// read, write, fill: the contents, sparse. off and the length lie inside.

func (m *memory) read(off uint64, p []byte)      {}
func (m *memory) write(off uint64, p []byte)     {}
func (m *memory) fill(off, bytes uint64, b byte) {}

// pieces is what lies behind [addr, addr+bytes), in order of addresses; false
// where some of it is not there or may not be accessed, or bytes is 0. Caller
// holds d.mu.
func (d *Device) pieces(addr, bytes uint64) ([]piece, bool) { return nil, false }
