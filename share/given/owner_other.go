//go:build !unix

package given

import "io/fs"

// ours: such a system has no folder that all users share.
func ours(fs.FileInfo) bool { return true }
