// Package pip finds the Python distribution that this program was installed with: gpumem-tools,
// whose wheel has it in gpumem/bin/gpumem, beside the distribution's own folder.
package pip

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Name is the distribution's. "gpumem" on PyPI is somebody else's, a monitor with a command of the same name.
const Name = "gpumem-tools"

// Tests have another.
var executable = os.Executable

// Distribution returns the distribution's name and the folder that it is installed in; ok is false
// for a program that pip has not installed.
func Distribution() (name, folder string, ok bool) {
	path, err := executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil || filepath.Base(filepath.Dir(path)) != "bin" {
		return "", "", false
	}
	folder = filepath.Dir(filepath.Dir(filepath.Dir(path)))
	if versionIn(folder, strings.ReplaceAll(Name, "-", "_")) == "" {
		return "", "", false
	}
	return Name, folder, true
}

// Warning returns the line for people where the other distribution is installed beside ours; ""
// where it is not. python/gpumem/__init__.py has the same.
func Warning() string {
	_, folder, ok := Distribution()
	if !ok {
		return ""
	}
	other := versionIn(folder, "gpumem")
	if other == "" {
		return ""
	}
	return fmt.Sprintf("another distribution, gpumem %s, is installed beside %s and has a command of the same name; "+
		"uninstall both (pip uninstall gpumem %s) and install %s again from where it came", other, Name, Name, Name)
}

// versionIn returns the version of a distribution in a folder of packages; "" if it is not there.
func versionIn(folder, name string) string {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		for _, end := range []string{".dist-info", ".egg-info"} {
			rest, ok := strings.CutSuffix(e.Name(), end)
			if found, version, _ := strings.Cut(rest, "-"); ok && found == name && version != "" {
				version, _, _ = strings.Cut(version, "-py") // of an egg
				return version
			}
		}
	}
	return ""
}
