package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func environ(pid int) ([]string, error)       { return system.environ(pid) }
func frameworks(pid int) ([]Framework, error) { return system.frameworks(pid) }
func loaded(pid int, prefix string) ([]Library, error) {
	return system.loaded(pid, prefix)
}

// A root is a folder with a folder for each process, as proc(5) has it.
type root string

const system = root("/proc")

// file is the name of what is shown of a process.
func (r root) file(pid int, name string) string {
	return filepath.Join(string(r), strconv.Itoa(pid), name)
}

func (r root) environ(pid int) ([]string, error) {
	if err := check(pid); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(r.file(pid, "environ"))
	if err != nil {
		return nil, r.why(pid, err)
	}
	if len(data) == 0 {
		// The kernel shows that for a moment after a program has begun, and for
		// what has no memory any more. That nothing at all is set is rare, and
		// cannot be told from it.
		return nil, fmt.Errorf("process %d shows no environment: it is just starting, or ending, or was started without one", pid)
	}
	// Each variable ends with one zero byte. setproctitle moves the variables
	// elsewhere and fills this place with the title and zeros.
	if data[0] == 0 || bytes.Contains(data, []byte{0, 0}) {
		return nil, fmt.Errorf("process %d has written over the environment that it was started with, as setproctitle does; its parent's may be the same", pid)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

// runs is an error for what has no program in memory, where reading what it
// has mapped gives nothing or only a part, and no error.
func (r root) runs(pid int) error {
	if _, err := os.Readlink(r.file(pid, "exe")); err != nil {
		return r.why(pid, err)
	}
	return nil
}

// why is an error as a person needs it.
func (r root) why(pid int, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH): // before it was read, or meanwhile
		if _, err := os.Stat(r.file(pid, "")); err == nil {
			// Its parent has not asked for its status yet; or it is a thread.
			return fmt.Errorf("process %d has ended, or is the kernel's own", pid)
		}
		return fmt.Errorf("process %d: there is no such process", pid)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("process %d: not permitted: only its own user and the machine's root may look at it", pid)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// known are the frameworks.
var known = []struct {
	name     string
	folders  []string       // that their Python packages put libraries into
	packages *regexp.Regexp // whose version counts, by the names of metadata
}{
	// A plugin has the version of the jaxlib that it is for.
	{"jax", []string{"jaxlib", "jax_plugins", "jax_cuda12_plugin", "jax_cuda13_plugin"}, regexp.MustCompile(`^jaxlib$`)},
	{"tensorflow", []string{"tensorflow"}, regexp.MustCompile(`^(tensorflow(_cpu|_gpu|_rocm|_cpu_aws|_intel)?|intel_tensorflow|tf_nightly(_cpu|_gpu)?)$`)},
	{"pytorch", []string{"torch"}, regexp.MustCompile(`^torch$`)},
	{"cupy", []string{"cupy", "cupy_backends"}, regexp.MustCompile(`^cupy(_cuda[0-9x]+|_rocm_[0-9_]+)?$`)},
}

func (r root) frameworks(pid int) ([]Framework, error) {
	if err := check(pid); err != nil {
		return nil, err
	}
	libraries, err := r.libraries(pid)
	if err != nil {
		return nil, err
	}
	folders := map[string][]string{} // their entries, read once
	list := func(site string) []string {
		names, ok := folders[site]
		if !ok {
			// As the process sees it, which may be in a container. What cannot
			// be read has no metadata.
			entries, _ := os.ReadDir(r.file(pid, "root") + site)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			folders[site] = names
		}
		return names
	}
	var found []Framework
	for _, k := range known {
		f := Framework{Name: k.name}
		gone := false
		for _, library := range libraries {
			where, deleted := strings.CutSuffix(library, " (deleted)")
			for _, folder := range k.folders {
				site := siteOf(where, folder)
				if site == "" {
					continue
				}
				version := versionIn(list(site), k.packages)
				if version == "" && !isSite(site) {
					continue // a folder of the same name
				}
				gone = gone || deleted
				if f.Path == "" || f.Version == "" && version != "" {
					f.Version, f.Path = version, where
				}
			}
		}
		if gone { // what lies there now is another
			f.Version = ""
		}
		if f.Path != "" {
			found = append(found, f)
		}
	}
	return found, nil
}

// libraries are the files that a process has mapped into its memory, each once.
func (r root) libraries(pid int) ([]string, error) {
	var list []string
	seen := map[string]bool{}
	err := r.eachMapping(pid, func(file, _, _ string) {
		if !seen[file] {
			seen[file] = true
			list = append(list, file)
		}
	})
	return list, err
}

func (r root) loaded(pid int, prefix string) (list []Library, err error) {
	if err := check(pid); err != nil {
		return nil, err
	}
	at := map[string]int{}
	runs := map[string]bool{} // one that is only read is not loaded
	err = r.eachMapping(pid, func(file, rights, offset string) {
		file, deleted := strings.CutSuffix(file, " (deleted)")
		if !strings.HasPrefix(path.Base(file), prefix) {
			return
		}
		if _, known := at[file]; !known {
			at[file] = len(list)
			list = append(list, Library{Path: file, Deleted: deleted})
		}
		if strings.Trim(offset, "0") == "" {
			list[at[file]].Copies++
		}
		runs[file] = runs[file] || strings.Contains(rights, "x")
	})
	return slices.DeleteFunc(list, func(l Library) bool { return !runs[l.Path] }), err
}

// eachMapping calls f for each mapping of a file, with the rights and the offset in it as the
// kernel writes them.
func (r root) eachMapping(pid int, f func(file, rights, offset string)) error {
	maps, err := os.Open(r.file(pid, "maps"))
	if err != nil {
		return r.why(pid, err)
	}
	defer maps.Close()
	for lines := bufio.NewReader(maps); ; {
		line, err := lines.ReadString('\n')
		// Addresses, rights, offset, device, inode; and the file, if there is one.
		if i := strings.IndexByte(line, '/'); i >= 0 {
			// The only byte that is written otherwise is a line break.
			file := strings.ReplaceAll(strings.TrimSuffix(line[i:], "\n"), `\012`, "\n")
			if words := strings.Fields(line[:i]); len(words) >= 3 {
				f(file, words[1], words[2])
			}
		}
		if err == io.EOF {
			// The end, or that of the process.
			return r.runs(pid)
		}
		if err != nil {
			return r.why(pid, err)
		}
	}
}

// siteOf is the folder of Python packages that a library lies in, in the
// package's folder; "" if it does not.
func siteOf(library, folder string) string {
	for _, site := range []string{"/site-packages", "/dist-packages"} {
		if i := strings.Index(library, site+"/"+folder+"/"); i >= 0 {
			return library[:i+len(site)]
		}
	}
	// The store of a package manager, say, where the name is anything.
	if i := strings.LastIndex(library, "/"+folder+"/"); i > 0 {
		return library[:i]
	}
	return ""
}

// isSite reports whether a folder is for Python packages by its name.
func isSite(folder string) bool {
	name := path.Base(folder)
	return name == "site-packages" || name == "dist-packages"
}

// versionIn is the version of a package by the names of the metadata in a
// folder: NAME-VERSION.dist-info, or NAME-VERSION-pyX.Y.egg-info. Where they
// tell of two it is not known which one was loaded.
func versionIn(names []string, packages *regexp.Regexp) string {
	version := ""
	for _, n := range names {
		text, ok := strings.CutSuffix(n, ".dist-info")
		if !ok {
			if text, ok = strings.CutSuffix(n, ".egg-info"); !ok {
				continue
			}
		}
		name, v, _ := strings.Cut(text, "-")
		v, _, _ = strings.Cut(v, "-py")
		if !packages.MatchString(strings.ToLower(name)) || v == "" {
			continue
		}
		if version != "" && version != v {
			return ""
		}
		version = v
	}
	return version
}
