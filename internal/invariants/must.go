package invariants

// Must panics if a check found something that does not hold. Call it only where
// Enabled is true.
func Must(err error) {
	if err != nil {
		panic("invariant broken: " + err.Error())
	}
}
