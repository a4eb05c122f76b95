// Package output makes the files that commands write: checked before work that may take long, and
// whole or not at all.
package output

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Same reports whether two paths lead to one regular file, or to one that is to be made.
// The first may be read: - is standard input.
func Same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err := os.Stat(a)
	if a == "-" {
		one, err = os.Stdin.Stat()
	}
	if err != nil || !one.Mode().IsRegular() {
		return false
	}
	two, err := os.Stat(b)
	return err == nil && os.SameFile(one, two)
}

// A File is a flag with the file that it names to be written; "" if it names none.
type File struct{ Flag, Path string }

// Check returns an error if a file clearly cannot be made, or is the input, which is
// of that kind, or the file of another flag. It is called before work that may take long.
func Check(input, kind string, files ...File) error {
	for i, x := range files {
		if x.Path == "" {
			continue
		}
		if err := makable(x.Flag, x.Path); err != nil {
			return err
		}
		if Same(input, x.Path) {
			return fmt.Errorf("%s %s: this is the %s itself; name another file", x.Flag, x.Path, kind)
		}
		for _, other := range files[:i] {
			if other.Path != "" && Same(other.Path, x.Path) {
				return fmt.Errorf("%s %s: %s has the same file; name another", x.Flag, x.Path, other.Flag)
			}
		}
	}
	return nil
}

// makable returns an error if the file of a flag clearly cannot be made.
func makable(flag, path string) error {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return fmt.Errorf("%s: %s: is a directory; name a file in it", flag, path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s: %s: cannot be made: %w", flag, path, Reason(err))
	}
	return nil
}

// Reason returns an error of a file without its path, which the message has already.
func Reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Write makes a file with what write writes. A regular file is replaced at the end,
// so it is never half written; a pipe or a device is written to.
func Write(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	at, flags := fmt.Sprintf("%s.%d.tmp", path, os.Getpid()), os.O_CREATE|os.O_EXCL
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		at, flags = path, 0
	}
	file, err := os.OpenFile(at, flags|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("%s: cannot be made: %w", path, Reason(err))
	}
	err = errors.Join(write(file), file.Close(), ctx.Err())
	if at == path {
		return err
	}
	if err == nil {
		err = os.Rename(at, path)
	}
	if err != nil {
		os.Remove(at)
	}
	return err
}
