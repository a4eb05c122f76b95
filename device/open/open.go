// Package open makes a device from the words of the command line, so that
// nothing else has to know which kinds there are:
//
//	sim:SIZE[,key=value...]   a simulated GPU, private to this program; sim: may be left out
//	sim@FILE[,device=N]       one that all programs share that name FILE
//	cuda:N                    an NVIDIA GPU
package open

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/device"
	"gpumem/device/card"
	"gpumem/device/cuda"
	"gpumem/device/sim"
)

// EnvVar names the device to use where the command line does not.
const EnvVar = "GPUMEM_DEVICE"

// Default is the device that stands in where there is no other: a simulated
// GPU of the size of today's common card.
const Default = "sim:80GiB"

// Kind is what stands behind a device's words.
type Kind int

// The kinds.
const (
	Private Kind = iota // sim:SIZE
	Shared              // sim@FILE
	CUDA                // cuda:N
)

// Spec is a device's words, understood. Nothing is opened yet.
type Spec struct {
	Text string // as given
	Kind Kind
	Sim  sim.Config // Private: the device; Shared: the faults asked for

	File   string       // Shared: the file
	Create []sim.Config // Shared: the devices to make in a new file; nil: it is there
	Index  int          // CUDA, Shared: the number of the device, from 0
	All    bool         // Shared: no number was given, which means the first where one is wanted
}

// Parse reads a device's words. It looks at nothing but the words: whether
// there is such a file or GPU is for [Spec.Device] to say. An error is one line
// that names the part that is wrong.
func Parse(s string) (Spec, error) {
	if rest, ok := strings.CutPrefix(s, "sim:"); ok {
		cfg, err := sim.ParseConfig(rest)
		if err != nil {
			return Spec{}, err
		}
		if _, err := sim.New(cfg); err != nil {
			return Spec{}, err
		}
		return Spec{Text: s, Kind: Private, Sim: cfg}, nil
	}
	if rest, ok := strings.CutPrefix(s, "sim@"); ok {
		return parseShared(s, rest)
	}
	if rest, ok := strings.CutPrefix(s, "cuda:"); ok {
		n, err := ordinal(rest)
		if err != nil {
			return Spec{}, fmt.Errorf("device %q: want cuda:N with the number of the GPU, such as cuda:0", s)
		}
		return Spec{Text: s, Kind: CUDA, Index: n}, nil
	}
	if s == "" || strings.ContainsAny(s, ":@") {
		return Spec{}, fmt.Errorf("device %q: want cuda:N, sim:SIZE[,key=value...] or sim@FILE, such as %s", s, Default)
	}
	spec, err := parseBare(s)
	if err != nil {
		return Spec{}, fmt.Errorf("device %q: %w (other forms: cuda:N, sim:SIZE[,key=value...], sim@FILE)", s, err)
	}
	return spec, nil
}

// parseBare reads a simulated GPU as people name it, without sim: before it: T4, 24GB.
func parseBare(s string) (Spec, error) {
	name, _, _ := strings.Cut(s, ",")
	switch isNumber := strings.Trim(name, "0123456789.") == ""; {
	case name == "":
	case isNumber: // 4090 is a card to its writer, and bytes to sim:
		return Spec{}, unitError(name)
	case name[0] <= '9' && card.Full(name) != "": // 4070ti, TiB to sim:
		return Spec{}, fmt.Errorf("write %q", card.Full(name))
	}
	spec, err := Parse("sim:" + s)
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without sim: and the words
	}
	return spec, err
}

// unitError returns the error of a number alone, with what may have been meant.
func unitError(number string) error {
	unit := "GiB"
	if n, err := strconv.ParseFloat(number, 64); err == nil && n >= 1000 {
		unit = "MiB"
	}
	if full := card.Full(number); full != "" {
		return fmt.Errorf("write %q, or %s%s for a GPU of that size", full, number, unit)
	}
	return fmt.Errorf("%s has no unit; write %[1]s%s", number, unit)
}

// Simulated reads the words for simulated GPUs: a size or a card, and how many of it ([Cards]), or
// sim@FILE, which counts as one.
func Simulated(words string) (Spec, int, error) {
	if strings.HasPrefix(words, "sim@") {
		spec, err := Parse(words)
		return spec, 1, err
	}
	one, n, err := Cards(words)
	if err != nil {
		return Spec{}, 0, err
	}
	one = strings.TrimPrefix(one, "sim:")
	if one == "" || strings.ContainsAny(one, ":@") {
		return Spec{}, 0, fmt.Errorf("%q: want a size, a card or a file, such as 24GiB, T4, T4*2 or sim@FILE", words)
	}
	spec, err := parseBare(one)
	return spec, n, err
}

