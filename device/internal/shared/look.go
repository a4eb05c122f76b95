package shared

import (
	"time"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/slotfile"
)

// Look returns the state of all devices of the file at path at one moment, without
// taking a slot. It needs permission to read only, changes nothing, and fails
// as [Open] does. Of two devices whose memory a process takes one after the other, it
// shows both takes, the first, or neither.
func Look(path string) ([]State, error) {
	h, err := open(path, false)
	if err != nil {
		return nil, err
	}
	defer h.Close() // and so unlocks
	if err := h.lock(ofd.Read, time.Time{}); err != nil {
		return nil, err
	}
	crashpoint.At("look: locked")
	h.img = new(image)
	if _, err := h.ReadAt(slotfile.Bytes(h.img), 0); err != nil { // too short a file is for count to see
		return nil, h.Errorf("cannot read the file: %w", err)
	}
	c, err := h.count()
	if err != nil {
		return nil, err
	}
	states := make([]State, len(h.devs))
	for dev, d := range h.devs {
		s := &states[dev]
		s.Device = d
		if s.Device.Used, err = h.others(dev); err != nil {
			return nil, err
		}
		if s.Free, err = h.free(&c, dev); err != nil {
			return nil, err
		}
		s.Used = d.Total - s.Free
		for i := range s.Busy {
			s.Busy[i] = time.Duration(h.img.times[dev][i].busy.Load())
		}
		if s.Processes, err = h.processes(&c, dev); err != nil {
			return nil, err
		}
	}
	return states, nil
}
