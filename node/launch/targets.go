// The GPUs that a plan names, and how they stand.

package launch

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/node/share"
	"gpumem/policy"
)

// target is a GPU that the program is to use.
type target struct {
	key     string // in the registry, see [share.Request]
	uuid    string // empty where it has none
	visible string // for CUDA_VISIBLE_DEVICES; empty where the GPU is simulated
	words   string // the device as a command line names it, see package device/open
	meter   share.Meter
}

// choose fills in the targets that GPUs, Device and the environment name.
func (p *Plan) choose() error {
	if p.GPUs == "" {
		spec, note, err := open.Choose(p.Device, os.LookupEnv, false)
		if err != nil {
			return err
		}
		if spec.Kind == open.Private && note != "" { // not named: there is no driver, which says why
			spec, err = open.Parse("cuda:0")
		}
		if err != nil {
			return err
		}
		if spec.Kind == open.Private {
			const text = "%s is private to each program, so there is nothing to share; name a GPU, cuda:N, or a simulated one that is shared, sim@FILE"
			return fmt.Errorf(text, spec.Text)
		}
		if _, chosen := policy.Environ(p.env).Lookup(open.VisibleVar); chosen && spec.Kind == open.Shared && spec.All {
			if spec, err = p.visible(spec.File, 0); err != nil {
				return err
			}
		}
		return p.add(spec)
	}
	seen := map[int]bool{}
	for word := range strings.SplitSeq(p.GPUs, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 0 {
			return fmt.Errorf("--gpu %s: want numbers from 0 with commas between, such as 0,1", p.GPUs)
		}
		if seen[n] {
			return fmt.Errorf("--gpu %s names %d twice", p.GPUs, n)
		}
		seen[n] = true
		spec, err := open.Parse(fmt.Sprintf("cuda:%d", n))
		base := p.Device
		if base == "" {
			base = os.Getenv(open.EnvVar)
		}
		if err == nil && strings.HasPrefix(base, "sim@") {
			shared, perr := open.Parse(base)
			if perr != nil {
				return perr
			}
			spec, err = p.visible(shared.File, n)
		}
		if err != nil {
			return err
		}
		if err := p.add(spec); err != nil {
			return err
		}
	}
	return nil
}

// visible returns the n-th GPU of a file, from 0, as the program counts them: what [open.VisibleVar] lets through.
func (p *Plan) visible(file string, n int) (open.Spec, error) {
	all, err := open.Parse("sim@" + file)
	if err != nil {
		return all, err
	}
	value, ok := policy.Environ(p.env).Lookup(open.VisibleVar)
	if !ok {
		return open.Parse(fmt.Sprintf("sim@%s,device=%d", file, n))
	}
	list, err := all.Visible(value)
	if err != nil {
		return all, err
	}
	switch {
	case len(list) == 0:
		return all, fmt.Errorf("%s=%s hides every simulated GPU; unset it, or name one that is there", open.VisibleVar, value)
	case n >= len(list):
		return all, fmt.Errorf("--gpu %d: %s=%s shows %d of the simulated GPUs, so the last is %d", n, open.VisibleVar, value, len(list), len(list)-1)
	}
	return open.Parse(fmt.Sprintf("sim@%s,device=%d", file, list[n].Ordinal))
}

// add adds a target.
func (p *Plan) add(spec open.Spec) error {
	d, err := listed(spec)
	if err != nil {
		return err
	}
	t := target{key: d.Key(), uuid: d.UUID, visible: d.UUID, words: spec.Text, meter: meter{spec}}
	switch {
	case spec.Kind == open.Shared:
		t.visible = ""
		if p.simulated == "" { // a program has one simulated device: the first
			p.simulated = t.key // which are its words, too
		}
	case d.UUID == "":
		t.visible = strconv.Itoa(d.Ordinal)
	}
	p.targets = append(p.targets, t)
	return nil
}

// listed returns the device of a spec, or the first of several.
func listed(spec open.Spec) (open.Listed, error) {
	list, err := spec.Status()
	if err != nil {
		return open.Listed{}, err
	}
	if len(list) == 0 {
		return open.Listed{}, fmt.Errorf("%s has no device", spec.Text)
	}
	return list[0], nil
}

// meter reads a device's status anew at each call.
type meter struct{ spec open.Spec }

func (m meter) Status() (device.Status, error) {
	d, err := listed(m.spec)
	return d.Status, err
}
