package library

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// image is the smallest ELF file that is read here, with one program header.
func image(kind elf.Type, machine elf.Machine, header elf.ProgType) []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	word := binary.LittleEndian
	word.PutUint16(b[16:], uint16(kind))
	word.PutUint16(b[18:], uint16(machine))
	word.PutUint32(b[20:], 1)
	word.PutUint64(b[32:], 64) // program headers
	word.PutUint16(b[52:], 64)
	word.PutUint16(b[54:], 56)
	word.PutUint16(b[56:], 1)
	word.PutUint32(b[64:], uint32(header))
	return b
}

var here = func() elf.Machine {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	return f.Machine
}()

func write(t testing.TB, path string, b []byte, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, b, 0o600))
	must(t, os.Chmod(path, mode))
}

// elsewhere makes the cache, the standard folders and this executable those of a folder.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c, f, e := cacheFile, folders, executable
	t.Cleanup(func() { cacheFile, folders, executable = c, f, e })
	cacheFile, folders = filepath.Join(dir, "ld.so.cache"), []string{filepath.Join(dir, "standard")}
	executable = func() (string, error) { return filepath.Join(dir, "bin", "gpumem"), nil }
	write(t, filepath.Join(dir, "bin", "gpumem"), image(elf.ET_EXEC, here, elf.PT_LOAD), 0o755)
	return dir
}

func TestFolder(t *testing.T) {
	library := image(elf.ET_DYN, here, elf.PT_LOAD)
	for _, tc := range []struct {
		name, file, lib, want, err string
	}{
		{"beside bin", "lib/gpumem", "", "lib/gpumem", ""},
		{"in bin", "bin/lib/gpumem", "", "bin/lib/gpumem", ""},
		{"named", "other", "other", "other", ""},
		{"named, and not there", "lib/gpumem", "other", "", "GPUMEM_LIB=DIR/other has no libcuda.so.1: no such file or directory; build the library with scripts/libgpumem"},
		{"nowhere", "lib/other", "", "", "no pool library beside DIR/bin/gpumem; build it with scripts/libgpumem, or set GPUMEM_LIB"},
		{"a colon", "a:b", "a:b", "", "cannot hold"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := elsewhere(t)
			write(t, filepath.Join(dir, tc.file, driverName), library, 0o644)
			env := map[string]string{}
			if tc.lib != "" {
				env[EnvFolder] = filepath.Join(dir, tc.lib)
			}
			got, err := Folder(func(name string) string { return env[name] })
			if tc.err != "" {
				if want := strings.ReplaceAll(tc.err, "DIR", dir); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
				return
			}
			if want := filepath.Join(dir, tc.want); err != nil || got != want {
				t.Errorf("%s, %v; want %s", got, err, want)
			}
		})
	}
}

func TestDriver(t *testing.T) {
	good := image(elf.ET_DYN, here, elf.PT_LOAD)
	other := image(elf.ET_DYN, elf.EM_S390, elf.PT_LOAD)
	for _, tc := range []struct {
		name  string
		files map[string][]byte
		env   map[string]string // DIR is the folder
		cache []string          // paths
		want  string
		err   string
	}{
		{"the variable goes first", map[string][]byte{"own/mine.so": good, "a/libcuda.so.1": good}, map[string]string{EnvDriver: "DIR/own/mine.so", EnvSearch: "DIR/a"}, nil, "own/mine.so", ""},
		{"then the folders of the search path", map[string][]byte{"b/libcuda.so.1": good, "c/libcuda.so.1": good}, map[string]string{EnvSearch: "DIR/a:DIR/b"}, []string{"DIR/c/libcuda.so.1"}, "b/libcuda.so.1", ""},
		{"then the cache", map[string][]byte{"c/libcuda.so.1": good, "standard/libcuda.so.1": good}, nil, []string{"DIR/gone/libcuda.so.1", "DIR/c/libcuda.so.1"}, "c/libcuda.so.1", ""},
		{"then the standard folders", map[string][]byte{"standard/libcuda.so.1": good}, nil, nil, "standard/libcuda.so.1", ""},
		{"not the pool library", map[string][]byte{"standard/libcuda.so.1": good}, map[string]string{EnvSearch: "DIR/ours:DIR/link"}, nil, "standard/libcuda.so.1", ""},
		{"not a stub", map[string][]byte{"stubs/libcuda.so.1": good, "standard/libcuda.so.1": good}, map[string]string{EnvSearch: "DIR/stubs"}, nil, "standard/libcuda.so.1", ""},
		{"not another machine's", map[string][]byte{"a/libcuda.so.1": other, "standard/libcuda.so.1": good}, map[string]string{EnvSearch: "DIR/a"}, nil, "standard/libcuda.so.1", ""},
		{"none", nil, nil, nil, "", "no driver library: libcuda.so.1 is neither in LD_LIBRARY_PATH, in DIR/ld.so.cache nor in DIR/standard; install the driver, or name its library by GPUMEM_LIBCUDA"},
		{"the variable names nothing", nil, map[string]string{EnvDriver: "DIR/x"}, nil, "", "GPUMEM_LIBCUDA=DIR/x: no such file or directory"},
		{"the variable names the pool library", nil, map[string]string{EnvDriver: "DIR/ours/libcuda.so.1"}, nil, "", "it is the pool library itself"},
		{"the variable names text", map[string][]byte{"x": []byte("text")}, map[string]string{EnvDriver: "DIR/x"}, nil, "", "not a shared library"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := elsewhere(t)
			in := func(s string) string { return strings.ReplaceAll(s, "DIR", dir) }
			write(t, filepath.Join(dir, "ours", driverName), good, 0o644)
			must(t, os.Symlink("ours", filepath.Join(dir, "link")))
			for name, b := range tc.files {
				write(t, filepath.Join(dir, name), b, 0o644)
			}
			if tc.cache != nil {
				var paths []string
				for _, p := range tc.cache {
					paths = append(paths, in(p))
				}
				write(t, cacheFile, cacheOf(false, paths...), 0o644)
			}
			got, err := Driver(func(name string) string { return in(tc.env[name]) }, filepath.Join(dir, "ours"))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), in(tc.err)) {
					t.Errorf("%v, want %s", err, in(tc.err))
				}
				return
			}
			if err != nil || got != filepath.Join(dir, tc.want) {
				t.Errorf("%s, %v; want %s", got, err, tc.want)
			}
		})
	}
	elsewhere(t)
	if _, err := NVML(func(string) string { return "" }, "/"); !errors.Is(err, ErrNoDriver) {
		t.Errorf("NVML: %v", err)
	}
}

