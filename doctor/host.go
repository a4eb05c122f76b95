package doctor

// Messages about the host's memory.

var hostPatterns = []pattern{
	{kind: HostPinned, anchors: []string{"could not allocate pinned host memory of size: ", "could not allocate pinned host memory of "}, rest: `{want}`},
	{kind: HostPinned, anchors: []string{"failed to alloc ", "failed to allocate "}, rest: `{want} on host(?:: {code})?`},
	// The calls by name, as programs of other languages report them.
	{kind: HostPinned, anchors: []string{"cudaMallocHost", "cudaHostAlloc", "cuMemHostAlloc", "cuMemAllocHost", "cudaHostRegister", "cuMemHostRegister"}, rest: `(?:_v2)?(?:\(\))?:? failed.{0,40}?(?:{code}|out of memory)`},
	{kind: HostPinned, anchors: []string{"failed to allocate host memory", "Failed to allocate host memory"}, rest: `(?: of {want})?`},
	// "free" since 2.2.
	{kind: HostWarning, framework: "tensorflow", nonfatal: true, anchors: []string{"Allocation of "}, rest: `{want} exceeds (?P<value>\d+)% of (?:free )?system memory`},
	{kind: HostOOMKilled, anchors: []string{"oom-kill:constraint="}, rest: `(?P<value>\w+)(?:.*?task=(?P<name>[^,]+),pid={pid})?`},
	{kind: HostOOMKilled, anchors: []string{"Out of memory: Killed process ", "Out of memory: Kill process ", "Memory cgroup out of memory: Killed process ", "Memory cgroup out of memory: Kill process "},
		rest: `{pid} \((?P<name>[^)]*)\)(?:.*?anon-rss:{inuse})?`},
	{kind: HostOOMKilled, anchors: []string{"OOMKilled", "invoked oom-killer"}, rest: ``},
	// A shell's word for SIGKILL, and Slurm's.
	{kind: HostOOMKilled, line: true, anchors: []string{"Killed"}, rest: `(?:\S+: line \d+: +{pid} )?Killed(?:  +(?P<name>\S.*))?\s*$`, value: "SIGKILL"},
	{kind: HostOOMKilled, line: true, anchors: []string{": Out Of Memory"}, rest: `srun: error: \S+: tasks? [\d,-]+: Out Of Memory`, value: "Slurm"},
	{kind: HostOOMKilled, anchors: []string{"oom-kill event", "oom_kill event"}, rest: ``},
	{kind: HostDriver, line: true, anchors: []string{"NV_ERR_NO_MEMORY"}, rest: `.*NVRM: `, code: "NV_ERR_NO_MEMORY"},
	{kind: HostRefused, anchors: []string{"terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc", "Cannot allocate memory", "Unable to allocate "},
		rest: `(?: ?(?P<want>[\d.]+ ?[KMGTPE]i?B) for an array)?`},
	// Windows: what is committed passes memory and page file together.
	{kind: HostRefused, code: "ERROR_COMMITMENT_LIMIT", anchors: []string{"[WinError 1455]", "The paging file is too small for this operation to complete"}, rest: ``},
	// Processes hand tensors to each other in /dev/shm, which is memory with a limit.
	{kind: HostShared, framework: "torch", anchors: []string{"It is possible that dataloader's workers are out of shared memory", "This might be caused by insufficient shared memory (shm)"}, rest: ``},
	{kind: HostRefused, anchors: []string{"DefaultCPUAllocator: "}, rest: `.*?tried to allocate {want}`, framework: "torch"},
}
