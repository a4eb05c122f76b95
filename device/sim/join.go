package sim

import (
	"fmt"
	"time"

	"gpumem/device"
	"gpumem/device/internal/shared"
)

// A shared simulated GPU is a file. Every program that opens it has its own state
// machine, since addresses, mappings and streams belong to one program on a real GPU,
// too; what they share is how many bytes each holds, and that
// is what the file counts (package shared).

// CreateFile makes a file with simulated GPUs for programs to share. It never
// overwrites one. Faults and costs in the descriptions are not kept: each program sets
// its own.
func CreateFile(path string, devices ...Config) error {
	var list []shared.Descriptor
	for _, cfg := range devices {
		d, err := New(cfg) // checks it and fills in what is not given
		if err != nil {
			return err
		}
		cfg := d.cfg
		list = append(list, shared.Descriptor{
			Name: cfg.Name, Total: cfg.Total, Granularity: cfg.Granularity, Used: cfg.Used, Display: cfg.Display, Context: cfg.Context, Host: cfg.Host, Beyond: cfg.Beyond,
			CCMajor: cfg.CCMajor, CCMinor: cfg.CCMinor, NoPages: cfg.NoPages, NoPools: cfg.NoPools, NoManaged: cfg.NoManaged, Unified: cfg.Unified, MIG: cfg.MIG,
		})
	}
	return shared.Create(path, list)
}

// fromDescriptor is the description of a device of a file.
func fromDescriptor(d shared.Descriptor) Config {
	return Config{
		Name: d.Name, Total: d.Total, Granularity: d.Granularity, Display: d.Display, Context: d.Context, Host: d.Host, Beyond: d.Beyond,
		CCMajor: d.CCMajor, CCMinor: d.CCMinor, NoPages: d.NoPages, NoPools: d.NoPools, NoManaged: d.NoManaged, Unified: d.Unified, MIG: d.MIG,
	}
}

// Join opens device index, from 0, of a file made by [CreateFile]. Of own only
// the faults, the costs and what becomes of hazards, streams and requests that are not free count. Until Close, or the program's end however it
// comes, what it holds is listed under this program.
func Join(path string, index int, own Config) (*Device, error) {
	f, err := shared.Open(path)
	if err != nil {
		return nil, err
	}
	list := f.Devices()
	if index < 0 || index >= len(list) {
		_ = f.Close()
		return nil, fmt.Errorf("sim@%s has %d devices, from device=0 to device=%d; there is no device=%d", path, len(list), len(list)-1, index)
	}
	cfg := fromDescriptor(list[index])
	cfg.Costs, cfg.Faults = own.Costs, own.Faults
	cfg.Report, cfg.Exceed, cfg.ReuseStreams, cfg.PromptAllocs = own.Report, own.Exceed, own.ReuseStreams, own.PromptAllocs
	d, err := New(cfg)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	d.info.Ordinal = index
	d.ledger = &common{f, index}
	return d, nil
}

// common is the ledger of a shared device.
type common struct {
	file  *shared.File
	index int
}

// Want announces to the programs that share the device that this one waits until
// bytes are free.
func (d *Device) Want(bytes uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.ledger.(*common); ok && !d.closed {
		c.file.Want(c.index, bytes)
		return nil
	}
	return device.ErrNotSupported
}

// Wanted returns the last announcement of any of them.
func (d *Device) Wanted() (number, bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.ledger.(*common); ok && !d.closed {
		return c.file.Wanted(c.index)
	}
	return 0, 0
}

func (c *common) take(n uint64) error    { return c.file.Take(c.index, n) }
func (c *common) exceed(n uint64) error  { return c.file.Exceed(c.index, n) }
func (c *common) give(n uint64) error    { return c.file.Give(c.index, n) }
func (c *common) free() (uint64, error)  { return c.file.Free(c.index) }
func (c *common) setUsed(n uint64) error { return c.file.SetUsed(c.index, n) }
func (c *common) close() error           { return c.file.Close() }

func (c *common) occupy(e Engine, now, ready, takes time.Duration) time.Duration {
	return c.file.Occupy(c.index, int(e), now, ready, takes)
}

func (c *common) busy(e Engine) time.Duration { return c.file.Busy(c.index, int(e)) }

// Look returns the status of every device of a shared file, with the processes that hold
// memory, without joining them.
func Look(path string) ([]device.Status, error) {
	states, err := shared.Look(path)
	if err != nil {
		return nil, err
	}
	var out []device.Status
	for i, s := range states {
		d, err := New(fromDescriptor(s.Device))
		if err != nil {
			return nil, err
		}
		d.info.Ordinal = i
		out = append(out, device.Status{Info: d.info, Free: s.Free, Used: s.Used, Processes: s.Processes})
	}
	return out, nil
}

// Status returns the device's status, without its processes. It makes no driver call.
func (d *Device) Status() (device.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.Status{}, d.refuse("Status", 0, device.ErrClosed)
	}
	free, err := d.ledger.free()
	if err != nil {
		return device.Status{}, d.refuse("Status", 0, err)
	}
	return device.Status{Info: d.info, Free: free, Used: d.cfg.Total - free}, nil
}
