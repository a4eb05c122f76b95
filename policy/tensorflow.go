// TensorFlow: how large its pool is, and its variables.

package policy

// Leave says how much of the free memory TensorFlow leaves to the driver and to
// libraries. The zero value leaves nothing to say: the fraction counts.
type Leave struct {
	// Rule is how much by the device's size and capability.
	Rule LeaveRule
	// Set is whether Bytes are left instead, where that much is free.
	Set   bool
	Bytes uint64
}

// LeaveRule is a rule of some releases of TensorFlow.
type LeaveRule uint8

// limit is what may be taken of d, where l says anything about it.
func (l Leave) limit(d Device) (uint64, bool) {
	if l.Set && l.Bytes <= d.Free {
		return d.Free - l.Bytes, true
	}
	return 0, false
}