// mostGPUs is the most GPUs of a machine.
const mostGPUs = 16

// Cards reads the words of a device, behind whose size or card may stand how many there are:
// sim:24GiB*4, T4*2. It returns the words of one, and the number.
func Cards(words string) (one string, n int, err error) {
	if form := several(words); form != "" {
		return "", 0, fmt.Errorf("%q: write %s", words, form)
	}
	before, rest, several := strings.Cut(words, "*")
	if !several {
		return words, 1, nil
	}
	number, options, ok := strings.Cut(rest, ",")
	number = strings.TrimSpace(number)
	if ok {
		options = "," + options
	}
	isSimulated := !strings.HasPrefix(before, "cuda:") && !strings.HasPrefix(before, "sim@")
	if n, err = strconv.Atoi(number); err != nil || n < 1 || n > mostGPUs || !isSimulated {
		return "", 0, fmt.Errorf("%q: want a size or a card and *N with N from 1 to %d, such as 24GiB*4 or T4*2", words, mostGPUs)
	}
	return before + options, n, nil
}

var (
	numberFirst = regexp.MustCompile(`^(\d{1,2}) ?[xX*] ?([^*]+)$`)                                     // 2xT4
	numberLast  = regexp.MustCompile(`^([^*,=]+?)(?: ?[xX] ?|,(?:count|gpus|num|number|n)=)(\d{1,2})$`) // T4x2, T4,count=2
)

// several returns the form of [Cards] for several GPUs that were written in another one, or "".
func several(words string) string {
	one, n := "", ""
	if m := numberFirst.FindStringSubmatch(words); m != nil {
		one, n = m[2], m[1]
	} else if m := numberLast.FindStringSubmatch(words); m != nil {
		one, n = m[1], m[2]
	} else if list := strings.FieldsFunc(words, func(r rune) bool { return strings.ContainsRune(",;+", r) }); len(list) > 1 { // T4,T4
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		if one, n = list[0], strconv.Itoa(len(list)); len(slices.Compact(list)) > 1 {
			return ""
		}
	}
	if _, err := parseBare(strings.TrimPrefix(one, "sim:")); one == "" || err != nil && len(card.Named(one)) == 0 {
		return ""
	}
	return one + "*" + n
}

// ordinal reads the number of a device, written as a person would.
func ordinal(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 999 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is no number of a device", s)
	}
	return n, nil
}

// parseShared reads what follows sim@: FILE, which ends at the first comma, and
// then either create with the description of the devices, or the number of one.
func parseShared(text, s string) (Spec, error) {
	spec := Spec{Text: text, Kind: Shared, All: true}
	parts := strings.Split(s, ",")
	if spec.File = parts[0]; spec.File == "" {
		return Spec{}, fmt.Errorf("device %q: want sim@FILE with the name of a file", text)
	}
	var totals string // SIZE[/SIZE...]
	var rest []string // what describes a device
	create := false
	seen := map[string]bool{}
	for _, part := range parts[1:] {
		key, val, _ := strings.Cut(part, "=")
		if seen[key] {
			return Spec{}, fmt.Errorf("device %q: %s is given twice", text, key)
		}
		seen[key] = true
		switch key {
		case "create":
			if part != key {
				return Spec{}, fmt.Errorf("device %q: create takes no value", text)
			}
			create = true
		case "total":
			totals = val
		case "device":
			n, err := ordinal(val)
			if err != nil {
				return Spec{}, fmt.Errorf("device %q: device: %v", text, err)
			}
			spec.Index, spec.All = n, false
		default:
			rest = append(rest, part)
		}
	}
	switch {
	case create && totals == "":
		return Spec{}, fmt.Errorf("device %q: create needs total=SIZE, or total=SIZE/SIZE for several devices", text)
	case create && !spec.All:
		return Spec{}, fmt.Errorf("device %q: create makes all devices of the file; leave device=%d out", text, spec.Index)
	case !create && totals != "":
		return Spec{}, fmt.Errorf("device %q: total is for a new file; add create, or leave it out to use the file as it is", text)
	case !create:
		faults, err := sim.ParseFaults(rest)
		if err != nil {
			return Spec{}, fmt.Errorf("device %q: %v", text, err)
		}
		spec.Sim.Faults = faults
		return spec, nil
	}
	for _, total := range strings.Split(totals, "/") {
		// The description is that of a private device, but for its default name.
		cfg, err := sim.ParseConfig(strings.Join(append([]string{total}, rest...), ","))
		if err != nil {
			return Spec{}, fmt.Errorf("device %q: %w", text, err)
		}
		if !seen["name"] {
			cfg.Name = ""
		}
		if _, err := sim.New(cfg); err != nil {
			return Spec{}, fmt.Errorf("device %q: %w", text, err)
		}
		spec.Create = append(spec.Create, cfg)
	}
	return spec, nil
}

