// Package privdir finds and makes folders that no other user can write to, rename
// or replace: what a program executes or trusts lies there.
//
// A folder is private if it and every folder above it belong to this user or to
// root, and no other user may write there. One exception holds for the folders above:
// root's and this user's own may be open to all if they are sticky, as /tmp is,
// for there only the owner of an entry may rename it. A sticky folder of another
// user saves nothing: its owner may rename every entry.
//
// The check walks down from the root folder by descriptors (openat), so that it is
// about the folders that are really used, and files are made relative to the last
// descriptor. The path that comes out has no symbolic links in it.
package privdir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// name is the folder of this program within a user's folder of caches.
const name = "gpumem"

// systemCache is where root's programs keep what can be made again (FHS 3.0, 5.5).
// Every user may read there, so that a program that gives up root's rights finds
// what root has put there for it. Tests have another.
var systemCache = "/var/cache"

// A Dir is an open private folder. Its files are reached by the descriptor, so a
// path that changes meanwhile does no harm.
type Dir struct {
	*os.Root
	path string
}

// Path returns the folder's absolute path, which has no symbolic links.
func (d *Dir) Path() string { return d.path }

// User opens this user's private folder and makes it if it is missing. The first
// of these that is private and can be written to is taken:
//
//	$XDG_CACHE_HOME/gpumem
//	/var/cache/gpumem         for root
//	$HOME/.cache/gpumem       then the same in the home of the user database
//	$XDG_RUNTIME_DIR/gpumem   the last, for it is removed when the user logs out
//
// use, unless nil, is called with the folder; its error means that the next one is
// tried. The error of User names every folder with the reason why it was not taken.
func User(use func(*Dir) error) (*Dir, error) {
	var why []string
	for _, c := range candidates() {
		dir, err := Open(c.path)
		if err == nil && use != nil {
			if err = use(dir); err != nil {
				dir.Close()
			}
		}
		if err == nil {
			return dir, nil
		}
		why = append(why, fmt.Sprintf("%s (%s): %v", c.path, c.from, err))
	}
	if why == nil {
		why = []string{"neither XDG_CACHE_HOME, HOME nor XDG_RUNTIME_DIR is set to an absolute path"}
	}
	return nil, fmt.Errorf("no folder that only user %d can write to: %s; set XDG_CACHE_HOME to one", os.Geteuid(), strings.Join(why, "; "))
}

// A candidate is a folder to try, and where its name is from.
type candidate struct{ path, from string }

func candidates() []candidate {
	var list []candidate
	add := func(from, base string, under ...string) {
		if !filepath.IsAbs(base) { // as the XDG base directory specification has it
			return
		}
		path := filepath.Join(append(append([]string{base}, under...), name)...)
		for _, c := range list {
			if c.path == path {
				return
			}
		}
		list = append(list, candidate{path, from})
	}
	add("XDG_CACHE_HOME", os.Getenv("XDG_CACHE_HOME"))
	if os.Geteuid() == 0 {
		add("root's", systemCache)
	}
	add("HOME", os.Getenv("HOME"), ".cache")
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		add("the user's home", u.HomeDir, ".cache")
	}
	add("XDG_RUNTIME_DIR", os.Getenv("XDG_RUNTIME_DIR"))
	return list
}

// WriteFile makes the file have this content, with mode 0644 whatever the umask.
// A reader sees the old file or the new one, whole.
func (d *Dir) WriteFile(name string, data []byte) error {
	temp := fmt.Sprintf(".new-%016x", rand.Uint64())
	f, err := d.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return plain(err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = d.Rename(temp, name)
	}
	if err != nil {
		_ = d.Remove(temp)
		return fmt.Errorf("write %s: %w", filepath.Join(d.path, name), plain(err))
	}
	return nil
}

// plain is an error of the file system without the names, which the caller adds.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.Err
	}
	return err
}
