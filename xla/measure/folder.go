package measure

// All modules of a folder that XLA wrote with --xla_dump_to. Of a module there are many files:
//
//	module_1988.jit_step.before_optimizations.txt
//	module_1988.jit_step.sm_9.0a_gpu_after_optimizations.txt
//	module_1988.jit_step.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt
//	module_1988.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb, with --xla_dump_hlo_as_proto
//
// What it takes is in the assignment; of those without one, the compiled module is measured.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gpumem/size"
)

// A Folder is what the modules of a folder take, the largest first.
type Folder struct {
	Path    string   `json:"folder"`
	Modules []Dumped `json:"modules"`
	Notes   []string `json:"notes,omitempty"`
}

// Dumped is a module of a folder. Modules of the same name that take the same are one.
type Dumped struct {
	Name string `json:"name"` // jit_step
	File string `json:"file"` // that was read, in the folder
	Same int    `json:"same"` // modules of this name that take this, with this one
	Totals
	Exact bool `json:"exact"` // by XLA's own assignment
	// Largest are the largest values at the peak, of the largest modules alone.
	Largest []LiveValue `json:"largest,omitempty"`
}

// ErrNoModules is the error of a folder without compiled modules.
var ErrNoModules = errors.New("is a directory without compiled modules of XLA, module_NUMBER.NAME.DEVICE_after_optimizations.txt; " +
	"name the file of a module, or a folder that XLA_FLAGS=--xla_dump_to=DIR made")

// compiledName matches the names of the files that are read. The third part is what the file is.
var compiledName = regexp.MustCompile(`^(module_\d+\.(.+?)\.(?:sm_\d+\.)?\w*after_optimizations)` +
	`(-buffer-assignment\.txt|\.hlo\.pb|\.txt|\.hlo)(?:\.gz)?$`)

// Names of files that XLA dumps: all, those that may be modules, and of these the ones that are none.
var (
	dumpedName = regexp.MustCompile(`^module_\d+\.`)
	moduleName = regexp.MustCompile(`\.(?:hlo|pb|txt)(?:\.gz)?$`)
	besideName = regexp.MustCompile(`(?:-(?:buffer-assignment-values|live-range)\.txt|\.thunk_\w+\.txt|-memory-usage-report\.pb)$`)
)

// isOtherDump reports whether a file has a name that XLA gives to what it dumps beside modules.
func isOtherDump(path string) bool {
	name := filepath.Base(path)
	return dumpedName.MatchString(name) && (besideName.MatchString(name) || !moduleName.MatchString(name))
}

// kinds are the endings by preference: an assignment in text is read in no time.
var kinds = []string{"-buffer-assignment.txt", ".hlo.pb", ".txt", ".hlo"}

// IsFolder reports whether a path is a folder.
func IsFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// IsDump reports whether a path is a folder with compiled modules.
func IsDump(path string) bool {
	if !IsFolder(path) {
		return false
	}
	entries, _ := os.ReadDir(path) // what cannot be read has none
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return compiledName.MatchString(e.Name()) })
}

// ReadFolder measures the modules of a folder, and lists the n largest values of the largest
// modules, of detailed ones. Files that cannot be read become notes.
func ReadFolder(ctx context.Context, path string, detailed, n int) (*Folder, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		var wrong *fs.PathError
		if errors.As(err, &wrong) {
			err = wrong.Err
		}
		return nil, fmt.Errorf("%s: cannot be read: %w", path, err)
	}
	modules := make(map[string]map[string]string) // names of files by module and kind
	names := make(map[string]string)
	for _, e := range entries {
		m := compiledName.FindStringSubmatch(e.Name())
		if m == nil || e.IsDir() {
			continue
		}
		if modules[m[1]] == nil {
			modules[m[1]] = make(map[string]string)
		}
		modules[m[1]][m[3]], names[m[1]] = e.Name(), m[2]
	}
	if len(modules) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrNoModules)
	}
	f := &Folder{Path: path}
	f.measure(ctx, modules, names)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: reading was stopped: %w", path, context.Cause(ctx))
	}
	if len(f.Modules) == 0 {
		return nil, errors.New(f.Notes[0])
	}
	f.merge()
	for k := range f.Modules[:min(detailed, len(f.Modules))] {
		f.describe(ctx, &f.Modules[k], modules, n)
	}
	return f, nil
}

// measure fills the list of modules, in the order of their names.
func (f *Folder) measure(ctx context.Context, modules map[string]map[string]string, names map[string]string) {
	var stems []string
	for stem := range modules {
		stems = append(stems, stem)
	}
	slices.Sort(stems)
	for _, stem := range stems {
		file := ""
		for _, kind := range kinds {
			if file = modules[stem][kind]; file != "" {
				break
			}
		}
		a, err := Files(ctx, []string{filepath.Join(f.Path, file)}, 0)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.Notes = append(f.Notes, err.Error())
			continue
		}
		f.Modules = append(f.Modules, Dumped{Name: names[stem], File: file, Same: 1, Totals: a.Totals, Exact: a.Exact})
	}
}

// merge makes one of modules of a name that take the same, and sorts the largest first.
func (f *Folder) merge() {
	slices.SortStableFunc(f.Modules, func(x, y Dumped) int {
		return cmp.Or(cmp.Compare(y.Total, x.Total), cmp.Compare(x.Name, y.Name))
	})
	list := f.Modules[:0]
	for _, m := range f.Modules {
		if n := len(list); n > 0 && list[n-1].Name == m.Name && list[n-1].Totals == m.Totals {
			list[n-1].Same++
			continue
		}
		list = append(list, m)
	}
	f.Modules = list
}

// describe lists the largest values of a module: from the file that knows most of them. What
// cannot be read is left out, for the totals are there.
func (f *Folder) describe(ctx context.Context, m *Dumped, modules map[string]map[string]string, n int) {
	files := modules[compiledName.FindStringSubmatch(m.File)[1]]
	path := func(kind string) string { return filepath.Join(f.Path, files[kind]) }
	var tries [][]string
	if files[".hlo.pb"] != "" {
		tries = append(tries, []string{path(".hlo.pb")})
	}
	for _, text := range []string{".txt", ".hlo"} {
		if files[text] != "" && m.Exact && files["-buffer-assignment.txt"] != "" {
			tries = append(tries, []string{path(text), path("-buffer-assignment.txt")})
		}
	}
	for _, paths := range append(tries, []string{filepath.Join(f.Path, m.File)}) {
		if a, err := Files(ctx, paths, n); err == nil && a.Totals == m.Totals {
			m.Largest = a.Largest
			return
		}
	}
}

// Sum returns how many modules there are, and how many of them are by a model of XLA's assignment.
func (f *Folder) Sum() (all, modelled int) {
	for _, m := range f.Modules {
		all += m.Same
		if !m.Exact {
			modelled += m.Same
		}
	}
	return all, modelled
}

// Title returns a line about the folder.
func (f *Folder) Title() string {
	all, modelled := f.Sum()
	by := "by XLA's own assignment"
	switch {
	case modelled == all:
		by = "by a model of XLA's assignment"
	case modelled > 0:
		by += fmt.Sprintf(", %d by a model of it", modelled)
	}
	return fmt.Sprintf("%s: %s, %s, the largest first", strings.TrimRight(f.Path, "/"), size.Count(all, "module"), by)
}
