package standin_test

import (
	"bufio"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/internal/test/standin"
)

func TestMain(m *testing.M) {
	code := m.Run()
	standin.Remove()
	os.Exit(code)
}

// TestConformance runs the C program, which has the driver's rules as tests.
func TestConformance(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/conformance.c")
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(program)
	cmd.Env = standin.Environ(library, "GPUMEM_SIM_LOG="+log)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	ran := 0
	for line := range strings.Lines(string(out)) {
		verdict, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, why, _ := strings.Cut(rest, ":")
		t.Run(name, func(t *testing.T) {
			if ran++; verdict != "ok" {
				t.Error(name + why)
			}
		})
	}
	if err != nil || ran < 21 {
		t.Errorf("%d tests, %v", ran, err)
	}
	// Nothing of Go's reaches the program's standard error.
	if stderr.Len() > 0 {
		t.Errorf("standard error: %s", stderr.String())
	}
	// Functions that are not served are named in the log, once each.
	text, err := os.ReadFile(log)
	if err != nil || strings.Count(string(text), "cuSurfRefGetArray: not served") != 1 || strings.Contains(string(text), "internal error") {
		t.Errorf("log: %v\n%s", err, text)
	}
}

// TestHazardsReported: with GPUMEM_SIM_HAZARDS=report a hazard is a line in the log, and the
// call goes on.
func TestHazardsReported(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/conformance.c")
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(program, "reports")
	cmd.Env = standin.Environ(library, "GPUMEM_SIM_LOG="+log, "GPUMEM_SIM_HAZARDS=report")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok reports\n" {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "hazard: cuLaunchKernel in stream 2: cuLaunchKernel in stream 1 may still be writing") {
		t.Errorf("log: %v\n%s", err, text)
	}
}

// TestSharedMemory: a device has as much shared memory as its compute capability. The figures are those of
// CUDA's occupancy calculator; with an A100's on each card Triton refused kernels that an H200 takes.
func TestSharedMemory(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/shared.c")
	for _, c := range []struct{ name, device, want string }{
		{"P100", "cc=6.0", "65536 49152"},
		{"V100", "cc=7.0", "98304 98304"},
		{"T4", "cc=7.5", "65536 65536"},
		{"A100", "cc=8.0", "167936 166912"},
		{"A10", "cc=8.6", "102400 101376"},
		{"Orin", "cc=8.7", "167936 166912"},
		{"L4", "cc=8.9", "102400 101376"},
		{"H200", "cc=9.0", "233472 232448"},
		{"B200", "cc=10.0", "233472 232448"},
		{"B300", "cc=10.3", "233472 232448"},
		{"RTX 5090", "cc=12.0", "102400 101376"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(program)
			cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim:1GiB,"+c.device)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0 "+c.want+"\n" {
				t.Errorf("%v, %q, want %s", err, out, c.want)
			}
		})
	}
}

// TestVisible: a program sees the devices that a variable of their own names, under their
// own UUIDs, so that variables set for two requests of a container add up.
func TestVisible(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/visible.c")
	spec, err := open.Parse("sim@" + filepath.Join(t.TempDir(), "gpus") + ",create,total=1GiB/2GiB/3GiB")
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Make(); err != nil {
		t.Fatal(err)
	}
	gpu := func(n int) string {
		return fmt.Sprintf("%d %s\n", 1024*(n+1), strings.ReplaceAll(strings.TrimPrefix(spec.UUID(n).String(), "GPU-"), "-", ""))
	}
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"all without a variable", nil, gpu(0) + gpu(1) + gpu(2)},
		{"CUDA's order", []string{"CUDA_VISIBLE_DEVICES=2,0,7,1"}, gpu(2) + gpu(0)},
		{"by UUID", []string{"CUDA_VISIBLE_DEVICES=" + spec.UUID(1).String()}, gpu(1)},
		{"of those that are granted", []string{"CUDA_VISIBLE_DEVICES=1", "GPUMEM_SIM_VISIBLE_2=1", "GPUMEM_SIM_VISIBLE_0=1"}, gpu(2)},
		{"none", []string{"CUDA_VISIBLE_DEVICES="}, "error 100\n"},
		{"one", []string{"GPUMEM_SIM_VISIBLE_1=1"}, gpu(1)},
		{"two, in order", []string{"GPUMEM_SIM_VISIBLE_2=1", "GPUMEM_SIM_VISIBLE_0=1"}, gpu(0) + gpu(2)},
		{"an empty one does not count", []string{"GPUMEM_SIM_VISIBLE_0=", "GPUMEM_SIM_VISIBLE_2=1"}, gpu(2)},
		{"none that is there", []string{"GPUMEM_SIM_VISIBLE_7=1"}, "error 100\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(program)
			cmd.Env = standin.Environ(library, append(c.env, "GPUMEM_DEVICE=sim@"+spec.File)...)
			if out, _ := cmd.Output(); string(out) != c.want {
				t.Errorf("got\n%swant\n%s", out, c.want)
			}
		})
	}
}

