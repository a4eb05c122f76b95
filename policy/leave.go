// The free memory that TensorFlow leaves to the driver and to libraries.

package policy

// Leave says how much of the free memory TensorFlow leaves to the driver and to
// libraries. The zero value says nothing: the fraction counts.
type Leave struct {
	// Rule is how much by the device's size and capability.
	Rule LeaveRule
	// Set is whether Bytes are left instead, where that much is free.
	Set   bool
	Bytes uint64
}

// LeaveRule is how much of the free memory some releases of TensorFlow leave
// (MinSystemMemory in common_runtime/gpu/gpu_device.cc). Where less than 2 GiB
// are free it is 225 MiB, and nothing where that is not free.
type LeaveRule string

// The rules, as the tables of releases name them.
const (
	LeaveNone   LeaveRule = ""
	LeaveSixth  LeaveRule = "sixth"  // 6 % of what is free, at least 300 MiB
	LeaveSteps  LeaveRule = "steps"  // 500 MiB up to compute capability 6, 1050 MiB on 7, 1536 MiB from 8 on
	LeaveSteps9 LeaveRule = "steps9" // the same, but 1800 MiB from 9 on
)

// limit returns what may be taken of d, where l says anything about it.
func (l Leave) limit(d Device) (uint64, bool) {
	if l.Set && l.Bytes <= d.Free {
		return d.Free - l.Bytes, true
	}
	var mib uint64
	switch major := d.CCMajor; {
	case l.Rule == LeaveNone:
		return 0, false
	case d.Free < 2<<30:
		mib = 225
	case l.Rule == LeaveSixth:
		least := max(300<<20, uint64(float64(d.Free)*0.06))
		return d.Free - least, true
	case major <= 6:
		mib = 500
	case major == 7:
		mib = 1050
	case major == 8 || l.Rule == LeaveSteps:
		mib = 1536
	default:
		mib = 1800
	}
	if mib<<20 >= d.Free {
		return d.Free, true
	}
	return d.Free - mib<<20, true
}
