// Package regular opens files in folders where other users make files, too. What has a
// name there may be a link to elsewhere, a FIFO or a device, and to open one of those
// already does something: it leads out of the folder, wakes who waits at the other end, or
// starts the device. So [Open] looks first, and opens what it has looked at.
package regular

import "errors"

var (
	// ErrNotRegular is the error of a name that stands for something else than a file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrOwner is the error of a file of another user than the one who is expected,
	// wrapped in one that names both.
	ErrOwner = errors.New("the file is another user's")
)

// Anyone is the owner of a file that may belong to any user.
const Anyone = -1
