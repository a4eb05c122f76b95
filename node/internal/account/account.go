// Package account adds up who has the memory of a GPU and what is left. It reads no files
// but those of /proc, and changes nothing: package registry has the leases, package queue
// who is next.
package account

import "time"

// Lease is what counts of a lease.
type Lease struct {
	ID         string
	Bytes      uint64
	PID        int       // of its process
	Start      uint64    // of that process
	Namespace  uint64    // the inode of the pid namespace that PID is of
	Since      time.Time // when it was granted
	Containers []string  // the ids of its containers

	Group string // of a lease by turns: those that share have the same; "" for none
	Limit uint64 // of the group together; 0: unknown, so that each counts in full
}

// identity names whose memory it is: that of a process with leases, or of a lease's
// containers. A pid alone may be used again; with the time of its start it is not.
type identity struct {
	pid   int
	start uint64
	lease string // the lease's id, if it is its containers'; then the others are 0
}

// process is the process that the lease is for.
func (l Lease) process() identity { return identity{pid: l.PID, start: l.Start} }

// inside is whose memory that of the lease's containers is.
func (l Lease) inside() identity { return identity{lease: l.ID} }
