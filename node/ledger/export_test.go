package ledger

// Forget ends the use of the ledger as the kernel does where a process ends, or as a child
// does that was forked: the slot is left to whoever else has the description.
func (m *Member) Forget() error { return m.end(func() {}) }

// Own returns what this process has taken and published.
func (m *Member) Own() Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}
