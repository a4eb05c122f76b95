//go:build unix && !linux

package launch

// inForeground is not known here: leases are for Linux alone.
func inForeground() bool { return false }