// cacheOf makes a linker's cache; both is with the older table before it.
func cacheOf(both bool, paths ...string) []byte {
	var head, entries, texts []byte
	word := func(b []byte, n int) []byte { return binary.NativeEndian.AppendUint32(b, uint32(n)) }
	at := 48 + 24*len(paths)
	for _, p := range paths {
		entries = word(entries, 0x303)
		entries = word(entries, at+len(texts))
		texts = append(texts, filepath.Base(p)+"\x00"...)
		entries = word(entries, at+len(texts))
		texts = append(texts, p+"\x00"...)
		entries = append(entries, make([]byte, 12)...)
	}
	if both {
		head = word([]byte("ld.so-1.7.0\x00"), 1)
		head = append(head, make([]byte, 12+4)...)
	}
	head = append(head, "glibc-ld.so.cache1.1"...)
	head = word(word(head, len(paths)), len(texts))
	head = append(head, make([]byte, 48-28)...)
	return append(append(head, entries...), texts...)
}

func TestCacheIsRead(t *testing.T) {
	want := []string{"/b/libx.so.1", "/c/libx.so.1"}
	for _, both := range []bool{false, true} {
		data := cacheOf(both, "/a/liby.so", want[0], "relative/libx.so.1", want[1])
		if got := inCache(data, "libx.so.1"); !slices.Equal(got, want) {
			t.Errorf("both %t: %q", both, got)
		}
		for n := range data {
			inCache(data[:n], "libx.so.1") // no fault
		}
	}
}

// TestCacheOfThisMachine compares with what ldconfig reads.
func TestCacheOfThisMachine(t *testing.T) {
	out, err := exec.Command("/sbin/ldconfig", "-p").Output()
	data, readErr := readCache()
	if err != nil || readErr != nil {
		t.Skipf("skipped: no ldconfig or no cache: %v, %v", err, readErr)
	}
	want := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) \(.*\) => (.*)$`).FindAllStringSubmatch(string(out), -1) {
		want[m[1]] = append(want[m[1]], m[2])
	}
	for name, paths := range want {
		if got := inCache(data, name); !slices.Equal(got, paths) {
			t.Errorf("%s: %q, want %q", name, got, paths)
		}
	}
	if len(want) == 0 {
		t.Error("ldconfig lists nothing")
	}
}

func FuzzCache(f *testing.F) {
	f.Add(cacheOf(false, "/b/libx.so.1"))
	f.Add(cacheOf(true, "/b/libx.so.1"))
	f.Add([]byte("ld.so-1.7.0\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range inCache(data, "libx.so.1") {
			if !filepath.IsAbs(p) || len(p) > 4096 {
				t.Errorf("%q", p)
			}
		}
	})
}

// loadedBy returns a program of image with the name of its dynamic linker.
func loadedBy(program []byte, name string) []byte {
	b := append(slices.Clone(program), name...)
	word := binary.LittleEndian
	word.PutUint64(b[64+8:], uint64(len(program))) // where the name lies
	word.PutUint64(b[64+32:], uint64(len(name)))
	return b
}

func TestCheck(t *testing.T) {
	dir := elsewhere(t)
	dynamic, static := image(elf.ET_DYN, here, elf.PT_INTERP), image(elf.ET_EXEC, here, elf.PT_LOAD)
	musl := loadedBy(dynamic, "/lib/ld-musl-x86_64.so.1\x00")
	shell := filepath.Join(dir, "bin", "musl-sh")
	write(t, shell, musl, 0o755)
	for _, tc := range []struct {
		name string
		file []byte
		mode fs.FileMode
		want string
	}{
		{"dynamic", dynamic, 0o755, ""},
		{"a script", []byte("#!/bin/sh\n"), 0o755, ""},
		{"glibc", loadedBy(dynamic, "/lib64/ld-linux-x86-64.so.2\x00"), 0o755, ""},
		{"musl", musl, 0o755, "is linked with musl, and the pool library needs glibc; "},
		{"a script of musl's shell", []byte("#! " + shell + " -e\n"), 0o755, shell + " is linked with musl"},
		{"empty", nil, 0o755, ""},
		{"static", static, 0o755, "is linked statically and loads no library; if it only starts others, start it by a shell: sh -c '"},
		{"setuid", dynamic, 0o755 | fs.ModeSetuid, "changes its user or its rights"},
		{"setgid", dynamic, 0o755 | fs.ModeSetgid, "changes its user or its rights"},
		{"foreign", image(elf.ET_DYN, elf.EM_S390, elf.PT_INTERP), 0o755, "a program of EM_S390"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.name)
			write(t, path, tc.file, tc.mode)
			err := Check(path)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if err := Check(filepath.Join(dir, "bin", "gpumem")); err != nil { // static, and starts others
		t.Errorf("this program: %v", err)
	}
	if err := Check(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
}
