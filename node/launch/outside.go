// The memory outside of pools that gpumem run reckons with, for people who look.

package launch

import (
	"gpumem/device/open"
	"gpumem/node/internal/overhead"
	"gpumem/node/runenv"
)

// Outside is what a program on a GPU is taken to hold outside of its pool.
type Outside struct {
	runenv.Measured
	From string `json:"from"` // where the figure is from, for people
}

// Measured returns what was learned from earlier runs of this user's programs. The error is a
// note: what could not be read is left out.
func Measured() ([]Outside, error) {
	list, err := overhead.NewStore().List()
	out := []Outside{}
	for _, f := range list {
		out = append(out, Outside{f, f.From()})
	}
	return out, err
}

// Estimated returns what counts for programs that were never measured on GPUs, by framework.
func Estimated(devices []open.Listed) []Outside {
	out := []Outside{}
	seen := map[string]bool{}
	for _, d := range devices {
		name := overhead.GPUName(d.Info)
		if seen[name] {
			continue
		}
		seen[name] = true
		g := overhead.GPU{Total: d.Total, CCMajor: d.CCMajor, Context: d.Context, Simulated: d.Simulated}
		for _, framework := range overhead.Frameworks {
			f := runenv.Measured{
				Key: overhead.Key{Framework: framework, GPU: name}, Bytes: overhead.Of(framework, g, 1), Measurements: []overhead.Measurement{},
			}
			out = append(out, Outside{f, overhead.Sources(framework, g, 1)})
		}
	}
	return out
}

// ForgetMeasured forgets what was learned of the programs that a name stands for, and returns
// them: a program as Measured has it, its script, module or file, the last element of a path in
// one, or "all". note is about damaged files that are left.
func ForgetMeasured(name string) (programs []string, note, err error) {
	return overhead.NewStore().Forget(name)
}
