package preload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/node/ledger"
	"gpumem/node/share"
)

// markProgram is the program of mark.c.
var markProgram = compiled("mark")

// container is what the agent of a node gives to a container: a marked folder with the
// library, a lease file and a ledger.
type container struct {
	t                    *testing.T
	folder, file, ledger string
	driver               string
}

// newContainer has a lease of 100 MiB of which each process counts 10 as outside.
func newContainer(t *testing.T) container {
	t.Helper()
	b := libraries(t)
	dir := t.TempDir()
	c := container{t, filepath.Join(dir, "lib"), filepath.Join(dir, "lease.json"), filepath.Join(dir, "1.ledger"), b.driver}
	must(t, os.Mkdir(c.folder, 0o755))
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libgpumem.so"} {
		data, err := os.ReadFile(filepath.Join(b.front, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(c.folder, name), data, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(c.folder, "leased"), []byte(c.file+"\nmore\n"), 0o644))
	must(t, ledger.Create(c.ledger, ledger.Header{Limit: 100 << 20, Total: 1 << 30, Shared: true}))
	must(t, share.WriteContainerLease(c.file, share.ContainerLease{Claim: `a/"ledger":"/x"`, GPUs: []share.ContainerGPU{
		{UUID: "GPU-1", Bytes: 100 << 20, Total: 1 << 30, Ledger: c.ledger, Outside: 10 << 20},
	}}))
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs the program with nothing else in its environment, and returns its answers in
// one line, and what the library said.
func (c container) run(env []string, args ...string) (out, said string) {
	c.t.Helper()
	path, err := markProgram()
	must(c.t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + c.folder, "GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0"}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("%q: %v\n%s%s", args, err, &stdout, &stderr)
	}
	return strings.Join(strings.Split(strings.TrimSpace(stdout.String()), "\n"), ", "), stderr.String()
}

func (c container) libraries() []string {
	return []string{"GPUMEM_LIBCUDA=" + filepath.Join(c.driver, "libcuda.so.1"), "GPUMEM_LIBNVML=" + filepath.Join(c.driver, "libnvidia-ml.so.1")}
}

// TestMarkedFolderKeepsTheLease: whatever the environment says, at the start or later.
func TestMarkedFolderKeepsTheLease(t *testing.T) {
	c := newContainer(t)
	other, _ := newLease(t, 900)
	for _, tc := range []struct {
		name string
		env  []string
		args string
		want string
	}{
		{"within", nil, "use take 80", "0, 0"},
		{"beyond", nil, "use take 95 take 80", "0, 2, 0"}, // 10 are outside
		{"turned off", []string{"GPUMEM_OFF=1"}, "use take 200", "0, 2"},
		{"turned off later", nil, "set GPUMEM_OFF=1 use take 200", "0, 2"},
		{"another ledger", []string{"GPUMEM_LEDGER=" + other}, "use take 200", "0, 2"},
		{"another ledger later", nil, "set GPUMEM_LEDGER=" + other + " use take 200", "0, 2"},
		{"no ledger later", nil, "set GPUMEM_LEDGER= use take 200", "0, 2"},
		{"a larger limit", []string{"GPUMEM_LIMIT=900000000"}, "use take 200", "0, 2"},
		{"damaged parts", []string{"GPUMEM_LEDGER_PARTS=x"}, "use take 80", "0, 0"},
		{"nothing outside", []string{"GPUMEM_OUTSIDE=0"}, "use take 95", "0, 2"},
		{"nothing outside later", nil, "set GPUMEM_OUTSIDE=0 use take 95", "0, 2"},
		{"a child of a program that used the GPU", nil, "use take 50 fork take 1", "0, 0, 3"},
		{"what is free", nil, "use take 20 info", "0, 0, 0 70 of 100"},
		{"what is free, by NVML", nil, "use take 20 nvml", "0, 0, 0 70 of 100"},
		{"by NVML, turned off", []string{"GPUMEM_OFF=1"}, "set GPUMEM_OFF=1 nvml", "0 100 of 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.t = t
			out, said := c.run(append(c.libraries(), tc.env...), strings.Fields(tc.args)...)
			if out != tc.want {
				t.Errorf("%s: %s, want %s\n%s", tc.args, out, tc.want, said)
			}
		})
	}
}

// TestMarkedFolderBelievesTheLeaseFile: a program has written another limit into its ledger.
func TestMarkedFolderBelievesTheLeaseFile(t *testing.T) {
	c := newContainer(t)
	f, err := os.OpenFile(c.ledger, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, 900<<20), 8)
	must(t, errors.Join(err, f.Close()))
	for args, want := range map[string]string{"use take 95 take 80": "0, 2, 0", "use take 20 info": "0, 0, 0 70 of 100", "use take 20 nvml": "0, 0, 0 70 of 100"} {
		if out, said := c.run(c.libraries(), strings.Fields(args)...); out != want {
			t.Errorf("%s: %s, want %s\n%s", args, out, want, said)
		}
	}
}

