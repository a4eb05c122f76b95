package publish

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gpumem/device/cuda"
)

func TestSimulatedGPUs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	first, err := Sim(filepath.Join(dir, "link", "gpus"), 2, 24<<30)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "real", "gpus") // what a container finds under that name
	for i, words := range []string{"sim@" + file, "sim@" + file + ",device=1"} {
		g := first[i]
		if g.Name != []string{"gpu-0", "gpu-1"}[i] || g.Words != words || g.Total != 24<<30 || g.Architecture != "Hopper" || g.Capability != "9.0.0" || !g.Simulated || g.Product != "sim:24GiB" || g.Key == "" {
			t.Errorf("%+v", g)
		}
		if st, err := g.Meter.Status(); err != nil || st.Ordinal != i || st.Free != 24<<30 {
			t.Errorf("%s: status %+v, %v", g.Name, st, err)
		}
	}
	if first[0].UUID == first[1].UUID || first[0].Key == first[1].Key {
		t.Errorf("both have UUID %s and key %s", first[0].UUID, first[0].Key)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v: programs of other users cannot use it", st.Mode(), err)
	}

	again, err := Sim(file, 2, 24<<30)
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := first[0].Meter.Status(); err == nil {
		t.Error("the status of a file that is gone")
	}
}

func TestSimulatedGPUsThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if _, err := Sim(there, 1, 8<<30); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file string
		n          int
		memory     uint64
		want       string
	}{
		{"none", there, 0, 8 << 30, "0 simulated GPUs of 8 GiB: want 1 to 16"},
		{"too many", there, 17, 8 << 30, "17 simulated GPUs"},
		{"no memory", there, 1, 0, "1 simulated GPUs of 0"},
		{"a relative path", "there", 1, 8 << 30, "want an absolute path"},
		{"a comma", "/run/a,b", 1, 8 << 30, "without a comma"},
		{"a file of another size", there, 1, 9 << 30, "has 1, of 8 GiB; 1 of 9 GiB are wanted: remove the file"},
		{"a file of another number", there, 2, 8 << 30, "has 1, of 8 GiB; 2 of 8 GiB are wanted"},
		{"a file of text", text, 1, 8 << 30, text},
		{"no such folder", filepath.Join(text, "gpus"), 1, 8 << 30, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Sim(c.file, c.n, c.memory); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestCUDAWithoutADriverIsAnError(t *testing.T) {
	want := cuda.Available()
	if want == nil {
		list, err := CUDA()
		if err != nil || len(list) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		return
	}
	if _, err := CUDA(); err == nil || !strings.HasPrefix(err.Error(), "GPUs of NVIDIA's driver: ") {
		t.Errorf("error %v", err)
	}
}

// A real GPU's device nodes and libraries are described by NVIDIA's toolkit.
func TestRealGPUHasTheToolkitsDevice(t *testing.T) {
	const uuid = "GPU-0f6c0a4b-1111-2222-3333-444444444444"
	for _, c := range []struct{ name, file, text, want, err string }{
		{"by UUID", "nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n- name: " + uuid + "\n", "nvidia.com/gpu=" + uuid, ""},
		{"JSON", "nvidia.json", `{"kind":"nvidia.com/gpu","devices":[{"name":"` + uuid + `"}]}`, "nvidia.com/gpu=" + uuid, ""},
		{"in capitals", "nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: " + strings.ToUpper(uuid) + "\n", "nvidia.com/gpu=" + strings.ToUpper(uuid), ""},
		{"by number alone", "nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n", "", "no CDI spec in DIR has nvidia.com/gpu=" + uuid + "; make them with: nvidia-ctk cdi generate"},
		{"another kind", "nvidia.yaml", "kind: nvidia.com/mig\ndevices:\n- name: " + uuid + "\n", "", "no CDI spec"},
		{"no YAML", "nvidia.yaml", "\t{", "", "no CDI spec"},
		{"another file", "notes.txt", "kind: nvidia.com/gpu\ndevices:\n- name: " + uuid + "\n", "", "no CDI spec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Driver{cfg: Config{CDIDir: t.TempDir()}}
			if err := os.WriteFile(filepath.Join(d.cfg.CDIDir, c.file), []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			edits, beside, err := d.edits(GPU{Name: "gpu-0", UUID: uuid, Words: "cuda:0"})
			if beside != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(strings.ReplaceAll(err.Error(), d.cfg.CDIDir, "DIR"), c.err) {
				t.Errorf("%q, %v", beside, err)
			}
			if !reflect.DeepEqual(edits.Env, []string{"NVIDIA_VISIBLE_DEVICES=void"}) {
				t.Errorf("environment %v", edits.Env)
			}
		})
	}
}

func TestArchitecture(t *testing.T) {
	for cc, want := range map[[2]int]string{{6, 1}: "Pascal", {7, 0}: "Volta", {7, 5}: "Turing", {8, 6}: "Ampere", {8, 9}: "Ada Lovelace", {9, 0}: "Hopper", {12, 0}: "Blackwell", {99, 0}: ""} {
		if got := architecture(cc[0], cc[1]); got != want {
			t.Errorf("%v is %q, want %q", cc, got, want)
		}
	}
}

func TestDigitsOfUUIDs(t *testing.T) {
	const want = "0f6c0a4b111122223333444444444444"
	for _, text := range []string{"GPU-0f6c0a4b-1111-2222-3333-444444444444", "gpu-0F6C0A4B-1111-2222-3333-444444444444", "0f6c0a4b111122223333444444444444", "MIG-0f6c0a4b-1111-2222-3333-444444444444"} {
		if got := digits(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

func TestCutKeepsWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"short", 64, "short"}, {"long", 2, "lo"}, {"größer", 3, "gr"}, {"größer", 4, "grö"}} {
		if got := cut(c.text, c.n); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

// What is longer than the API server takes is cut, and the rest is still published.
func TestLongProductNameIsCut(t *testing.T) {
	g := GPU{Name: "gpu-0", UUID: "GPU-1", Product: strings.Repeat("x", 65), Total: 8 << 30}
	attributes := g.device(0).Attributes
	if got := *attributes["productName"].StringValue; got != g.Product[:64] || *attributes["uuid"].StringValue != g.UUID {
		t.Errorf("%q", got)
	}
}
