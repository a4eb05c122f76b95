//go:build linux && (amd64 || arm64) && !nodriver

// The state of the GPUs as someone sees it who does not use them.

package cuda

import "gpumem/device"

// list is List.
func (m *machine) list() ([]device.Status, error) {
	n, err := m.count()
	if err != nil {
		return nil, err
	}
	all := make([]device.Status, n)
	for i := range all {
		all[i] = m.status(i)
	}
	return all, nil
}

// status is the state of one device. Only NVML tells it without a context; what
// it does not tell is a note.
func (m *machine) status(ordinal int) (s device.Status) {
	note := func(err error) {
		if err != nil {
			s.Notes = append(s.Notes, err.Error())
		}
	}
	var err error
	_, s.Info, err = m.describe(ordinal)
	note(err)
	h, err := m.identify(&s.Info)
	note(err)

	switch {
	case s.Unified:
		// NVML reports no separate memory.
		free, err := m.host.memAvailable()
		note(err)
		s.Free = min(free, s.Total)
		s.Used = s.Total - s.Free
		s.Notes = append(s.Notes, "the memory is the host's: free is what the kernel says is available, and used has in it what the host's programs hold")
	case h != 0:
		s.Free, s.Used, s.Reserved, err = m.nvml.memory(h)
		note(err)
	default:
		s.Notes = append(s.Notes, "without NVML it is not known how much of the memory is free")
	}
	if h == 0 {
		return s
	}
	if s.MIG == "" {
		s.DisplayMode, err = m.nvml.flag(nvmlDeviceGetDisplayMode, h)
		note(err)
	}
	processes, errs := m.nvml.processes(h)
	for _, err := range errs {
		note(err)
	}
	for i := range processes {
		processes[i].Name = m.host.program(processes[i].PID)
	}
	s.Processes = processes
	return s
}
