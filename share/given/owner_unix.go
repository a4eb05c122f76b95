//go:build unix

package given

import (
	"io/fs"
	"os"
	"syscall"
)

// ours says whether a file is this user's, and nobody else may write to it.
func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(stat.Uid) == int64(os.Getuid()) && info.Mode().Perm()&0o022 == 0
}
