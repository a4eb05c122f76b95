// Package simulate has unchanged programs run on a simulated GPU, on a machine without one.
//
// # One program
//
// "python train.py" on "T4". [New] reads the words, finds the simulated driver beside the pool
// library and makes a file with the GPU, which all processes of the program share. [GPU.Environ]
// puts the driver, and the libraries that frameworks load beside it, in the linker's way, and a
// start-up file in Python's, which loads those libraries before NVIDIA's own and has JAX look for
// no /dev/nvidia0 (gpumem_simulate.py). The program finds a GPU of 16 GB with compute capability 7.5,
// allocates, and is refused memory as on such a card, of which the context takes its part. Its kernels
// do nothing.
//
// Each process leaves the most that it held, which [GPU.Used] returns. A framework that computes on the
// CPU in spite of the GPU says why itself, at the end of its process.
//
// The files lie in a folder for the run (folder.go), and go with the last process that has them.
package simulate

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpumem/device/card"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/node/library"
	"gpumem/size"
)

//go:embed gpumem_simulate.py sitecustomize.py
var files embed.FS

const startUp = "gpumem_simulate.py"

// Module returns the Python module that prepares frameworks for the simulated driver, and its name.
func Module() (name string, text []byte) {
	text, _ = files.ReadFile(startUp) // embedded: there
	return startUp, text
}

// Folder returns the folder of the simulated driver, which is in that of the pool library.
func Folder(get func(string) string) (string, error) {
	front, err := library.Folder(get)
	if err != nil {
		return "", err
	}
	driver := filepath.Join(front, "sim")
	if _, err := os.Stat(filepath.Join(driver, "libcuda.so.1")); err != nil {
		return "", fmt.Errorf("no simulated driver in %s; scripts/libcudasim %s builds it", driver, driver)
	}
	return driver, nil
}

// GPU is one simulated GPU or several, in a file. It is used from one goroutine.
type GPU struct {
	Words string // that name it to this project's programs: sim@FILE

	driver string // the folder of the simulated driver
	folder *folder
	file   string                       // of the devices
	before [][sim.Engines]time.Duration // their engines' time when New returned
}

// New makes simulated GPUs by their words: a size (24GiB), a card (T4), either with a number
// behind it (T4*4) or keys as a device has them (24GiB,cc=8.0), or the name of a file that several
// programs share (sim@FILE), which is made with sim@FILE,create,total=24GiB. Of a size or a card the
// context of each process takes [sim.UsualContext], unless the words have context=. A card has the name
// that the driver has for it. get returns variables of the environment. The caller closes it.
func New(words string, get func(string) string) (*GPU, error) {
	driver, err := Folder(get)
	if err != nil {
		return nil, err
	}
	spec, n, err := parse(words)
	if err != nil {
		return nil, err
	}
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}
	g := &GPU{driver: driver, folder: folder}
	if err = g.make(spec, n); err == nil {
		g.before, err = sim.LookBusy(g.file)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func parse(words string) (open.Spec, int, error) {
	spec, n, err := open.Simulated(words)
	if err != nil || spec.Kind == open.Shared {
		return spec, n, err
	}
	word, _, _ := strings.Cut(strings.TrimPrefix(words, "sim:"), ",")
	word, _, _ = strings.Cut(word, "*")
	if c, err := card.Find(word); err == nil && !strings.Contains(words, ",name=") {
		spec.Sim.Name = c.DriverName()
	}
	if spec.SetsContext() {
		return spec, n, nil
	}
	if spec.Sim.Context = sim.UsualContext; spec.Sim.Total-min(spec.Sim.Total, spec.Sim.Used+spec.Sim.Display) <= sim.UsualContext {
		const text = "%q: the context of a process takes %s, as gpumem fit counts it, and leaves nothing of this GPU; with ,context=0 behind it takes none"
		return open.Spec{}, 0, fmt.Errorf(text, words, size.Format(sim.UsualContext))
	}
	return spec, n, nil
}

// make makes the file with n GPUs, or the one that spec asks for, and the start-up files.
func (g *GPU) make(spec open.Spec, n int) error {
	if strings.ContainsAny(g.folder.path, ",:") { // which end a word in lists of folders and of a device
		return fmt.Errorf("folder %s: its name has a comma or colon; set TMPDIR to one without", g.folder.path)
	}
	if err := os.CopyFS(g.folder.path, files); err != nil {
		return err
	}
	if spec.Kind == open.Shared {
		path, err := filepath.Abs(spec.File)
		if err != nil {
			return err
		}
		g.file = path
		if g.Words = "sim@" + path; !spec.All {
			g.Words += fmt.Sprintf(",device=%d", spec.Index)
		}
		return spec.Make()
	}
	path := g.folder.file("gpus")
	g.file, g.Words = path, "sim@"+path
	list := make([]sim.Config, n)
	for i := range list {
		list[i] = spec.Sim
	}
	return sim.CreateFile(path, list...)
}

// Lock returns the file that the program inherits: as long as it or what it leaves behind has it
// open, the files of the GPU stay.
func (g *GPU) Lock() *os.File { return g.folder.lock }

// Close removes what New made, once no process of the program runs on. What runs on keeps it, and a later New
// removes it.
func (g *GPU) Close() error { return g.folder.close() }

// Driver returns the paths of the simulated driver and of its NVML.
func (g *GPU) Driver() (driver, nvml string) { return driverOf(g.driver) }

// Settings returns what programs need to find the GPU.
func (g *GPU) Settings() []Setting {
	return append(Settings(g.driver),
		Setting{"PYTHONPATH", g.folder.path, before, "Python's start-up file prepares frameworks for the simulated GPU"},
		Setting{open.EnvVar, g.Words, replace, "the simulated GPU"},
		Setting{EnvPeaks, g.folder.file("peaks"), replace, "each process leaves there what it held"},
	)
}

// Environ returns an environment, NAME=value, in which programs find the GPU.
func (g *GPU) Environ(env []string) []string { return Apply(env, g.Settings()) }
