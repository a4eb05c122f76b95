// Package library finds the driver library of this project, which stands in the place
// of libcuda.so.1 and serves a program's GPU memory from a pool, and the real driver
// behind it. It loads neither.
package library

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Environment variables that are read here.
const (
	EnvFolder = "GPUMEM_LIB"     // the folder with the library
	EnvDriver = "GPUMEM_LIBCUDA" // the real driver's library
	EnvNVML   = "GPUMEM_LIBNVML" // the real NVML
	EnvSearch = "LD_LIBRARY_PATH"
)

// The names under which programs open the driver and NVML.
const (
	driverName = "libcuda.so.1"
	nvmlName   = "libnvidia-ml.so.1"
)

// Where libraries are looked for besides the variables. Tests have others.
var (
	cacheFile = "/etc/ld.so.cache"
	folders   = []string{
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
		"/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia", "/usr/local/nvidia/lib64",
	}
	executable = os.Executable
)

// Folder returns the absolute folder with the library: $GPUMEM_LIB, else ../lib/gpumem
// or ./lib/gpumem beside this executable.
func Folder(get func(string) string) (string, error) {
	if folder := get(EnvFolder); folder != "" {
		abs, err := filepath.Abs(folder)
		if err == nil {
			_, err = os.Stat(filepath.Join(abs, driverName))
		}
		if err != nil {
			return "", fmt.Errorf("%s=%s has no %s: %w; build the library with scripts/libgpumem, or leave the variable out", EnvFolder, folder, driverName, plain(err))
		}
		return nameable(abs)
	}
	exe, err := executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", fmt.Errorf("cannot find this program's folder: %w; set %s to the library's", err, EnvFolder)
	}
	dir := filepath.Dir(exe)
	for _, folder := range []string{filepath.Join(filepath.Dir(dir), "lib", "gpumem"), filepath.Join(dir, "lib", "gpumem")} {
		if _, err := os.Stat(filepath.Join(folder, driverName)); err == nil {
			return nameable(folder)
		}
	}
	return "", fmt.Errorf("no pool library beside %s; build it with scripts/libgpumem, or set %s to its folder", exe, EnvFolder)
}

// nameable refuses a folder that LD_LIBRARY_PATH cannot hold.
func nameable(folder string) (string, error) {
	if strings.ContainsAny(folder, ":;$") {
		return "", fmt.Errorf("library folder %s: %s cannot hold a path with \":\", \";\" or \"$\"; set %s to another", folder, EnvSearch, EnvFolder)
	}
	return folder, nil
}

// ErrNoDriver is the error of a machine without a driver library.
var ErrNoDriver = errors.New("no driver library")

// Driver returns the absolute path of the real driver's library: $GPUMEM_LIBCUDA, else
// the first that a program would load, other than the one in folder. The error wraps
// ErrNoDriver if there is none.
func Driver(get func(string) string, folder string) (string, error) {
	return find(get, EnvDriver, driverName, folder)
}

// NVML returns the absolute path of the real NVML in the same way.
func NVML(get func(string) string, folder string) (string, error) {
	return find(get, EnvNVML, nvmlName, folder)
}

func find(get func(string) string, variable, name, folder string) (string, error) {
	ours := filepath.Join(folder, name)
	if path := get(variable); path != "" {
		abs, err := filepath.Abs(path)
		if err == nil {
			err = loadable(abs, ours)
		}
		if err != nil {
			return "", fmt.Errorf("%s=%s: %w", variable, path, err)
		}
		return abs, nil
	}
	var candidates []string
	for _, dir := range foldersOf(get(EnvSearch)) {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	if data, err := readCache(); err == nil {
		candidates = append(candidates, inCache(data, name)...)
	}
	for _, dir := range folders {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	for _, path := range candidates {
		if filepath.Base(filepath.Dir(path)) == "stubs" || loadable(path, ours) != nil { // a stub links, and has no driver behind it
			continue
		}
		return filepath.Abs(path)
	}
	return "", fmt.Errorf("%w: %s is neither in %s, in %s nor in %s; install the driver, or name its library by %s", ErrNoDriver, name, EnvSearch, cacheFile, strings.Join(folders, ", "), variable)
}

// Folders splits the value of LD_LIBRARY_PATH. An empty one, the working directory, is
// left out.
func foldersOf(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ';' })
}

// loadable reports why a file is no library that a program of this machine can load, or
// that it is ours.
func loadable(path, ours string) error {
	info, err := os.Stat(path)
	if err != nil {
		return plain(err)
	}
	if mine, err := os.Stat(ours); err == nil && os.SameFile(info, mine) {
		return errors.New("it is the pool library itself; name the driver's")
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("not a shared library: %w", plain(err))
	}
	defer f.Close()
	if f.Type != elf.ET_DYN || f.Machine != machines[runtime.GOARCH] || f.Class != elf.ELFCLASS64 {
		return fmt.Errorf("a %v of %v and %v; want a shared library for %s", f.Type, f.Machine, f.Class, runtime.GOARCH)
	}
	return nil
}

// machines are those that the library is built for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// readCache reads the linker's cache. A file that is larger than any cache is cut.
func readCache() ([]byte, error) {
	f, err := os.Open(cacheFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 16<<20))
}

// inCache returns the paths that the linker's cache has for a library's name, in order.
// A cache that is cut or damaged has fewer.
//
// The format is glibc's (sysdeps/generic/dl-cache.h): a header of 48 bytes with a magic,
// the number of libraries and the length of the texts, then 24 bytes for each library:
// flags, offset of its name, offset of its path, and what is of no use here. Offsets are
// from the header. Until glibc 2.32 an older table may stand before it: 16 bytes and 12
// for each library.
func inCache(data []byte, name string) (paths []string) {
	const (
		magic, old          = "glibc-ld.so.cache1.1", "ld.so-1.7.0\x00"
		header, entry       = 48, 24
		oldHeader, oldEntry = 16, 12
		align               = 8
	)
	word := func(at int) int {
		if at < 0 || at > len(data)-4 {
			return 0
		}
		return int(binary.NativeEndian.Uint32(data[at:]))
	}
	text := func(at int) string {
		if at <= 0 || at >= len(data) {
			return ""
		}
		s, _, _ := strings.Cut(string(data[at:min(len(data), at+4096)]), "\x00")
		return s
	}
	if strings.HasPrefix(string(data[:min(len(data), len(old))]), old) {
		skip := (oldHeader + word(len(old))*oldEntry + align - 1) / align * align
		data = data[min(len(data), skip):]
	}
	if !strings.HasPrefix(string(data[:min(len(data), len(magic))]), magic) {
		return nil
	}
	for i := range min(word(len(magic)), (len(data)-header)/entry) {
		at := header + i*entry
		if text(word(at+4)) == name {
			if path := text(word(at + 8)); filepath.IsAbs(path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// plain is an error of the file system without the name, which the caller adds.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
