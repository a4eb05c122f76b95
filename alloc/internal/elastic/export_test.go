package elastic

// Held is how many pages it thinks a live byte lies on.
func (a *Allocator) Held() uint64 { return a.held }

// Owned is how many pages it thinks the device counts as its.
func (a *Allocator) Owned() uint64 { return a.owned() }

// LateEpoch makes it as if so many epochs had passed that few are left.
func (a *Allocator) LateEpoch() {
	a.epochs.SkipTo(1<<32 - 4)
}
