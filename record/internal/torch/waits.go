package torch

// Blocks that wait after their free (free_requested) for other streams that use them, until
// free_completed. With one stream the two events follow each other.

import "gpumem/record/internal/tape"

// waited notes the block that an event frees, if it waited. A block that is older than the
// recording and whose free was not requested in it waited from the beginning.
func (d *device) waited(e event) {
	slot, live := d.blocks.Slot(e.addr)
	from, requested := d.pending[e.addr]
	if !requested {
		from = uint64(len(d.seeds))
	}
	_, isOlder := d.older[e.addr]
	isOlder = isOlder && !requested && d.asked
	delete(d.older, e.addr)
	if live && (isOlder || requested && from < d.pool.Events()) {
		d.waits = append(d.waits, tape.Wait{Slot: slot, From: from, To: d.pool.Events() + 1})
	}
}

// waitOn notes the blocks that wait when the recording ends.
func (d *device) waitOn() {
	for addr := range d.awaited {
		slot, live := d.blocks.Slot(addr)
		from, requested := d.pending[addr]
		if !requested {
			from = uint64(len(d.seeds))
		}
		if live {
			d.waits = append(d.waits, tape.Wait{Slot: slot, From: from})
		}
	}
	d.pool.Waits(d.waits)
}