// TestMarkedFolderWithoutLeaseServesNothing: and says so once, with a way out.
func TestMarkedFolderWithoutLeaseServesNothing(t *testing.T) {
	write := func(text string) func(c container) error {
		return func(c container) error { return os.WriteFile(c.file, []byte(text), 0o644) }
	}
	gpu := `{"uuid":"GPU-1","bytes":1,"total":2,"shares":null,"ledger":"/l"}`
	for _, tc := range []struct {
		name  string
		spoil func(c container) error
		want  string
	}{
		{"no lease file", func(c container) error { return os.Remove(c.file) }, "No such file"},
		{"empty", write(""), "not a lease file"},
		{"cut short", func(c container) error { return os.Truncate(c.file, 60) }, "not a lease file"},
		{"another version", write(`{"gpumem":2,"gpus":[` + gpu + "]}\n"), "not a lease file"},
		{"no GPU", write(`{"gpumem":1,"gpus":[]}` + "\n"), "not a lease file"},
		{"no ledger", write(`{"gpumem":1,"gpus":[{"uuid":"GPU-1"}]}` + "\n"), "no ledger"},
		{"one ledger for two GPUs", write(`{"gpumem":1,"gpus":[` + gpu + `,{"uuid":"GPU-2"}]}` + "\n"), "no ledger"},
		{"an escape in a path", write(`{"gpumem":1,"gpus":[{"uuid":"GPU-1","ledger":"/a\u0041"}]}` + "\n"), "damaged"},
		{"a relative path", write(`{"gpumem":1,"gpus":[{"uuid":"GPU-1","ledger":"a"}]}` + "\n"), "damaged"},
		{"outside is no number", write(`{"gpumem":1,"gpus":[{"uuid":"GPU-1","ledger":"/a","outside":-}]}` + "\n"), "damaged"},
		{"too large", write(`{"gpumem":1,"pod":"` + strings.Repeat("x", 70000) + `","gpus":[` + gpu + "]}\n"), "too large"},
		{"a mark without a path", func(c container) error { return os.WriteFile(filepath.Join(c.folder, "leased"), nil, 0o644) }, "not an absolute path"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newContainer(t)
			must(t, tc.spoil(c))
			for args, want := range map[string]string{"all": "", "use take 1": "2, 2", "use info nvml": "2, 0 0 of 1024, 0 0 of 1024"} {
				out, said := c.run(append(c.libraries(), "GPUMEM_OFF=1"), strings.Fields(args)...)
				if out != want {
					t.Errorf("%s: %s, want %s", args, out, want)
				}
				if strings.Count(said, "\n") != 1 || !strings.Contains(said, "no GPU memory is served: lease file "+filepath.Dir(c.folder)) || !strings.Contains(said, tc.want) || !strings.Contains(said, "end this pod and start it again") {
					t.Errorf("%s: said %q, want one line with %q", args, said, tc.want)
				}
			}
		})
	}
	t.Run("a ledger that is gone", func(t *testing.T) {
		c := newContainer(t)
		must(t, os.Remove(c.ledger))
		if out, said := c.run(c.libraries(), "use", "take", "1"); out != "2, 201" || !strings.Contains(said, "no memory without the lease") {
			t.Errorf("%s, %s", out, said)
		}
	})
}

// TestMarkedFolderFindsTheDriver: where a program has cleared its environment, in the
// search path and the usual folders, past this library.
func TestMarkedFolderFindsTheDriver(t *testing.T) {
	c := newContainer(t)
	search := "LD_LIBRARY_PATH=" + c.folder + ":" + c.driver
	if out, said := c.run([]string{search}, "use", "take", "200", "take", "20", "nvml"); out != "0, 2, 0, 0 70 of 100" {
		t.Errorf("%s\n%s", out, said)
	}
	link := filepath.Join(t.TempDir(), "libcuda.so.1") // another name of this library, whose folder has no mark
	must(t, os.Symlink(filepath.Join(c.folder, "libcuda.so.1"), link))
	if out, said := c.run(append(c.libraries(), "LD_LIBRARY_PATH="+filepath.Dir(link)), "use", "take", "200"); out != "2, 201" {
		t.Errorf("by a link: %s\n%s", out, said)
	}
	if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libcuda.so.1"); err == nil {
		t.Skip("a driver is installed here")
	}
	if out, said := c.run(nil, "use"); out != "100" || !strings.Contains(said, "libcuda.so.1 of the driver is not in the usual folders") {
		t.Errorf("no driver: %s\n%s", out, said)
	}
}
