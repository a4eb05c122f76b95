// Package crashpoint names the steps between which a process may be killed or stopped, so
// that tests can do it at each of them.
package crashpoint

// Hook is called after every step that another process could see, with the step's name.
// Only tests set it, mostly in children that stop or kill themselves in it.
var Hook func(step string)

// At marks a step that another process can see.
func At(step string) {
	if Hook != nil {
		Hook(step)
	}
}
