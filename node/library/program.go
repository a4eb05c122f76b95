// Programs that cannot load the library.

package library

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

// Check reports why the program at path, a file that is executed, would not load the
// library: it is linked statically, is of another machine, or gets other rights when it
// starts, so that the linker does not look at LD_LIBRARY_PATH, or is linked with musl. A
// script is fine, as what it starts is not known, unless its interpreter is linked with
// musl: then there is hardly another C library. So is this program, which starts others.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	const remedy = "; start what uses the GPU itself"
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || capable(path) {
		return fmt.Errorf("%s changes its user or its rights when it starts, so the linker ignores %s and the pool library is not loaded%s", path, EnvSearch, remedy)
	}
	if exe, err := executable(); err == nil {
		if mine, err := os.Stat(exe); err == nil && os.SameFile(info, mine) {
			return nil
		}
	}
	f, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) { // a script, or nothing that starts at all
		return checkInterpreter(path)
	}
	if err != nil {
		return nil // it cannot be read, and may start all the same
	}
	defer f.Close()
	if f.Machine != machines[runtime.GOARCH] || f.Class != elf.ELFCLASS64 {
		return fmt.Errorf("%s is a program of %v and %v, which cannot load the pool library of %s", path, f.Machine, f.Class, runtime.GOARCH)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return checkLoader(path, p)
		}
	}
	return fmt.Errorf("%s is linked statically and loads no library; if it only starts others, start it by a shell: sh -c '%s ...'", path, path)
}

// checkLoader reports whether the program at path, whose dynamic linker p names, has another
// C library than the pool library.
func checkLoader(path string, p *elf.Prog) error {
	name, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
	if err != nil || !strings.Contains(string(name), "/ld-musl-") {
		return nil
	}
	return fmt.Errorf("%s is linked with musl, and the pool library needs glibc; start a program of a system with glibc, or use --pool off", path)
}

// checkInterpreter is checkLoader of the program that runs the script at path.
func checkInterpreter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // as a program that cannot be read
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 4096)).ReadString('\n')
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if !strings.HasPrefix(line, "#!") || len(words) == 0 {
		return nil
	}
	e, err := elf.Open(words[0])
	if err != nil {
		return nil
	}
	defer e.Close()
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			return checkLoader(words[0], p)
		}
	}
	return nil
}
