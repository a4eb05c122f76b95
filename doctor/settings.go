package doctor

// The settings in the environment of the process that was looked at, as its framework reads them.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpumem/node/machine"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// settingsOf returns the settings of the state's process, a sentence each: first those that do not do
// what they seem to, with what to write instead, then what the others do.
func settingsOf(state *machine.Snapshot) (all []string) {
	if state == nil || state.Process == nil || len(state.Process.Env) == 0 {
		return nil
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(state.Process.Env)) {
		lines = append(lines, name+"="+state.Process.Env[name])
	}
	var on policy.Device
	if len(state.Devices) > 0 {
		d := &state.Devices[0]
		on.Total, on.Free = d.Total, d.Total-min(d.InUse(), d.Total)
	}
	var effects []string
	releases := loaded(state.Process)
	for _, release := range releases {
		env := policy.Environ(slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			name, _, _ := strings.Cut(line, "=")
			v, ok := frameworks.Lookup(name)
			return len(releases) > 1 && ok && !v.ReadBy(release.Name) // it is for another of them
		}))
		wrong, does := settings(env, release, on)
		all, effects = appendNew(all, wrong...), appendNew(effects, does...)
	}
	return append(all, effects...)
}

// loaded are the known frameworks of a process; if it has loaded none, those that read one of its
// variables.
func loaded(p *machine.Process) (all []frameworks.Release) {
	add := func(name, version string) {
		r := frameworks.Release{Name: name, Version: version}
		if _, err := frameworks.ParseRelease(r.String()); err != nil {
			r.Version = ""
		}
		if _, err := frameworks.ParseRelease(r.String()); err == nil && name != "gpumem" && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, name := range p.Frameworks {
		add(name, p.Versions[name])
	}
	if len(all) == 0 {
		for _, name := range slices.Sorted(maps.Keys(p.Env)) {
			if v, ok := frameworks.Lookup(name); ok && len(v.Readers) > 0 {
				add(v.Readers[0].Framework, "")
			}
		}
	}
	return all
}

// mostErrors bounds how many settings of one environment are refused one after the other: a framework
// stops at the first.
const mostErrors = 8

// settings returns what a release makes of an environment.
func settings(env policy.Environment, as frameworks.Release, on policy.Device) (wrong, does []string) {
	given := env
	pair := func(name string) string { return name + "=" + env.Get(name) }
	for range mostErrors {
		a, err := explain.Environment(env, as, on)
		if err != nil {
			return wrong, does
		}
		if len(a.Errors) == 0 {
			for _, w := range a.Warnings {
				wrong = append(wrong, pair(w.Name)+": "+w.Text)
			}
			for _, s := range a.Settings {
				if env.Get(s.Name) != given.Get(s.Name) {
					continue // mended here, and not there
				}
				does = append(does, fmt.Sprintf("%s: %s (%s)", pair(s.Name), s.Effect, a.Release()))
			}
			return wrong, does
		}
		e := a.Errors[0]
		text := fmt.Sprintf("%s: %s refuses it: %s", pair(e.Name), a.Release(), strings.TrimRight(e.Text, "."))
		if e.Fix != "" {
			text += "; write " + strings.ReplaceAll(" "+e.Fix, " -", " unset ")[1:]
		}
		wrong = append(wrong, text)
		env = env.Apply(cmp.Or(e.Fix, "-"+e.Name))
	}
	return wrong, does
}
