package account

import (
	"gpumem/device/card"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"gpumem/node/machine"
	"math"
	"strconv"
	"strings"
)

// The GPU that the failure is about: how much memory it has, what was free, and whether the
// memory is the host's.

// Thresholds, in bytes.
const (
	// FirstLibrary is what cuDNN needs for its first convolution, kernels
	// included: about 520 MiB (tensorflow/tensorflow#24496).
	FirstLibrary = 520 * statement.Mib
	// ContextMost is the most that a context, its modules and library handles
	// take outside of any pool in an ordinary program, NCCL left out.
	ContextMost = 1536 * statement.Mib
	// smallProgram fits any GPU of the last ten years: if it did not, it was not for
	// its own size.
	smallProgram = statement.Gib
)

// defaultLeft is the part of the GPU that JAX's default pool leaves: 1 - 0.75,
// since jaxlib 0.4.4.
const defaultLeft = 0.25

// ordinal is the GPU that the failure is about, and -1.
func (e *Case) ordinal() int {
	n := -1
	for _, r := range e.Failed {
		if r.Device >= 0 && !r.Mild {
			n = r.Device
		}
	}
	return n
}

// gpu is what the state says of it, and nil. A GPU whose size is another than the message's is another GPU.
func (e *Case) gpu() *machine.Device {
	d := e.state.Device(e.ordinal())
	if d == nil || d.Total == 0 {
		return d
	}
	for _, r := range e.Failed {
		told := r.Total > statement.Gib && r.Total < saneTotal && r.Layer != statement.LayerHost && r.unit() == ""
		if told && (r.Total > d.Total+d.Total/8 || d.Total > r.Total+r.Total/8) {
			return nil
		}
	}
	return d
}

// A Sized is a size and the line it is from.
type Sized struct {
	Bytes uint64
	From  statement.Evidence
}

// saneTotal is no GPU's memory or more: what a driver that is out of memory reports may
// be anything.
const saneTotal = 1 << 42

// Total is the memory of the GPU in bytes, 0 if unknown. What the state says goes before
// what the log says.
func (e *Case) Total() Sized {
	if d := e.gpu(); d != nil && d.Total > 0 {
		return Sized{d.Total, statement.Evidence{Text: "devices.total_bytes: " + strconv.FormatUint(d.Total, 10),
			Reading: "the GPU has " + Human(d.Total)}}
	}
	for _, r := range e.Failed {
		if r.Total > statement.Mib && r.Total < saneTotal && r.Layer != statement.LayerHost && r.unit() == "" {
			return Sized{r.Total, r.St.Quoted("the GPU has " + Human(r.Total))}
		}
	}
	for _, kind := range []string{"smi memory", "found", "vllm usage", "simulated"} {
		if f := e.pick(kind, func(f *statement.Fact) bool { return f.Total > 0 && f.Total < saneTotal }); f != nil {
			return Sized{f.Total, f.Quoted("the GPU has " + Human(f.Total))}
		}
	}
	for _, st := range e.Statements() {
		a := st.Amount(statement.RoleTotal)
		if a != nil && strings.HasPrefix(a.Subject, "each ") {
			continue // of a bank, and not of the GPU
		}
		if wholeGPU(st) {
			return Sized{a.N, st.Quoted("the GPU has " + Human(a.N))}
		}
	}
	for _, st := range e.Statements() {
		if a := st.Amount(statement.RoleLimit); a != nil && st.Words["working"] && st.Words["set"] && a.N < saneTotal {
			return Sized{a.N, st.Quoted("Metal's working set has " + Human(a.N))}
		}
	}
	for _, kind := range []string{"tf device", "device", "smi gpu"} {
		f := e.pick(kind, func(f *statement.Fact) bool {
			least, most, ok := cardTotals(f.Name)
			return ok && most-least <= most/50
		})
		if f != nil {
			least, _, _ := cardTotals(f.Name)
			return Sized{least, f.Quoted("a GPU of this name has " + Human(least))}
		}
	}
	return Sized{}
}

// wholeGPU reports whether a text's total is that of a GPU, and not of a pool, the host, or a
// plan of XLA's. The least that counts is 256 MiB: what has less is no GPU of today.
func wholeGPU(st *statement.Statement) bool {
	a := st.Amount(statement.RoleTotal)
	if a == nil {
		return false
	}
	sane := a.N >= 256*statement.Mib && a.N < saneTotal
	pool := st.HasAny("chunks", "cupy") || a.Pool && st.Amount(statement.RoleFree) == nil
	named := st.HasAny("memory", "vram") || a.Label == "card"
	return sane && named && !pool && !a.Host && st.Topic("remat") == nil
}

// free is the last reading of the driver, with the total beside it; nil if there is none.
func (e *Case) free() (st *statement.Statement, free, total uint64) {
	all := e.Statements()
	for i := len(all) - 1; i >= 0; i-- {
		f, t := all[i].Amount(statement.RoleFree), all[i].Amount(statement.RoleTotal)
		if f == nil || t == nil || all[i].Refused || all[i].Topic("nvshare") != nil {
			continue
		}
		if t.N > 0 && t.N < saneTotal && !f.Host && !f.Pool {
			return all[i], f.N, t.N
		}
	}
	return nil, 0, 0
}

