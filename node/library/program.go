// Programs that cannot load the library.

package library

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

// Check reports why the program at path, a file that is executed, would not load the
// library: it is linked statically, is of another machine, or gets other rights when it
// starts, so that the linker does not look at LD_LIBRARY_PATH. A script is fine, whatever
// runs it: what it starts is not known. So is this program, which starts others.
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
		return nil
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
			return nil
		}
	}
	return fmt.Errorf("%s is linked statically and loads no library; if it only starts others, start it by a shell: sh -c '%s ...'", path, path)
}
