package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gpumem/kube/cluster/image"
	"gpumem/kube/cluster/node"
	"gpumem/kube/internal/archive"
)

var clusterFlag = flag.Bool("cluster", false, "run the tests on a real cluster, which take minutes")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(node.Enter(prepare, m.Run))
}

// need skips a test on machines that lack what a node needs.
func need(t *testing.T) {
	t.Helper()
	if reason := node.Skipped(); reason != "" {
		t.Skip("no node for tests: " + reason)
	}
}

// tag is the image of the test containers.
const tag = "gpumem.test/probe:1"

// prepare builds what is tested into the folder of the run: it needs the machine's network
// for Go modules that are not there yet. The C libraries are kept in the folder of the
// cluster's programs until a source changes.
//
//	bin/gpumem-kube    the agent
//	library            the driver library that the agent mounts into containers
//	sim                the simulated driver
//	probe.tar          the image of the probe, and of a pod's pause
func prepare(folder string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(folder, "bin"), 0o755); err != nil {
		return err
	}
	if err := run(filepath.Join(root, "kube"), "env", "CGO_ENABLED=0", "go", "build", "-tags=nodriver", "-gcflags=all=-l", "-ldflags=-s -w", "-o", filepath.Join(folder, "bin"), "./cmd/gpumem-kube"); err != nil {
		return err
	}
	probe := filepath.Join(folder, "bin", "probe")
	if err := run(".", "gcc", "-O1", "-Wall", "-o", probe, "probe/probe.c", "-ldl"); err != nil {
		return err
	}
	sum, err := sources(root)
	if err != nil {
		return err
	}
	for name, script := range map[string]string{"library": "scripts/libgpumem", "sim": "scripts/libcudasim"} {
		kept := filepath.Join(filepath.Dir(node.Program(".")), name)
		stamp := filepath.Join(kept, ".sources")
		if b, err := os.ReadFile(stamp); err != nil || string(b) != sum {
			if err := errors.Join(os.RemoveAll(kept), run(root, script, kept), os.WriteFile(stamp, []byte(sum), 0o644)); err != nil {
				return err
			}
		}
		if err := run(".", "cp", "-a", kept, filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	files, err := image.Needs(probe, filepath.Join(folder, "library", "libcuda.so.1"), filepath.Join(folder, "library", "libgpumem.so"), filepath.Join(folder, "sim", "libcuda.so.1"))
	if err != nil {
		return err
	}
	files["/probe"] = probe
	if err := (archive.Image{Arch: runtime.GOARCH, Temporary: true, Tag: tag, Files: files, Entrypoint: []string{"/probe"}}).WriteFile(filepath.Join(folder, "probe.tar")); err != nil {
		return err
	}
	return (archive.Image{Arch: runtime.GOARCH, Temporary: true, Tag: node.PauseImage, Files: files, Entrypoint: []string{"/probe", "pause"}}).WriteFile(filepath.Join(folder, "pause.tar"))
}

// run runs a command in a folder.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}

// sources returns a sum over everything that the C libraries are built from.
func sources(root string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (rel == "kube" || d.Name() == "testdata" || rel != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !d.Type().IsRegular() || strings.HasSuffix(rel, "_test.go"):
			return nil
		}
		switch filepath.Ext(rel) {
		case ".go", ".c", ".h", ".txt", ".map", ".mod", "":
			b, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%q %d\n%s", rel, len(b), b)
			return err
		}
		return nil
	})
	return fmt.Sprintf("%x\n", sum.Sum(nil)), err
}

// at returns the path of what prepare has made.
func at(name ...string) string { return filepath.Join(append([]string{node.Folder()}, name...)...) }

// within returns a context that ends after d, or with the test.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
