package shared

import "time"

// The time of a device's engines, which all processes share: what one occupies, the others wait
// for. A process gives an engine a little work at a time, when all before it in its stream is done;
// so processes take turns, and one that is killed keeps an engine for no longer than that.
//
// Process A gives an engine that is idle 2 ms of work at 100 ms: end is 102. B gives it 2 ms at 101:
// end is 104. A's next 2 ms are ready at 102, and end at 106.

// mostAhead is more than an engine can be given: that of a thousand processes with a hundred streams and
// 0.1 ms each at once. An end that is further ahead is none that a process has written since the machine began.
const mostAhead = time.Minute

// Occupy gives an engine of a device work that is ready to begin and takes a time, and returns when it
// is done. The times are those of a clock that all processes read, and now is its time. In a file that was
// closed or cut short, work waits for nobody.
func (f *File) Occupy(dev, number int, now, ready, takes time.Duration) (end time.Duration) {
	end = ready + takes
	f.onEngine(dev, number, func(e *engine) {
		for {
			old := e.end.Load()
			free := time.Duration(old)
			if old > uint64(now+mostAhead) {
				free = 0
			}
			if end = max(ready, free) + takes; e.end.CompareAndSwap(old, uint64(end)) {
				break
			}
		}
		e.busy.Add(uint64(takes))
	})
	return end
}

// Busy returns the time of all work that an engine was given so far.
func (f *File) Busy(dev, number int) (busy time.Duration) {
	f.onEngine(dev, number, func(e *engine) { busy = time.Duration(e.busy.Load()) })
	return busy
}

// onEngine calls do with an engine. A file that was closed or cut short has none.
func (f *File) onEngine(dev, number int, do func(*engine)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h.img == nil {
		return
	}
	_ = f.h.Guard(func() error {
		do(&f.h.img.times[dev][number])
		return nil
	})
}