// TestVisibleHidesNothingFromNVML: whose numbers stay, and whose first call does not fix what CUDA reads later.
func TestVisibleHidesNothingFromNVML(t *testing.T) {
	cmd := exec.Command(standin.Compile(t, "testdata/visible.c"), "2,0")
	file := filepath.Join(t.TempDir(), "gpus")
	cmd.Env = standin.Environ(standin.Library(t), "GPUMEM_DEVICE=sim@"+file+",create,total=1GiB/2GiB/3GiB")
	out, err := cmd.Output()
	if want := "0 is 2 of 3\n1 is 0 of 3\n"; err != nil || !strings.HasSuffix(string(out), want) {
		t.Errorf("%v, got\n%swant at the end\n%s", err, out, want)
	}
}

// TestErrorWithoutACodeIsSaid: once, in the words of the device, for CUDA_ERROR_UNKNOWN says nothing.
func TestErrorWithoutACodeIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus")
	cmd := exec.Command(standin.Compile(t, "testdata/damaged.c"), file)
	cmd.Env = standin.Environ(standin.Library(t), "GPUMEM_DEVICE=sim@"+file+",create,total=1GiB")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || string(out) != "999 999\n" {
		t.Errorf("%v, %s", err, out)
	}
	if text := said.String(); !strings.HasPrefix(text, "libcudasim: sim@"+file+": ") || strings.Count(text, "\n") != 1 {
		t.Errorf("said: %q, want one line", text)
	}
}

// dynamic opens a library and returns its exported functions and its name.
func dynamic(t *testing.T, path string) (exported []string, soname string, versions []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			exported = append(exported, s.Name)
		}
	}
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		t.Fatalf("%s: soname %v, %v", path, names, err)
	}
	defined, err := f.DynamicVersions()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range defined {
		versions = append(versions, v.Name)
	}
	slices.Sort(exported)
	return exported, names[0], versions
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// names returns those of the driver: the first word of each line.
func names(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(standin.Root(t), "preload", "names", "cuda.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Fields(line)[0])
	}
	return all
}

// TestExports: every name of the list is there, and nothing else but the tests' own.
func TestExports(t *testing.T) {
	library := standin.Library(t)
	exported, soname, _ := dynamic(t, filepath.Join(library, "libcuda.so.1"))
	if soname != "libcuda.so.1" {
		t.Errorf("soname %s", soname)
	}
	want := names(t)
	for _, name := range exported {
		if !strings.HasPrefix(name, "gpumemSim") && !slices.Contains(want, name) {
			t.Errorf("%s is exported and is not in the list", name)
		}
	}
	for _, name := range want {
		if _, ok := slices.BinarySearch(exported, name); !ok {
			t.Errorf("%s is not exported", name)
		}
	}
	if to, err := os.Readlink(filepath.Join(library, "libcuda.so")); err != nil || to != "libcuda.so.1" {
		t.Errorf("libcuda.so leads to %q, %v", to, err)
	}
}

// TestLists: the two lists of the driver's names have the same, in order.
func TestLists(t *testing.T) {
	folder := filepath.Join(standin.Root(t), "preload", "names")
	names := names(t)
	versions := lines(t, filepath.Join(folder, "versions.txt"))
	if !slices.IsSorted(names) || len(versions) != 3*len(names) {
		t.Fatalf("%d names, %d words about their versions", len(names), len(versions))
	}
	for i, name := range names {
		if versions[3*i] != name || !strings.HasPrefix(name, versions[3*i+1]) {
			t.Errorf("%s: %v", name, versions[3*i:3*i+3])
		}
	}
}

