package lock

// Asleep reports whether a goroutine sleeps in front.
func (m *Mutex) Asleep() bool { return m.state.Load()&asleep != 0 }
