//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Imports of the frameworks, before the first check of one: an installation that is broken, or on a slow
// disk, is one fault and not that of each of its checks.

const importLimit = 20 * time.Second

// noModule is the status of imports.py without the module.
const noModule = 3

// imports imports each framework in its own process.
func imports(c *call) error {
	names := []string{"jax", "torch", "cupy"}
	if c.simulated {
		names = names[:2] // CuPy needs a GPU that computes
	}
	found := false
	for _, name := range names {
		e, err := c.exec(process{
			args:  []string{c.python, filepath.Join(c.root, "python/imports.py"), name},
			env:   c.frameworkEnviron(),
			limit: importLimit,
		})
		if err == nil && e.status == noModule {
			continue
		}
		found = true
		if err := c.imported(name, e, err); err != nil {
			return err
		}
	}
	if !found {
		return skipped(c.python + " has none of them")
	}
	return nil
}

// imported keeps how long an import took, or for the framework's checks why it failed.
func (c *call) imported(name string, e ended, err error) error {
	if err == nil && e.status == 0 {
		c.figure("import "+name, e.seconds, "s")
		return nil
	}
	why := fmt.Sprintf("import %s: exit status %d%s", name, e.status, lastLine(e.stderr))
	if err != nil {
		why = fmt.Sprintf("import %s: %v", name, err)
	}
	c.fault("%s", why)
	return os.WriteFile(c.notImported(name), []byte(why), 0o644)
}

// notImported is the file that says why a framework could not be imported. It is there for the other checks
// of the run.
func (b *bundle) notImported(name string) string {
	return filepath.Join(b.scratch, "not-imported."+name)
}

// with is a check of a framework: it is skipped where the framework could not be imported.
func with(run func(*call) error) func(*call) error {
	return func(c *call) error {
		for _, need := range c.needs {
			if why, err := os.ReadFile(c.notImported(need)); err == nil {
				return skipped(why)
			}
		}
		return run(c)
	}
}