// TestBeside: the libraries beside the driver have the names and versions that the
// loader wants.
func TestBeside(t *testing.T) {
	library := standin.Library(t)
	for _, tc := range []struct{ file, function, version string }{
		{"libcudart.so.12", "cudaMalloc", "libcudart.so.12"},
		{"libcublas.so.12", "cublasCreate_v2", "libcublas.so.12"},
		{"libcublasLt.so.12", "cublasLtMatmul", "libcublasLt.so.12"},
		{"libcudnn.so.9", "cudnnCreate", "libcudnn.so.9"},
		{"libcufft.so.11", "cufftCreate", "libcufft.so.11"},
		{"libcusolver.so.11", "cusolverDnCreate", "libcusolver.so.11"},
		{"libcudart.so.13", "cudaMalloc", "libcudart.so.13"},
		{"libcublas.so.13", "cublasCreate_v2", "libcublas.so.13"},
		{"libcublasLt.so.13", "cublasLtMatmul", "libcublasLt.so.13"},
		{"libcufft.so.12", "cufftCreate", "libcufft.so.12"},
		{"libcusolver.so.12", "cusolverDnCreate", "libcusolver.so.12"},
		{"libcusparse.so.12", "cusparseCreate", "libcusparse.so.12"},
		{"libnvidia-ml.so.1", "nvmlDeviceGetMemoryInfo_v2", ""},
	} {
		t.Run(tc.file, func(t *testing.T) {
			exported, soname, versions := dynamic(t, filepath.Join(library, tc.file))
			if _, ok := slices.BinarySearch(exported, tc.function); !ok || soname != tc.file {
				t.Errorf("soname %s, %d functions, %s among them: %v", soname, len(exported), tc.function, ok)
			}
			if tc.version == "" && len(versions) > 0 || tc.version != "" && !slices.Contains(versions, tc.version) {
				t.Errorf("versions %v", versions)
			}
		})
	}
}

// TestRuntime: the runtime serves 0 bytes, with no address. The driver refuses them. A kernel of the runtime is
// one to the driver.
func TestRuntime(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/runtime.c")
	for _, words := range [][]string{{"libcudart.so.12"}, {"libcudart.so.13"}, {"libcudart.so.12", "forked"}} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			cmd := exec.Command(program, append([]string{filepath.Join(library, words[0])}, words[1:]...)...)
			cmd.Env = standin.Environ(library)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0 0, 0 1\n100 0 10\n0 0\n" {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
}

