package docs_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// floors are those of CONTRIBUTING.md. The root package and alloc are one wing, and so are
// size and internal.
var floors = map[string]int{
	"cmd": 7, "kube": 7, "examples": 7, "bench": 7, "preload": 6, "doctor": 5, "record": 4, "node": 3,
	"xla": 2, "alloc": 2, "policy": 1, "device": 1, "internal": 0, "python": 0, "docs": 0,
}

// TestAWingImportsLowerFloorsOnly refuses an import of a wing on the same floor or above, and
// a package outside of the wings. What lies behind a wing's internal the compiler refuses.
func TestAWingImportsLowerFloorsOnly(t *testing.T) {
	const module = "gpumem"
	wing := func(path string) string {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "/")
		switch name {
		case "":
			return "alloc"
		case "size":
			return "internal"
		}
		return name
	}
	for _, dir := range []string{"..", "../kube", "../bench/peers"} {
		cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Imports", "-tags=libgpumem", "./...")
		cmd.Dir, cmd.Env = dir, append(cmd.Environ(), "CGO_ENABLED=1") // lists what needs cgo; compiles nothing
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var p struct {
				ImportPath string
				Imports    []string
			}
			if err := d.Decode(&p); err != nil {
				t.Fatal(err)
			}
			from := wing(p.ImportPath)
			above, known := floors[from]
			ours := func(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }
			support := strings.HasPrefix(p.ImportPath, module+"/internal/test/")
			if !ours(p.ImportPath) || support {
				continue
			}
			if !known {
				t.Errorf("%s is in no wing", p.ImportPath)
			}
			for _, to := range p.Imports {
				if ours(to) && wing(to) != from && floors[wing(to)] >= above {
					t.Errorf("%s on floor %d imports %s on floor %d", p.ImportPath, above, to, floors[wing(to)])
				}
			}
		}
	}
}
