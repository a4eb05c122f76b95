//go:build linux && (amd64 || arm64) && !nodriver

// What is told when there is no driver, or none that works, or an old one.

package cuda

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
)

// tells asserts that err is of some kind and says all of want.
func tells(t *testing.T, err, is error, want ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("%v is not %v", err, is)
		return
	}
	for _, s := range want {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}

// nothing asserts that all of a machine's answers are such an error.
func nothing(t *testing.T, m *machine, is error, want ...string) {
	t.Helper()
	_, err := m.count()
	tells(t, err, is, want...)
	_, err = m.list()
	tells(t, err, is, want...)
	_, err = m.open(0)
	tells(t, err, is, want...)
	var ce *device.CallError
	if !errors.As(err, &ce) || ce.Call != "cuInit" || ce.Device != "cuda:0" {
		t.Errorf("Open: %#v", err)
	}
}

// absent is the error of a library that is not there, in the words of the
// loader.
func absent(t *testing.T) error {
	t.Helper()
	_, err := open("libgpumem-no-such-library.so.1", "libgpumem-nor-this.so")
	if err == nil {
		t.Fatal("a library that is not there was loaded")
	}
	return err
}

func TestMissingLibrary(t *testing.T) {
	err := absent(t)
	if want := "libgpumem-no-such-library.so.1: cannot open shared object file"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not say %q", err, want)
	}
	f := newFake(t)
	now.Store(f)
	m := newMachine(f.host, nil, err, newNVML(nil, err))
	nothing(t, m, ErrNoDriver, "libgpumem-no-such-library.so.1: cannot open", "--gpus all", "nvidia-container-toolkit", "install", "name a simulated GPU")
	// A container that was given NVML but not CUDA.
	m = newMachine(f.host, nil, err, newNVML(f.find, nil))
	nothing(t, m, ErrNoDriver, "cannot open", "sees 1 GPUs (NVIDIA Fake)", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
}

func TestMissingSymbol(t *testing.T) {
	find, err := open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	_, err = find("gpumemNoSuchFunction")
	if err == nil || !strings.Contains(err.Error(), "undefined symbol: gpumemNoSuchFunction") {
		t.Errorf("%v", err)
	}
	m := newMachine(realHost, find, nil, newNVML(nil, absent(t)))
	nothing(t, m, ErrNoDriver, "libcuda has no cuInit", "update")
}

// TestInitFailures: each code of cuInit, with what to do.
func TestInitFailures(t *testing.T) {
	for _, code := range allCodes() {
		f := newFake(t)
		f.fail["cuInit"] = int32(code)
		m := f.use()
		nothing(t, m, code, codes[code].name, codes[code].advice)
		nothing(t, m, ErrNoDriver)
		if is := codes[code].is; is != nil {
			nothing(t, m, is)
		}
	}
}

func TestExplain(t *testing.T) {
	env := func(v string) func(string) (string, bool) {
		return func(name string) (string, bool) { return v, name == "CUDA_VISIBLE_DEVICES" }
	}
	for _, tc := range []struct {
		name string
		code Code
		set  func(*fake)
		want []string
		not  string
	}{
		{"no nodes", 100, func(*fake) {}, []string{"there is no ", "nvidiactl", "modprobe nvidia"}, "CUDA_VISIBLE_DEVICES=\""},
		{"no nodes, system error", 304, func(*fake) {}, []string{"nvidiactl"}, ""},
		{"nodes", 100, func(f *fake) { writeFile(t, filepath.Join(f.host.dev, "nvidiactl"), "") }, nil, "nvidiactl"},
		{"WSL", 100, func(f *fake) { writeFile(t, filepath.Join(f.host.dev, "dxg"), "") }, nil, "nvidiactl"},
		{"a node that is no file", 100, func(f *fake) { writeFile(t, filepath.Join(f.host.dev, "nvidiactl", "x"), "") }, []string{"cannot open the driver"}, ""},
		{"no permission", 100, func(f *fake) {
			f.host.openFile = func(string, int, fs.FileMode) (*os.File, error) { return nil, fs.ErrPermission }
		}, []string{"may not open", "nvidiactl", "video or render"}, ""},
		{"hidden", 100, func(f *fake) {
			f.host.lookupEnv = env("")
			f.add(1 << 30)
		}, []string{`CUDA_VISIBLE_DEVICES="" hides every GPU of the 2 that NVML sees (NVIDIA Fake, NVIDIA Fake)`, "unset it"}, ""},
		{"hidden, no NVML", 100, func(f *fake) {
			f.host.lookupEnv = env("-1")
			f.fail["nvmlInit_v2"] = 9
		}, []string{`CUDA_VISIBLE_DEVICES="-1" hides every GPU; unset it`}, ""},
		{"hidden, no name", 100, func(f *fake) {
			f.host.lookupEnv = env("7")
			f.fail["nvmlDeviceGetName"] = 15
		}, []string{"the 1 that NVML sees (one without a name)"}, ""},
		{"hidden, no count", 100, func(f *fake) {
			f.host.lookupEnv = env("7")
			f.fail["nvmlDeviceGetCount_v2"] = 15
		}, []string{"hides every GPU; unset it"}, ""},
		{"another failure", 803, func(*fake) {}, []string{"reboot or reload the module"}, "nvidiactl"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t)
			f.fail["cuInit"] = int32(tc.code)
			tc.set(f)
			_, err := f.use().count()
			tells(t, err, ErrNoDriver, tc.want...)
			if tc.not != "" && strings.Contains(err.Error(), tc.not) {
				t.Errorf("%q speaks of %q", err, tc.not)
			}
		})
	}
	t.Run("a driver that counts none", func(t *testing.T) {
		f := newFake(t)
		f.gpus = nil
		f.host.lookupEnv = env("9")
		nothing(t, f.use(), ErrNoDriver, "CUDA_ERROR_NO_DEVICE", `CUDA_VISIBLE_DEVICES="9"`)
	})
}