// TestFabricIsNotSupported: an answer, as of a GPU without NVSwitch, and not an error, over
// which JAX 0.6 aborts.
func TestFabricIsNotSupported(t *testing.T) {
	library := standin.Library(t)
	cmd := exec.Command(standin.Compile(t, "testdata/fabric.c"))
	cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim:1GiB")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0 0 8\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestNVMLAnswersWhatEnginesAsk: with the values of the card, or that they are not supported, as
// of a card in a PCIe slot without NVLink.
func TestNVMLAnswersWhatEnginesAsk(t *testing.T) {
	library := standin.Library(t)
	file := filepath.Join(t.TempDir(), "gpus")
	card := sim.Config{Total: 1 << 30, Name: "Tesla T4", CCMajor: 7, CCMinor: 5}
	if err := sim.CreateFile(file, card, card); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(standin.Compile(t, "testdata/nvml.c"))
	cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim@"+file)
	out, err := cmd.CombinedOutput()
	const want = `GetArchitecture 0 6
GetBrand 0 2
GetMinorNumber 0 0
GetMultiGpuBoard 0 0
GetMemoryBusWidth 0 5120
GetNumGpuCores 0 6912
GetMaxMigDeviceCount 0 0
IsMigDeviceHandle 0 0
GetComputeMode 0 0
GetPersistenceMode 0 1
GetPowerUsage 0 50000
GetEnforcedPowerLimit 0 300000
GetPerformanceState 0 0
GetMaxPcieLinkGeneration 0 4
GetNumaNodeId 3 0
GetFanSpeed 3 0
GetCudaComputeCapability 0 7 5
GetMigMode 3 0 0
GetP2PStatus 0 5 0
GetP2PStatus 0 0 0
GetTopologyCommonAncestor 0 30 0
GetNvLinkState 3 0 0
GetClockInfo 0 1410 0
GetClockInfo 2 0 0
GetTemperature 0 35 0
GetMinorNumber 2 0 0
nearest 0 1 1
pci 0 0000:02:00.0 00000000:02:00.0 2
`
	if err != nil || string(out) != want {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestForkBeforeCuInitLeavesTheGPUToTheChild, and to its child, as a real driver does; after
// cuInit the child's calls are refused. NVML works in both.
func TestForkBeforeCuInitLeavesTheGPUToTheChild(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/fork.c")
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"before", "0 0 0 1\n3 -1 0 1\nparent 0\n", nil},
		{"after", "3 -1 3 1\nparent 0\n", []string{"init"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(program, tc.args...)
			cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim:1GiB")
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != tc.want {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
}

// TestMemoryOfAnotherProcessTakesNothing: it is opened by its handle, can be copied from, and is
// closed once; a handle of nobody is refused, and so is a process's own.
func TestMemoryOfAnotherProcessTakesNothing(t *testing.T) {
	library := standin.Library(t)
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(standin.Compile(t, "testdata/ipc.c"))
	cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim@"+file)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0 1 0 0 1 0 1\n201 1\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// holder starts testdata/use.c, which takes bytes and keeps them until it is ended.
func holder(t *testing.T, program string, env []string, bytes uint64) (line string, end func()) {
	t.Helper()
	cmd := exec.Command(program, fmt.Sprint(bytes))
	cmd.Env = env
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func() { // as by a kill: the file learns of it
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// TestSharedDevice: programs that name one file share its memory, and NVML counts
// what all of them hold. A killed one's memory comes back.
func TestSharedDevice(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/use.c")
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	env := standin.Environ(library, "GPUMEM_DEVICE=sim@"+file)
	first, endFirst := holder(t, program, env, 600<<20)
	if want := fmt.Sprintf("0 %d %d %[1]d %[2]d", 424<<20, 1<<30); first != want {
		t.Errorf("first program: %q, want %q", first, want)
	}
	second, endSecond := holder(t, program, env, 600<<20)
	if want := fmt.Sprintf("2 %d %d %[1]d %[2]d", 424<<20, 1<<30); second != want {
		t.Errorf("second program: %q, want %q", second, want)
	}
	endSecond()
	endFirst()
	third, endThird := holder(t, program, env, 1<<20)
	endThird()
	if want := fmt.Sprintf("0 %d %d %[1]d %[2]d", 1022<<20, 1<<30); third != want {
		t.Errorf("after both: %q, want %q", third, want)
	}
}

// TestRealGPU runs the tests that package device/internal/cuda has for a real GPU, its
// conformance suite among them, on a simulated one. In their process are two of
// Go's runtimes, the test's and the library's.
func TestRealGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: compiles and runs another package's tests")
	}
	library := standin.Library(t)
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 24 << 30, Context: 256 << 20}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestReal", "./device/internal/cuda")
	cmd.Dir = standin.Root(t)
	cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim@"+file)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealConformance ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBadSettings: words that name no simulated device, or nothing that a setting can be,
// are one line, and no GPU.
func TestBadSettings(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/use.c")
	for _, tc := range []struct{ name, setting, want string }{
		{"no size", "GPUMEM_DEVICE=sim:", "libcudasim: GPUMEM_DEVICE: "},
		{"a real GPU", "GPUMEM_DEVICE=cuda:0", "this is the simulated driver"},
		{"no file", "GPUMEM_DEVICE=sim@/nowhere/gpu", "/nowhere/gpu"},
		{"room for contents", "GPUMEM_SIM_CONTENTS=much", "libcudasim: GPUMEM_SIM_CONTENTS: "},
		{"what a kernel takes", "GPUMEM_SIM_KERNEL=2", `libcudasim: GPUMEM_SIM_KERNEL: got "2", want what a kernel takes, such as 2ms`},
		{"less than no time", "GPUMEM_SIM_KERNEL=-2ms", `libcudasim: GPUMEM_SIM_KERNEL: got "-2ms"`},
		{"a link without a unit", "GPUMEM_SIM_LINK=25", `libcudasim: GPUMEM_SIM_LINK: got "25", want bytes a second, such as 25GB/s`},
		{"a link of nothing", "GPUMEM_SIM_LINK=0GB/s", `libcudasim: GPUMEM_SIM_LINK: got "0GB/s"`},
		{"hazards", "GPUMEM_SIM_HAZARDS=ignore", `libcudasim: GPUMEM_SIM_HAZARDS: got "ignore", want refuse or report`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(program, "1")
			cmd.Env = standin.Environ(library, tc.setting)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err == nil || string(out) != "cuInit 100\n" || !strings.Contains(stderr.String(), tc.want) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("%v, %q, %q", err, out, stderr.String())
			}
		})
	}
}

// TestCalls: the file of calls has how often each function was called.
func TestCalls(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/use.c")
	calls := filepath.Join(t.TempDir(), "calls")
	cmd := exec.Command(program, "4096")
	cmd.Env = standin.Environ(library, "GPUMEM_SIM_CALLS="+calls)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	const want = "cuCtxSetCurrent 1\ncuDevicePrimaryCtxRetain 1\ncuInit 1\ncuMemAlloc_v2 1\ncuMemGetInfo_v2 1\n"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
