// Image writes the agent's container image as an archive, without a registry and without a
// container engine: the static programs gpumem-kube and gpumem, the pool library, and the
// simulated GPU's driver. It needs Go, a C compiler and awk, and runs in a clone:
//
//	cd kube && go run ./cmd/image --out gpumem-kube.tar
//	ctr -n k8s.io images import gpumem-kube.tar      # on each node
//
// The same sources and compilers give the same bytes.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/pflag"
)

func main() {
	f := pflag.NewFlagSet("image", pflag.ContinueOnError)
	out := f.String("out", "gpumem-kube.tar", "file to write")
	tag := f.String("tag", "gpumem.dev/gpumem-kube:0.2.0", "name of the image, as the chart has it")
	if err := f.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		os.Exit(2)
	}
	if err := run(*out, *tag); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// run builds what the image has in a folder of its own, and writes it.
func run(out, tag string) error {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	kube := filepath.Dir(strings.TrimSpace(string(mod)))
	root := filepath.Dir(kube)
	if _, err := os.Stat(filepath.Join(root, "scripts", "libgpumem")); err != nil {
		return fmt.Errorf("not in the folder kube of a clone: %w", err)
	}
	dir, err := os.MkdirTemp("", "gpumem-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, b := range []struct {
		in      string
		command []string
	}{
		{kube, build(filepath.Join(dir, "gpumem-kube"), "./cmd/gpumem-kube")},
		{root, build(filepath.Join(dir, "gpumem"), "./cmd/gpumem")},
		{root, []string{"scripts/libgpumem", filepath.Join(dir, "lib")}},
		{root, []string{"scripts/libcudasim", filepath.Join(dir, "sim")}},
	} {
		c := exec.Command(b.command[0], b.command[1:]...)
		c.Dir, c.Stdout, c.Stderr = b.in, os.Stderr, os.Stderr
		if b.command[0] == "go" {
			c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		}
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(b.command, " "), err)
		}
	}
	m := image{
		tag: tag, arch: runtime.GOARCH, entrypoint: []string{"/bin/gpumem-kube"}, env: []string{"PATH=/bin"},
		files: map[string]string{
			"bin/gpumem-kube": filepath.Join(dir, "gpumem-kube"),
			"bin/gpumem":      filepath.Join(dir, "gpumem"),
			"opt/gpumem/lib":  filepath.Join(dir, "lib"),
			"opt/gpumem/sim":  filepath.Join(dir, "sim"),
		},
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	if err := errors.Join(m.write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(out))
	}
	fmt.Printf("%s: %s\n", out, tag)
	return nil
}

// build returns the command that builds a static program without a way to NVIDIA's driver,
// which static programs do not have. Without inlining it is a tenth smaller, and what the
// kernel keeps of it in memory more than that; the agent has no use for the speed.
func build(to, program string) []string {
	return []string{"go", "build", "-trimpath", "-buildvcs=false", "-tags", "nodriver", "-gcflags=all=-l", "-ldflags", "-s -w -buildid=", "-o", to, program}
}
