package streams

// Known is how many streams the tracker keeps.
func Known(t *Tracker) int { return len(t.byNumber) }
