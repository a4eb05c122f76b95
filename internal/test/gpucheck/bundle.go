//go:build linux

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// The bundle lies beside this program:
//
//	check, VERSION
//	cuda.test, pool.test, preload.test   tests compiled
//	c/                                   programs in C
//	python/                              programs in Python
//	costs.txt                            of device/sim
//	sim/                                 the simulated GPU in the driver's place, and what frameworks load beside it
//	gpumem_tools-*.whl                   the wheel, which has the command and the libraries; or, without Python,
//	gpumem.tar.gz                        these, by the same names
//
// It has no links: machines that are lent may take files only.
type bundle struct {
	root    string // its folder
	scratch string // removed at the end
	options
	machine     report.Machine
	unseen      *report.Result // of gpumem devices, if it crashed or hung
	pythonError error          // of starting Python
}

// The environment tells a check's process where everything is.
const (
	rootVar      = "GPU_CHECK_ROOT"
	scratchVar   = "GPU_CHECK_SCRATCH"
	pythonVar    = "GPU_CHECK_PYTHON"
	simulatedVar = "GPU_CHECK_SIMULATED"
)

// simulatedTotal is the simulated GPU: an H200's size, and what a context takes there by the
// documents, so that what is measured on a GPU has something to be compared with.
const simulatedTotal, simulatedContext = 141 << 30, 528 << 20

// openBundle finds the files, makes the command runnable, and looks at the machine.
func openBundle(ctx context.Context, o options) (*bundle, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bundle{root: filepath.Dir(self), options: o}
	if strings.Contains(o.python, "/") { // programs run in other folders
		if b.python, err = filepath.Abs(o.python); err != nil {
			return nil, err
		}
	}
	if b.scratch, err = os.MkdirTemp("", "gpu-check"); err != nil {
		return nil, err
	}
	err = os.Mkdir(b.logFolder(), 0o755)
	if err == nil {
		err = b.unpack()
	}
	if err == nil && o.simulated {
		err = b.simulate(ctx)
	}
	if err == nil {
		err = b.look(ctx)
	}
	if err == nil && b.pythonError != nil && o.python != defaultPython {
		err = fmt.Errorf("--python %s cannot be started: %w", o.python, b.pythonError)
	}
	if err == nil {
		err = b.logMachine(ctx)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bundle) close() { _ = os.RemoveAll(b.scratch) }

// unpack puts the command and the libraries into scratch/bin and scratch/lib/gpumem, where the
// command finds them by itself. They are the wheel's, or of what is in its place.
func (b *bundle) unpack() error {
	entries, err := os.ReadDir(b.root)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var unpack func(string) error
		switch name := entry.Name(); {
		case strings.HasPrefix(name, "gpumem_tools-") && strings.HasSuffix(name, ".whl"):
			unpack = b.unpackWheel
		case name == "gpumem.tar.gz":
			unpack = b.unpackTar
		default:
			continue
		}
		path := filepath.Join(b.root, entry.Name())
		if err := unpack(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	return fmt.Errorf("%s has no wheel and no gpumem.tar.gz; scripts/gpu-check --bundle FOLDER makes a bundle", b.root)
}

func (b *bundle) unpackWheel(path string) error {
	z, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if err := errors.Join(b.unpackFile(f.Name, r), r.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (b *bundle) unpackTar(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for files := tar.NewReader(z); ; {
		header, err := files.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case header.Typeflag == tar.TypeDir:
			continue
		case header.Typeflag != tar.TypeReg:
			return fmt.Errorf("%s: want files and folders only", header.Name)
		}
		if err := b.unpackFile(header.Name, files); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

// unpackFile writes a file of the command or the libraries. Others, such as Python's, are passed over.
func (b *bundle) unpackFile(name string, r io.Reader) error {
	name, ok := strings.CutPrefix(name, "gpumem/")
	isOurs := ok && (strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "lib/"))
	if isFolder := strings.HasSuffix(name, "/"); !isOurs || isFolder || !filepath.IsLocal(name) {
		return nil
	}
	to := filepath.Join(b.scratch, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// command is the gpumem command.
func (b *bundle) command() string { return filepath.Join(b.scratch, "bin/gpumem") }

// logFolder has what the checks' programs wrote, until saveLogs.
func (b *bundle) logFolder() string { return filepath.Join(b.scratch, "logs") }

// saveLogs writes the logs as one file beside the report, whole or not at all: machines that are
// lent may give back few files. The machine's is the first.
func (b *bundle) saveLogs() error {
	path := filepath.Join(b.out, "logs.zip")
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(b.logFolder())
	slices.SortStableFunc(entries, func(x, y os.DirEntry) int {
		switch machineLog {
		case x.Name():
			return -1
		case y.Name():
			return 1
		}
		return 0
	})
	z := zip.NewWriter(f)
	for _, entry := range entries {
		err = errors.Join(err, addFile(z, filepath.Join(b.logFolder(), entry.Name())))
	}
	err = errors.Join(err, z.Close(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new") // on a full disk a part of it is in the way of the report
	}
	return err
}

// addFile adds a file to an archive.
func addFile(z *zip.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	header := &zip.FileHeader{Name: filepath.Base(path), Method: zip.Deflate}
	if info, err := f.Stat(); err == nil {
		header.Modified = info.ModTime()
	}
	w, err := z.CreateHeader(header)
	if err == nil {
		_, err = io.Copy(w, f)
	}
	return err
}

// gpuFile is the simulated GPU that all of a run's programs share.
func (b *bundle) gpuFile() string { return filepath.Join(b.scratch, "gpu") }

// simulate makes the simulated GPU.
func (b *bundle) simulate(ctx context.Context) error {
	words := fmt.Sprintf("sim@%s,total=%d,context=%d,name=simulated H200,cc=9.0,create", b.gpuFile(), uint64(simulatedTotal), simulatedContext)
	if _, err := b.ask(ctx, time.Minute, b.command(), "devices", "--device", words); err != nil {
		return fmt.Errorf("gpumem devices --device %s: %w", words, err)
	}
	return nil
}

// report begins a report of a run that began then.
func (b *bundle) report(begun time.Time) *report.Report {
	version, err := os.ReadFile(filepath.Join(b.root, "VERSION"))
	if err != nil {
		version = []byte("of an unknown commit")
	}
	r := &report.Report{Format: report.Format, Bundle: strings.TrimSpace(string(version)), Begun: begun, Machine: b.machine}
	if b.unseen != nil {
		r.Results = append(r.Results, *b.unseen)
	}
	if _, dropped := splitEnviron(os.Environ()); len(dropped) > 0 {
		r.Notes = append(r.Notes, "Set here, and not passed to the checks: "+strings.Join(dropped, ", ")+".")
	}
	return r
}
