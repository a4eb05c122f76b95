package sim

// Touched is how many bytes of this program's own memory the contents take,
// for tests. What lies in a pool's chunk counts while something is allocated
// from it.
func (d *Device) Touched() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[*memory]bool)
	for _, m := range d.handles {
		all[m] = true
	}
	for s := range d.space.from(0) {
		if s.mem != nil {
			all[s.mem] = true
		}
	}
	for b := range d.pools.blocks.all {
		_, c := d.pools.holding(b.addr)
		all[&memory{pages: c.pages}] = true
	}
	pages := make(map[*[pageSize]byte]bool) // blocks of a pool may share one
	for m := range all {
		for _, p := range m.pages {
			if p.data != nil {
				pages[p.data] = true
			}
		}
	}
	return uint64(len(pages)) * pageSize
}
