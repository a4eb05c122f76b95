package doctor

// The causes that there are: their names, which are a contract with scripts,
// and a title each. docs/causes.md has a page for every one.

// CauseID names a cause.
type CauseID string

// The causes.
const (
	MultiProcess      CauseID = "multi_process_preallocation"
	JAXAndTensorFlow  CauseID = "jax_plus_tf"
	PreallocStarves   CauseID = "prealloc_starves_library"
	PoolLimit         CauseID = "pool_limit"
	Fragmentation     CauseID = "fragmentation"
	ProgramTooBig     CauseID = "program_too_big"
	RematShort        CauseID = "remat_insufficient"
	DeviceOccupied    CauseID = "device_occupied"
	StartupRace       CauseID = "startup_race"
	SecondPool        CauseID = "same_process_second_pool"
	StreamPending     CauseID = "stream_pending"
	OtherAllocator    CauseID = "other_allocator_same_process"
	ModuleLoad        CauseID = "no_headroom_module_load"
	NCCLHeadroom      CauseID = "nccl_headroom"
	GraphHeadroom     CauseID = "cuda_graph_headroom"
	Leak              CauseID = "leak"
	HostMemory        CauseID = "host_memory"
	UnifiedMemory     CauseID = "unified_memory"
	ExternalQuota     CauseID = "external_quota"
	LimiterBug        CauseID = "limiter_bug"
	Underestimate     CauseID = "estimator_underestimates"
	NonfatalWarning   CauseID = "nonfatal_warning"
	BadSetting        CauseID = "bad_setting"
	DeviceBusy        CauseID = "device_busy"
	VMMMissing        CauseID = "vmm_unsupported"
	LibraryMismatched CauseID = "library_mismatch"
	NotMemory         CauseID = "not_memory"
)

// titles are the causes in one line each.
var titles = map[CauseID]string{
	MultiProcess:      "several processes preallocate on one GPU",
	JAXAndTensorFlow:  "JAX and TensorFlow share one process, and both take the GPU",
	PreallocStarves:   "too little GPU memory was left for a CUDA library",
	PoolLimit:         "the pool reached its own limit",
	Fragmentation:     "enough is free, but not in one piece",
	ProgramTooBig:     "the program needs more memory than there is",
	RematShort:        "recomputing cannot bring the program below its limit",
	DeviceOccupied:    "other programs hold the GPU's memory",
	StartupRace:       "another program took or released memory while this one started",
	SecondPool:        "the process asked for a second pool while it still has the first",
	StreamPending:     "freed memory waits for another stream",
	OtherAllocator:    "another allocator in the same process holds the memory",
	ModuleLoad:        "no room was left to load compiled code",
	NCCLHeadroom:      "no room was left for NCCL's buffers",
	GraphHeadroom:     "no room was left for CUDA graphs",
	Leak:              "memory in use grows until it is full",
	HostMemory:        "the host's memory ran out, not the GPU's",
	UnifiedMemory:     "the GPU's memory is the host's, and the host uses it too",
	ExternalQuota:     "a limit set outside the program refused it",
	LimiterBug:        "a limiter counted wrongly",
	Underestimate:     "the estimate of what the model needs was too low",
	NonfatalWarning:   "a warning; the program can go on",
	BadSetting:        "a setting is wrong",
	DeviceBusy:        "the GPU is not available: busy, or in exclusive mode",
	VMMMissing:        "the GPU, or its profile, has no virtual memory management",
	LibraryMismatched: "a library is missing, or does not fit",
	NotMemory:         "this is no failure of memory",
}
