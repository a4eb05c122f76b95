package streams

// Known is how many streams the tracker keeps.
func Known(t *Tracker) int { return len(t.byNumber) }

// Events returns how many events there are.
func (t *Tracker) Events() int { return t.marks + len(t.spare) }
