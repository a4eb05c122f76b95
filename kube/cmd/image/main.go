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
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"gpumem/internal/spelling"
	"gpumem/kube/internal/archive"
)

func main() {
	o, err := parse(os.Args[1:])
	root := ""
	if err == nil {
		root, err = clone()
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fail(2, err)
	}
	if err := run(o, root); err != nil {
		fail(1, err)
	}
}

func fail(status int, err error) {
	fmt.Fprintf(os.Stderr, "image: %v\n", err)
	os.Exit(status)
}

type options struct{ out, tag string }

// reference is the name of an image with a tag, as runtimes read it.
var reference = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?/)?[a-z0-9]+(([.]|_|__|-+|/)[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// parse reads the command line, and refuses what would be refused only once all is built.
func parse(args []string) (o options, err error) {
	f := pflag.NewFlagSet("image", pflag.ContinueOnError)
	f.StringVar(&o.out, "out", "gpumem-kube.tar", "file to write")
	f.StringVar(&o.tag, "tag", "gpumem.dev/gpumem-kube:0.2.0", "name of the image, as the chart has it")
	f.SetOutput(io.Discard)
	f.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: cd kube && go run ./cmd/image [flags]\n\n%s", f.FlagUsages())
	}
	const see = "; go run ./cmd/image --help lists the flags"
	err = f.Parse(args)
	unknown := new(pflag.NotExistError)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return o, err
	case errors.As(err, &unknown) && spelling.Nearest(unknown.GetSpecifiedName(), []string{"out", "tag"}) != "":
		return o, fmt.Errorf("%w; did you mean --%s?%s", err, spelling.Nearest(unknown.GetSpecifiedName(), []string{"out", "tag"}), see)
	case err != nil:
		return o, fmt.Errorf("%w%s", err, see)
	case f.NArg() > 0:
		return o, fmt.Errorf("%q: no argument is taken%s", f.Arg(0), see)
	case len(o.tag) > 255 || !reference.MatchString(o.tag):
		return o, fmt.Errorf("--tag %s: want the name of an image with its tag, such as gpumem.dev/gpumem-kube:0.2.0", quoted(o.tag))
	case o.out == "":
		return o, errors.New(`--out "": want the file to write, such as gpumem-kube.tar`)
	}
	if err := writable(o.out); err != nil {
		return o, fmt.Errorf("--out %s: %w", quoted(o.out), err)
	}
	return o, nil
}

func quoted(value string) string {
	if value == "" || strings.ContainsAny(value, " \t\n") {
		return strconv.Quote(value)
	}
	return value
}

// writable reports why a file cannot be written.
func writable(file string) error {
	switch st, err := os.Stat(file); {
	case err == nil && st.IsDir():
		return errors.New("it is a folder; want a file")
	case err == nil || !errors.Is(err, fs.ErrNotExist):
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".gpumem-image-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// clone returns the folder of the clone that the working directory is in.
func clone() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for root := wd; ; root = filepath.Dir(root) {
		_, module := os.Stat(filepath.Join(root, "kube", "go.mod"))
		_, script := os.Stat(filepath.Join(root, "scripts", "libgpumem"))
		if module == nil && script == nil {
			return root, nil
		}
		if root == filepath.Dir(root) {
			return "", fmt.Errorf("%s is not in a clone of gpumem; there: cd kube && go run ./cmd/image", wd)
		}
	}
}

// run builds what the image has in a folder of its own, and writes it.
func run(o options, root string) error {
	dir, err := os.MkdirTemp("", "gpumem-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	parts := []struct {
		what    string
		in      string
		command []string
	}{
		{"the agent gpumem-kube", filepath.Join(root, "kube"), build(filepath.Join(dir, "gpumem-kube"), "./cmd/gpumem-kube")},
		{"the command gpumem", root, build(filepath.Join(dir, "gpumem"), "./cmd/gpumem")},
		{"the pool library", root, []string{"scripts/libgpumem", filepath.Join(dir, "lib")}},
		{"the simulated GPU's driver", root, []string{"scripts/libcudasim", filepath.Join(dir, "sim")}},
	}
	for i, b := range parts {
		fmt.Fprintf(os.Stderr, "image: building %s, %d of %d%s\n", b.what, i+1, len(parts), map[int]string{0: "; all take minutes the first time"}[i])
		c := exec.Command(b.command[0], b.command[1:]...)
		c.Dir, c.Stdout, c.Stderr = b.in, os.Stderr, os.Stderr
		if b.command[0] == "go" {
			c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		}
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(b.command, " "), err)
		}
	}
	m := archive.Image{
		Tag: o.tag, Arch: runtime.GOARCH, Entrypoint: []string{"/bin/gpumem-kube"}, Env: []string{"PATH=/bin"},
		Files: map[string]string{
			"bin/gpumem-kube": filepath.Join(dir, "gpumem-kube"),
			"bin/gpumem":      filepath.Join(dir, "gpumem"),
			"opt/gpumem/lib":  filepath.Join(dir, "lib"),
			"opt/gpumem/sim":  filepath.Join(dir, "sim"),
		},
	}
	if err := m.WriteFile(o.out); err != nil {
		return err
	}
	fmt.Printf("%s: %s\n", o.out, o.tag)
	return nil
}

// build returns the command that builds a static program without a way to NVIDIA's driver,
// which static programs do not have. Without inlining it is a tenth smaller, and what the
// kernel keeps of it in memory more than that; the agent has no use for the speed.
func build(to, program string) []string {
	return []string{"go", "build", "-trimpath", "-buildvcs=false", "-tags", "nodriver", "-gcflags=all=-l", "-ldflags", "-s -w -buildid=", "-o", to, program}
}
