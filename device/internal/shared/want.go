package shared

// Announcements of processes that wait for memory. Others look at them every 50 ms and
// release what is idle. They are made without the lock: a process must be able to ask
// while another one is stopped, and an announcement that is lost is made again.
//
// The first announcement on device 2 makes the number 0x102, the next one on device 0
// 0x200: the count above, the device in the last 8 bits. The bytes are stored first, so
// that who sees the new number reads them or later ones.

// Want announces that this process waits until n bytes are free on a device.
func (f *File) Want(index int, n uint64) {
	f.onWant(func(w *want) {
		w.bytes.Store(n)
		for {
			old := w.number.Load()
			if w.number.CompareAndSwap(old, (old>>8+1)<<8|uint64(index)) {
				return
			}
		}
	})
}

// Wanted returns the last announcement and its bytes; 0, 0 if that was for
// another device.
func (f *File) Wanted(index int) (number, n uint64) {
	f.onWant(func(w *want) {
		if number = w.number.Load(); number&0xff != uint64(index) {
			number = 0
			return
		}
		n = w.bytes.Load()
	})
	return number, n
}

// onWant calls do with the announcement. A file that was closed or cut short has
// none.
func (f *File) onWant(do func(*want)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h.img == nil {
		return
	}
	_ = f.h.Guard(func() error {
		do(&f.h.img.want)
		return nil
	})
}