// LargestGPU is the most memory, in bytes, of any single GPU that is sold: the
// 432 GB of AMD's Instinct MI455X (announced in November 2025 for the second half of 2026).
// NVIDIA's largest is the GB300 with 284,208 MiB.
const LargestGPU = 432 << 30

// cardTotals is between what totals, in bytes, a GPU with this name is seen by
// programs and nvidia-smi. Names that several cards have give a range over all of them.
// It is false for a name that is not known, and for slices and virtual GPUs.
func cardTotals(name string) (least, most uint64, ok bool) {
	for _, c := range card.Named(name) {
		if !ok {
			least = c.Least()
		}
		least, most, ok = min(least, c.Least()), max(most, c.SMI<<20), true
	}
	return least, most, ok
}

// unifieds are devices that share the host's memory, and whose total no
// Discrete card has. A GB10's 119.2 to 121.7 GiB are in messages of
// PyTorch and vLLM, as are a Thor's 122.8; an Orin's 61 are in tmcdonell/cuda#77.
var unifieds = []struct {
	name        string
	least, most float64 // GiB
}{
	{"Jetson AGX Orin 64GB", 61.0, 61.6},
	{"GB10", 119.0, 122.0},
	{"Jetson AGX Thor", 122.0, 123.5},
}

// UnifiedTotal reports whether a total, in bytes, is that of a device which
// shares the host's memory and of no other, and which one that is.
func UnifiedTotal(total uint64) (string, bool) {
	for _, u := range unifieds {
		if gib := float64(total) / (1 << 30); gib >= u.least && gib < u.most {
			return u.name, true
		}
	}
	return "", false
}

var unifiedWords = needle.MustCompile(`(?i)\b(?:GB10|Orin|Thor|Xavier|Tegra|Jetson)\b`)

// unifiedName reports whether a GPU of this name shares the host's memory.
func unifiedName(name string) bool { return unifiedWords.MatchString(name) }

// knownTotal reports whether bytes are what programs see of a card as its total, to the
// two digits that are known.
func knownTotal(bytes uint64) bool {
	for _, c := range card.All() {
		for _, total := range c.Seen {
			if math.Abs(float64(bytes)/statement.Gib-total) < .0201 {
				return true
			}
		}
	}
	return false
}

// GPUUsed is what the state says is in use of the GPU, and its total; 0 if unknown.
func (e *Case) GPUUsed() (used, total uint64) {
	if d := e.gpu(); d != nil && d.Total > 0 {
		return d.InUse(), d.Total
	}
	return 0, 0
}

// SMIFull is a row of a pasted nvidia-smi that shows a full GPU.
func (e *Case) SMIFull() Sized {
	m := e.pick("smi memory", func(m *statement.Fact) bool {
		return m.Total > 0 && Less(m.Total, m.InUse) < max(statement.Gib, m.Total/50)
	})
	if m == nil {
		return Sized{}
	}
	return Sized{m.InUse, m.Quoted(Say("%v of %v is in use", m.InUse, m.Total))}
}

// NamedCard is the most memory of a card that the log names.
func (e *Case) NamedCard() Sized {
	for _, kind := range []string{"tf device", "device", "smi gpu"} {
		if f := e.pick(kind, nil); f != nil {
			if _, most, ok := cardTotals(f.Name); ok {
				return Sized{most, f.Quoted("")}
			}
		}
	}
	return Sized{}
}

// SmallDevice is TensorFlow's device where it got half of its GPU or less, and the GPU's memory.
func (e *Case) SmallDevice() (part Sized, total uint64) {
	if !e.Fatal() && e.Library == nil {
		return Sized{}, 0
	}
	for _, d := range e.facts("tf device") {
		least, _, ok := cardTotals(d.Name)
		if t := e.gpu(); !ok && t != nil && t.Total > 0 {
			least, ok = t.Total, true
		}
		if d.Limit > 0 && ok && d.Limit <= least/2 {
			return Sized{d.Limit, d.Quoted("")}, least
		}
	}
	return Sized{}, 0
}

// TensorFlowDevice is a device of TensorFlow's that has less than bytes.
func (e *Case) TensorFlowDevice(bytes uint64) Sized {
	for _, d := range e.facts("tf device") {
		if d.Limit > 0 && bytes > d.Limit {
			return Sized{d.Limit, d.Quoted("")}
		}
	}
	return Sized{}
}

// Simulated is the GPU that RMM's replay simulates.
func (e *Case) Simulated() Sized {
	if d := e.pick("simulated", nil); d != nil {
		return Sized{d.Total, d.Quoted("")}
	}
	return Sized{}
}

// SharesMemory are the lines that show a GPU without memory of its own.
func (e *Case) SharesMemory() []statement.Evidence {
	name := e.UnifiedDevice()
	if name == "" {
		return nil
	}
	if f := e.pick("device", func(f *statement.Fact) bool { return f.Name == name }); f != nil {
		return []statement.Evidence{f.Quoted(name + " shares the host's memory")}
	}
	return []statement.Evidence{{Text: "devices.name: " + name, Reading: "it shares the host's memory"}}
}
