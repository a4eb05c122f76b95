package doctor

// Messages of NVIDIA's libraries as the frameworks print them: handles that
// could not be made for lack of memory, or for another reason.

var libraryPatterns = []pattern{
	{kind: CuDNNHandle, anchors: []string{"Could not create cudnn handle: ", "could not create cudnn handle: ", "Could not create cuDNN handle: "}, rest: `{code}`},
	// XLA of 2023 on prints the CUDA error that was there before.
	{kind: CuDNNHandle, name: "before", anchors: []string{"There was an error before creating cudnn handle"}, rest: `(?: \(\d+\))?: (?P<code>\w+)`},
	{kind: DeviceFree, anchors: []string{"Memory usage: "}, rest: `{free} free, {total} total`},
	{kind: CuDNNConv, anchors: []string{"Failed to determine best cudnn convolution algorithm", "No algorithm worked!", "Failed to get convolution algorithm", "Unable to find an engine to execute this computation", "FIND was unable to find an engine"}, rest: ``},
	{kind: CuDNNCall, anchors: []string{"DNN library initialization failed", "Failed to initialize cuDNN", "dnn != nullptr", "DNN library is not found"}, rest: ``},
	{kind: CuDNNCall, anchors: []string{"CUDNN_STATUS_"}, whole: true, rest: `{code}`},

	{kind: CuBLASHandle, anchors: []string{"failed to create cublas handle: ", "failed to create cuBLAS handle: "},
		rest: `(?:(?P<code>CUBLAS_STATUS_\w+)|(?P<value>[\w ,:-]+))`},
	{kind: CuBLASHandle, framework: "torch", anchors: []string{"CUDA error: CUBLAS_STATUS_"}, whole: true, rest: `CUDA error: {code} when calling .?(?P<name>cublas(?:Lt)?Create)`},
	{kind: CuBLASCall, framework: "torch", anchors: []string{"CUDA error: CUBLAS_STATUS_"}, whole: true, rest: `CUDA error: {code} when calling .?(?P<name>\w+)`},
	{kind: CuBLASCall, nonfatal: true, name: "advice", anchors: []string{"Failure to initialize cublas may be due to OOM"}, rest: ``},
	{kind: CuBLASCall, anchors: []string{"GetBlasGemmAlgorithms(", "failed to run cuBLAS routine", "Blas GEMM launch failed", "Blas xGEMM launch failed", "Attempting to perform BLAS operation using StreamExecutor without BLAS support"}, rest: ``},
	{kind: CuBLASCall, anchors: []string{"CUBLAS_STATUS_"}, whole: true, rest: `{code}`},

	{kind: CuSolver, anchors: []string{"operation cusolver", "operation gpusolver", "operation cuSolver"}, whole: true, rest: `operation (?P<name>\w+)\([^)]*\) failed: (?P<value>[\w ]+)`},
	{kind: CuSolver, anchors: []string{"Failed to create cuSolver handle", "failed to create cusolver handle", "CUSOLVER_STATUS_", "cuSolverDN call failed with status"}, rest: `(?P<value>.{0,60})`},
	{kind: CuSparse, anchors: []string{"operation cusparse", "operation gpusparse", "CUSPARSE_STATUS_"}, rest: `(?P<value>.{0,80})`},
	{kind: CuFFT, anchors: []string{"CUFFT_ALLOC_FAILED", "CUFFT_INTERNAL_ERROR", "CUFFT_SETUP_FAILED", "Failed to create cuFFT", "Failed to initialize batched cufft plan", "failed to allocate work area"}, rest: ``},

	{kind: CUBIN, anchors: []string{"Failed to load in-memory CUBIN", "failed to load in-memory CUBIN", "Failed to load PTX text as a module", "failed to load PTX text as a module", "Failed to load HSACO"},
		rest: `(?P<value> \(compiled for a different GPU\?\)\.?)?(?:: {code})?`},

	// NCCL's own words and XLA's around them. The size is in the line before or after.
	{kind: NCCL, anchors: []string{"Failed to CUDA calloc ", "Failed to CUDA calloc async ", "Failed to CUDA host alloc "}, rest: `{want}`},
	{kind: NCCL, line: true, within: true, anchors: []string{"Cuda failure ", "CUDA failure "}, rest: `.*(?:NCCL|nccl).*?C[Uu][Dd][Aa] failure (?:\d+ )?'(?P<value>[^']{1,80})'`},
	{kind: CUDAError, anchors: []string{"Cuda failure ", "CUDA failure "}, rest: `(?:\d+ )?'(?P<value>out of memory)'`},
	{kind: NCCL, anchors: []string{"NCCL operation "}, rest: `(?P<name>\w+)[^:]{0,200}failed: (?P<value>[\w ]+)`},
	{kind: NCCL, framework: "torch", anchors: []string{"ncclUnhandledCudaError", "unhandled cuda error"}, rest: ``},
	{kind: NCCL, framework: "torch", anchors: []string{"ncclSystemError", "ncclInternalError", "ncclInvalidUsage", "ncclInvalidArgument", "ncclRemoteError", "unhandled system error"}, whole: true, rest: `(?P<value>unhandled system error|\w+)`},

	// Command buffers of XLA; PyTorch's and the driver's graphs.
	{kind: Graph, framework: "xla", anchors: []string{"Underlying backend ran out of memory trying to instantiate "},
		rest: `(?P<name>command buffer|CUDA graph|graph|gpu graph)(?:.*?total of (?P<value>\d+) alive graphs)?`},
	{kind: Graph, anchors: []string{"failed to instantiate CUDA graph", "Failed to instantiate CUDA graph", "failed to instantiate graph", "Failed to instantiate gpu graph", "cudaGraphInstantiate", "cuGraphInstantiate"},
		rest: `(?:.{0,80}?(?P<code>CUDA_ERROR_[A-Z_]+))?`},
}
