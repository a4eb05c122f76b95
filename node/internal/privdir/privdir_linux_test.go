package privdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// other is a user who is neither root nor this one.
func other() int { return os.Geteuid() + 4321 }

// home sets the environment in which User looks, with nothing in it.
func home(t *testing.T) {
	t.Helper()
	for _, name := range []string{"XDG_CACHE_HOME", "HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	before := systemCache
	systemCache = filepath.Join(t.TempDir(), "var", "cache")
	t.Cleanup(func() { systemCache = before })
}

func TestOpenMakesMissingFoldersPrivate(t *testing.T) {
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	base := t.TempDir()
	dir, err := Open(filepath.Join(base, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, want := range map[string]os.FileMode{"a": 0o700, "a/b": 0o755} {
		info, err := os.Stat(filepath.Join(base, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info, err, want)
		}
	}
	if want := filepath.Join(base, "a", "b"); dir.Path() != want {
		t.Errorf("path %s, want %s", dir.Path(), want)
	}
}

// TestOpenRefusesFolderOfOthers: without each of these, another user replaces what
// is trusted.
func TestOpenRefusesFolderOfOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(dir string) error // of DIR, in which DIR/in is opened
		want   string
	}{
		{"others may write above", func(d string) error { return os.Chmod(d, 0o777) }, "other users may write to DIR (mode 0777; chmod go-w)"},
		{"the group may write above", func(d string) error { return os.Chmod(d, 0o775) }, "other users may write to DIR"},
		{"others may write", func(d string) error { return os.Chmod(d+"/in", 0o777) }, "other users may write to DIR/in"},
		{"sticky does not do for the folder itself", func(d string) error { return os.Chmod(d+"/in", 0o777|os.ModeSticky) }, "other users may write to DIR/in"},
		{"not a folder", func(d string) error { return errors.Join(os.Remove(d+"/in"), os.WriteFile(d+"/in", nil, 0o644)) }, "DIR/in: not a directory"},
		{"of another user", func(d string) error { return os.Chown(d+"/in", other(), -1) }, "DIR/in belongs to user"},
		{"in a folder of another user", func(d string) error { return os.Chown(d, other(), -1) }, "DIR belongs to user"},
		{"in a sticky folder of another user", func(d string) error {
			return errors.Join(os.Chown(d, other(), -1), os.Chmod(d, 0o777|os.ModeSticky))
		}, "DIR belongs to user"},
		{"a link into a folder of another user", func(d string) error {
			return errors.Join(os.Mkdir(d+"/theirs", 0o755), os.Chown(d+"/theirs", other(), -1), os.Remove(d+"/in"), os.Symlink("theirs", d+"/in"))
		}, "DIR/theirs belongs to user"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "dir")
			if err := os.MkdirAll(filepath.Join(base, "in"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(base); errors.Is(err, os.ErrPermission) {
				t.Skip("skipped: only root can give a folder to another user")
			} else if err != nil {
				t.Fatal(err)
			}
			dir, err := Open(filepath.Join(base, "in"))
			if err == nil {
				dir.Close()
				t.Fatal("it is opened")
			}
			if want := strings.ReplaceAll(tc.want, "DIR", base); !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %s", err, want)
			}
		})
	}
}

// TestOpenInStickyFolderOfRootIsPrivate: /tmp does, for what is ours in it.
func TestOpenInStickyFolderOfRootIsPrivate(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	dir, err := Open(filepath.Join(base, "in"))
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
}

func TestOpenResolvesLinks(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(base, "real"), 0o755), os.Symlink("real", filepath.Join(base, "link"))); err != nil {
		t.Fatal(err)
	}
	dir, err := Open(filepath.Join(base, "link", "new"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if want := filepath.Join(base, "real", "new"); dir.Path() != want {
		t.Errorf("%s, want %s", dir.Path(), want)
	}
}

// TestUserTakesFirstPrivateFolder: what is not private is passed over, and named
// where nothing is left.
func TestUserTakesFirstPrivateFolder(t *testing.T) {
	home(t)
	open := filepath.Join(t.TempDir(), "open")
	private := t.TempDir()
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", open)
	t.Setenv("XDG_RUNTIME_DIR", private)
	refuse := errors.New("not this one")
	_, err := User(func(*Dir) error { return refuse })
	for _, want := range []string{"XDG_CACHE_HOME): other users may write to " + open, private + "/gpumem (XDG_RUNTIME_DIR): not this one", "set XDG_CACHE_HOME to one"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	dir, err := User(func(d *Dir) error {
		if !strings.HasPrefix(d.Path(), private) {
			return refuse
		}
		return nil
	})
	if err != nil || dir.Path() != filepath.Join(private, "gpumem") {
		t.Fatalf("%v, %v", dir, err)
	}
	dir.Close()
}

// TestUserWithHomeOfAnotherUserTakesNext: sudo may leave HOME as it was.
func TestUserWithHomeOfAnotherUserTakesNext(t *testing.T) {
	home(t)
	theirs := t.TempDir()
	if err := os.Chown(theirs, other(), -1); err != nil {
		t.Skip("skipped: only root can give a folder to another user")
	}
	t.Setenv("HOME", theirs)
	dir, err := User(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if want := filepath.Join(systemCache, "gpumem"); dir.Path() != want {
		t.Errorf("%s, want %s", dir.Path(), want)
	}
	if _, err := os.Stat(filepath.Join(theirs, ".cache")); err == nil {
		t.Error("something was made in the home of another user")
	}
}

func TestWriteFileReplacesWhole(t *testing.T) {
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	dir, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, text := range []string{"long enough", "new", ""} {
		if err := dir.WriteFile("file", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.ReadFile("file"); err != nil || string(got) != text {
			t.Errorf("%q, %v; want %q", got, err, text)
		}
	}
	info, err := dir.Stat("file")
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	entries, _ := os.ReadDir(dir.Path())
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if err := dir.WriteFile("none/file", nil); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("into a folder that is not there: %v", err)
	}
}