// driverLoads is cuda.Available; tests put another in its place.
var driverLoads = cuda.Available

// SetsContext reports whether the words say what a context takes, which may be 0.
func (s Spec) SetsContext() bool { return strings.Contains(s.Text, ",context=") } // no value has a comma

// Choose is the device to use when flag is the command line's word ("" if not
// given): the flag, else the environment's, else the first GPU where a driver
// loads, else [Default], which is also for those who need a device whose size
// can be changed. note is a line for people when the choice was made for them.
func Choose(flag string, lookup func(string) (string, bool), resize bool) (spec Spec, note string, err error) {
	if flag != "" {
		spec, err = Parse(flag)
		return spec, "", err
	}
	if v, ok := lookup(EnvVar); ok && v != "" {
		spec, err = Parse(v)
		if err != nil {
			err = fmt.Errorf("%s: %w", EnvVar, err)
		}
		return spec, "", err
	}
	const choose = " (--device or $" + EnvVar + " choose another)"
	if !resize && driverLoads() == nil {
		spec, err = Parse("cuda:0")
		return spec, "no device named: using the GPU, cuda:0" + choose, err
	}
	spec, err = Parse(Default)
	return spec, "no device named: using a simulated GPU, " + Default + choose, err
}

// Device opens the device; the caller closes it. With Create it makes the file
// first.
func (s Spec) Device() (device.GPU, error) {
	switch s.Kind {
	case CUDA:
		return gpu(cuda.Open(s.Index))
	case Shared:
		if err := s.Make(); err != nil {
			return nil, err
		}
		return gpu(sim.Join(s.File, s.Index, s.Sim))
	}
	return gpu(sim.New(s.Sim))
}

// gpu keeps a nil pointer from becoming a device that is not nil.
func gpu[D device.GPU](d D, err error) (device.GPU, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Make makes the file that the words ask for with create, and does nothing
// without. A file that is there is never overwritten.
func (s Spec) Make() error {
	if s.Create == nil {
		return nil
	}
	return sim.CreateFile(s.File, s.Create...)
}

// CanResize reports whether [Spec.WithTotal] can make the device at another size.
func (s Spec) CanResize() bool { return s.Kind == Private }

// Info describes the device without using it.
func (s Spec) Info() (device.Info, error) {
	list, err := s.Status()
	if err != nil {
		return device.Info{}, err
	}
	return list[0].Info, nil
}

// WithTotal opens the device as if it had another total, in bytes; only a
// private simulated one can, any other must be asked for its own total. What
// others hold on it stays; a total that cannot hold that is an error. A name
// that was not given but taken from the words would be wrong for another total,
// so such a device is called after its size.
func (s Spec) WithTotal(total uint64) (device.GPU, error) {
	if !s.CanResize() {
		d, err := s.Device()
		if err == nil && d.Info().Total != total {
			_ = d.Close()
			err = fmt.Errorf("device %q has %d bytes, and not %d as was asked for; sim:SIZE can be of any size", s.Text, d.Info().Total, total)
		}
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	cfg := s.Sim
	cfg.Total = total
	if cfg.Name == s.Text {
		cfg.Name = ""
	}
	return gpu(sim.New(cfg))
}

// Several returns the words of cards that stand in a list, T4,L4. Keys behind one belong to it: 24GiB,cc=8.0,L4.
func Several(words string) (list []string) {
	for word := range strings.SplitSeq(words, ",") {
		if n := len(list); n > 0 && strings.Contains(word, "=") {
			list[n-1] += "," + word
		} else {
			list = append(list, word)
		}
	}
	return list
}
