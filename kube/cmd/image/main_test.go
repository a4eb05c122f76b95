package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// What is wrong is said before the build, which takes minutes.
func TestParse(t *testing.T) {
	dir := t.TempDir()
	const name = "want the name of an image with its tag, such as gpumem.dev/gpumem-kube:0.2.0"
	for _, c := range []struct {
		name string
		args []string
		err  string
	}{
		{"file", []string{"--out", dir + "/a.tar"}, ""},
		{"file that is there", []string{"--out", "main_test.go"}, ""},
		{"registry with a port", []string{"--tag", "localhost:5000/a/b_c/gpumem-kube:v1.0-rc.1", "--out", dir + "/a.tar"}, ""},
		{"name without registry", []string{"--tag", "gpumem-kube:1", "--out", dir + "/a.tar"}, ""},

		{"misspelt flag", []string{"--ouut", "x"}, `unknown flag: --ouut; did you mean --out?; go run ./cmd/image --help lists the flags`},
		{"flag like none", []string{"--registry", "x"}, "unknown flag: --registry; go run ./cmd/image --help lists the flags"},
		{"flag without value", []string{"--out"}, "flag needs an argument: --out; go run ./cmd/image --help lists the flags"},
		{"argument", []string{"x.tar"}, `"x.tar": no argument is taken; go run ./cmd/image --help lists the flags`},
		{"empty tag", []string{"--tag", ""}, `--tag "": ` + name},
		{"no tag", []string{"--tag", "NOT A TAG"}, `--tag "NOT A TAG": ` + name},
		{"capitals", []string{"--tag", "example.org/Agent:1"}, "--tag example.org/Agent:1: " + name},
		{"name without tag", []string{"--tag", "localhost:5000/agent"}, "--tag localhost:5000/agent: " + name},
		{"long name", []string{"--tag", strings.Repeat("a", 256) + ":1"}, "--tag aaa"},
		{"empty file", []string{"--out", ""}, `--out "": want the file to write, such as gpumem-kube.tar`},
		{"folder", []string{"--out", dir}, "--out " + dir + ": it is a folder; want a file"},
		{"file in no folder", []string{"--out", dir + "/no/a.tar"}, "--out " + dir + "/no/a.tar: open " + dir + "/no/.gpumem-image-"},
		{"file in a file", []string{"--out", "main_test.go/a.tar"}, "--out main_test.go/a.tar: stat main_test.go/a.tar: not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.args)
			if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("error %v\n want %s", err, c.err)
			}
		})
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("parse left %v, %v", left, err)
	}
}

func TestCloneIsFoundFromWithin(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	for _, c := range []struct{ name, wd, err string }{
		{"the clone", root, ""},
		{"kube", root + "/kube", ""},
		{"a folder of kube", root + "/kube/cmd", ""},
		{"elsewhere", elsewhere, elsewhere + " is not in a clone of gpumem; there: cd kube && go run ./cmd/image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(c.wd)
			switch got, err := clone(); {
			case c.err != "" && (err == nil || err.Error() != c.err):
				t.Errorf("error %v, want %s", err, c.err)
			case c.err == "" && (err != nil || got != root):
				t.Errorf("%s, %v; want %s", got, err, root)
			}
		})
	}
}