// TestOldDriver: before CUDA 11.2 there are no pools; pools are limited from
// 12.2 on.
func TestOldDriver(t *testing.T) {
	f := newFake(t)
	f.version = 11000
	for i, fn := range cuFunctions {
		if fn.since > 11000 {
			f.lacks[fn.symbol] = true
		}
		if i >= firstPoolFunction && i <= lastPoolFunction && fn.since == 0 {
			t.Errorf("%s has no first version", fn.symbol)
		}
	}
	delete(f.gpus[0].attributes, attributePools)
	d := f.open()
	if info := d.Info(); info.HasPools || !info.HasPages || info.UUID == "" {
		t.Errorf("%+v", info)
	}
	_, err := d.DefaultPool()
	tells(t, err, device.ErrNotSupported, "cuDeviceGetDefaultMemPool", "CUDA 11.0", "CUDA 11.2 or newer")
	_, err = d.AllocAsync(1, 1, 0)
	tells(t, err, device.ErrNotSupported, "cuMemAllocFromPoolAsync of 1 bytes on NVIDIA Fake")

	f = newFake(t)
	f.version = 12010
	d = f.open()
	if _, err := d.PoolCreate(0); err != nil {
		t.Error(err)
	}
	_, err = d.PoolCreate(1 << 20)
	tells(t, err, device.ErrNotSupported, "cuMemPoolCreate", "CUDA 12.1", "CUDA 12.2 or newer")

	f = newFake(t)
	f.fail["cuDriverGetVersion"] = 1
	f.fail["nvmlSystemGetDriverVersion"] = 3
	f.lacks["cuMemFreeAsync"] = true
	d = f.open()
	if d.Info().Driver != "" {
		t.Errorf("driver %q", d.Info().Driver)
	}
	tells(t, d.FreeAsync(1, 0), device.ErrNotSupported, "the driver has no cuMemFreeAsync; update it to one for CUDA 11.2")
}

// TestDeviceCannot: the driver could, the device cannot.
func TestDeviceCannot(t *testing.T) {
	f := newFake(t)
	f.gpus[0].attributes[attributePages] = 0
	f.gpus[0].attributes[attributePools] = 0
	f.gpus[0].attributes[attributeManaged] = 0
	d := f.open()
	if info := d.Info(); info.HasPages || info.HasPools || info.HasManaged || info.Oversubscribes || info.Page != 0 {
		t.Errorf("%+v", info)
	}
	_, err := d.PoolCreate(0)
	tells(t, err, device.ErrNotSupported, "cuMemPoolCreate")
	_, err = d.MemCreate(page)
	tells(t, err, device.ErrNotSupported, "cuMemCreate of 2097152 bytes")
	_, err = d.AddressReserve(page, 0)
	tells(t, err, device.ErrNotSupported, "cuMemAddressReserve")
	_, err = d.AllocManaged(1)
	tells(t, err, device.ErrNotSupported, "cuMemAllocManaged of 1 bytes")
}

// TestManagedSizes: what cannot be is refused here, and what is more than the
// device has only where that cannot be.
func TestManagedSizes(t *testing.T) {
	for _, tc := range []struct {
		name           string
		oversubscribes int32
		fits, refused  uint64
	}{
		{"oversubscribes", 1, 3 << 30, maxManaged + 1},
		{"does not", 0, 1 << 30, 1<<30 + 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t)
			f.gpus[0].attributes[attributeOversubscribe] = tc.oversubscribes
			d := f.open()
			if info := d.Info(); !info.HasManaged || info.Oversubscribes != (tc.oversubscribes != 0) {
				t.Errorf("%+v", info)
			}
			r, err := d.AllocManaged(tc.fits)
			if err != nil || r.Bytes != tc.fits {
				t.Errorf("%+v, %v", r, err)
			}
			calls := f.count(cuMemAllocManaged)
			_, err = d.AllocManaged(tc.refused)
			tells(t, err, device.ErrOutOfMemory, "cuMemAllocManaged")
			if f.count(cuMemAllocManaged) != calls {
				t.Error("the driver was asked")
			}
			checkClosed(t, f, d)
		})
	}
}

func TestInfo(t *testing.T) {
	f := newFake(t)
	g := f.gpus[0]
	g.name = "NVIDIA H200"
	g.uuid = [16]byte{0: 0x01, 4: 0x23, 6: 0x45, 8: 0x67, 10: 0x89, 15: 0xab}
	f.nv.devices[0].uuid = "GPU-01000000-2300-4500-6700-8900000000ab"
	f.nv.devices[0].display = 1
	want := device.Info{
		Name: "NVIDIA H200", UUID: "GPU-01000000-2300-4500-6700-8900000000ab", Driver: "580.82.07",
		Total: 1 << 30, Granularity: 512, Page: page, CCMajor: 9, CCMinor: 1, Display: true,
		HasPages: true, HasPools: true, HasManaged: true, Oversubscribes: true,
	}
	if got := f.open().Info(); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}

	// Without NVML: the version is CUDA's, and a display is known by its
	// watchdog.
	f.fail["nvmlInit_v2"] = 18
	g.attributes[attributeKernelTimeout] = 1
	want.Driver = "CUDA 12.8"
	if got := f.open().Info(); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	f.nv.devices[0].display, f.fail = 0, map[string]int32{}
	if got := f.open().Info(); got.Display {
		t.Error("NVML says that no display is drawn, and is not believed")
	}

	// A name that fills its buffer has no end in it.
	g.name = strings.Repeat("x", 300)
	if got := f.open().Info().Name; got != strings.Repeat("x", 256) {
		t.Errorf("name of %d bytes", len(got))
	}
	// No UUID at all is no reason to fail.
	f.fail["cuDeviceGetUuid_v2"] = 999
	if got := f.open().Info().UUID; got != "" {
		t.Errorf("UUID %q", got)
	}
}

// TestUnified: memory of the host is free as far as the host says.
func TestUnified(t *testing.T) {
	f := newFake(t)
	f.gpus[0].attributes[attributeIntegrated] = 1
	f.tempProc("meminfo", "MemTotal: 9 kB\nMemAvailable:   1024 kB\n")
	d := f.open()
	free, total, err := d.MemInfo()
	if free != 1<<20 || total != 1<<30 || err != nil || !d.Info().Unified {
		t.Errorf("%d of %d free, %v, %+v", free, total, err, d.Info())
	}
	f.tempProc("meminfo", "MemAvailable: 1048576000 kB\n")
	if free, _, err := d.MemInfo(); free != 1<<30 || err != nil {
		t.Errorf("%d free, %v", free, err)
	}
	f.tempProc("meminfo", "MemTotal: 9 kB\n")
	_, _, err = d.MemInfo()
	var ce *device.CallError
	if !errors.As(err, &ce) || ce.Call != "cuMemGetInfo" || !strings.Contains(err.Error(), "no line MemAvailable") {
		t.Errorf("%v", err)
	}
}

// TestLost: after the device is lost nothing is asked of it.
func TestLost(t *testing.T) {
	f := newFake(t)
	d := f.open()
	x := newThings(t, d)
	f.gpus[0].sim.SetFaults(sim.Faults{LoseAt: 1})
	tells(t, d.Free(x.grant.Addr), device.ErrLost, "cuMemFree", "restart")
	calls := f.called["cuMemGetInfo_v2"]
	_, _, err := d.MemInfo()
	tells(t, err, device.ErrLost, "cuMemGetInfo")
	if _, err := d.StreamQuery(x.s); !errors.Is(err, device.ErrLost) {
		t.Error(err)
	}
	if f.called["cuMemGetInfo_v2"] != calls {
		t.Error("a lost device was asked")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	_, _, err = d.MemInfo()
	tells(t, err, device.ErrClosed, "cuMemGetInfo")
}

// TestPublic: the exported functions answer for this machine, whatever it has.
func TestPublic(t *testing.T) {
	n, err := Count()
	if avail := Available(); (avail == nil) != (err == nil) {
		t.Errorf("Count says %v, Available %v", err, avail)
	}
	all, listErr := List()
	if len(all) != n || (listErr == nil) != (err == nil) {
		t.Errorf("%d devices, %d listed: %v, %v", n, len(all), err, listErr)
	}
	if _, openErr := Open(n); openErr == nil {
		t.Errorf("device %d of %d was opened", n, n)
	}
	if err != nil {
		tells(t, err, ErrNoDriver)
	}
}
