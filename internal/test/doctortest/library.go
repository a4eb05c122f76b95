// Cases of libraries that could not start: cuDNN, cuBLAS, cuSolver and modules.
// Their words are the same when memory is missing and when the installation is
// broken; free and total, or the machine, tell them apart.
package doctortest

import "fmt"

const (
	idStarves   = "prealloc_starves_library"
	idMulti     = "multi_process_preallocation"
	idOccupied  = "device_occupied"
	idMismatch  = "library_mismatch"
	idNotMemory = "not_memory"
	idJAXTF     = "jax_plus_tf"
)

const (
	dnnFile    = "xla/stream_executor/cuda/cuda_dnn.cc"
	blasFile   = "xla/stream_executor/cuda/cuda_blas.cc"
	driverFile = "xla/stream_executor/cuda/cuda_driver.cc"
	dnnHandle  = "Could not create cudnn handle: CUDNN_STATUS_"
	blasHandle = "failed to create cublas handle: "
	ownPID     = 31877 // of the process whose log it is
)

// own is the process whose log it is.
func own(used uint64, frameworks ...string) stateNeighbor {
	return stateNeighbor{PID: ownPID, Name: "python3", Used: used, Frameworks: frameworks}
}

// other is another process of the same card.
func other(name string, used uint64, frameworks ...string) stateNeighbor {
	return stateNeighbor{PID: 30552, Name: name, Used: used, Frameworks: frameworks}
}

// jaxProcess is the process part of a state: JAX with this environment.
func jaxProcess(env map[string]string) *stateProcess {
	return &stateProcess{Frameworks: []string{"jax"}, Env: env}
}

// dnnLog is a refused cuDNN handle and the memory line under it.
func dnnLog(e era, status string, free, total uint64) (log, usage string) {
	usage = memoryUsage(free, total)
	return e.at("E", dnnFile, 439, dnnHandle+status) + e.at("E", dnnFile, 443, usage), usage
}

func libraryCases() []Case {
	var cases []Case
	cases = append(cases, starvedCases()...)
	cases = append(cases, handleCases()...)
	cases = append(cases, solverCases()...)
	cases = append(cases, moduleCases()...)
	return cases
}

// starvedCases are handles refused for want of room that this process itself took.
func starvedCases() []Case {
	var cases []Case
	for i, v := range []struct {
		card     card
		percent  float64 // of the total, preallocated
		variable string
		status   string
	}{
		{gt1000, 90, "XLA_PYTHON_CLIENT_MEM_FRACTION", "INTERNAL_ERROR"},
		{rtx2070, 94, "XLA_PYTHON_CLIENT_MEM_FRACTION", "ALLOC_FAILED"},
		{gtx1080, 95, "XLA_PYTHON_CLIENT_MEM_FRACTION", "INTERNAL_ERROR"},
		{rtx4090, 97, "XLA_CLIENT_MEM_FRACTION", "INTERNAL_ERROR"},
		{h100, 99, "XLA_CLIENT_MEM_FRACTION", "ALLOC_FAILED"},
	} {
		free := v.card.total - part(v.card.total, v.percent) - 400*mib
		log, usage := dnnLog(eras[1+i%3], v.status, free, v.card.total)
		why := fmt.Sprintf("%.0f %% of %s was preallocated, which with the context leaves %s: under 520 MiB, and no other process is needed to explain it",
			v.percent, xla(v.card.total), xla(free))
		fraction := fmt.Sprintf(".%.0f", v.percent)
		c := cause(idStarves, "cudnn-state-"+v.card.key, log, why, usage)
		s := state{Devices: []stateDevice{v.card.device(own(v.card.total-free, "jax"))}, Process: jaxProcess(map[string]string{v.variable: fraction})}
		cases = append(cases, withState(c, s, FactProcesses, idMulti, idOccupied)...)
		setting := "+ export " + v.variable + "=" + fraction
		cases = append(cases, cause(idStarves, "cudnn-setting-"+v.card.key, setting+"\n"+log, why, setting, usage))
	}
	// A display takes its part of the quarter that is left by default.
	for _, c := range []card{gt1000, rtx2070} {
		desktop := part(c.total, 25) - 540*mib
		pool := part(c.total, 75)
		free := c.total - pool - desktop - 260*mib
		log, usage := dnnLog(era2022, "INTERNAL_ERROR", free, c.total)
		d := c.device(stateNeighbor{PID: 1804, Name: "Xorg", Used: desktop}, own(pool+260*mib, "jax"))
		d.Display = true
		k := cause(idStarves, "display-"+c.key, log,
			fmt.Sprintf("75 %% of %s and the desktop's %s leave %s, under 520 MiB", xla(c.total), xla(desktop), xla(free)), usage)
		cases = append(cases, withState(k, state{Devices: []stateDevice{d}, Process: jaxProcess(nil)}, FactProcesses, idMulti, idOccupied)...)
	}
	for name, text := range map[string]string{
		"torch-cublas-alloc":   "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
		"torch-cublaslt-alloc": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtCreate(&handle)`",
	} {
		cases = append(cases, verdict(VerdictEither, name, "Traceback (most recent call last):\n"+text+"\n",
			"the status is a refused allocation; whether this program or another fills the card is not told", []string{idStarves, idOccupied}, text))
	}
	return sorted(cases)
}

// handleCases are refused handles whose words fit more than one cause.
func handleCases() []Case {
	var cases []Case
	for i, e := range eras {
		text := dnnHandle + "INTERNAL_ERROR"
		cases = append(cases, verdict(VerdictEither, "cudnn-internal-"+string(e),
			e.at("E", dnnFile, 413+i, text)+e.at("F", "xla/service/gpu/gpu_compiler.cc", 626, "Check failed: dnn != nullptr"),
			"no free and total are told, and this status is printed for missing memory and for a broken cuDNN", []string{idMismatch, idStarves}, text))
		text = blasHandle + []string{"CUBLAS_STATUS_NOT_INITIALIZED", "cublas error", "the library was not initialized", "CUBLAS_STATUS_NOT_INITIALIZED"}[i]
		cases = append(cases, verdict(VerdictEither, "cublas-not-initialized-"+string(e),
			e.at("E", blasFile, 226+i, text)+e.at("F", "xla/service/gpu/gemm_algorithm_picker.cc", 113, "Check failed: stream->parent()->GetBlasGemmAlgorithms(&algorithms)"),
			"a second process and this process's own preallocation give this text alike", []string{idStarves, idMulti}, text))
		text = blasHandle + []string{"CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"}[i/2]
		c := cause(idJAXTF, "cublas-alloc-"+string(e), e.at("E", blasFile, 188+i, text),
			"both frameworks are in the process, and each preallocates", text)
		both := state{Process: &stateProcess{Frameworks: []string{"jax", "tensorflow"}}}
		cases = append(cases, withState(c, both, FactFrameworks, idStarves)...)
		text = "UNKNOWN: Failed to determine best cudnn convolution algorithm for:"
		c = cause(idJAXTF, "convolution-"+string(e), "RuntimeError: "+text+"\n%cudnn-conv = (f32[8,64,64,16]{2,1,3,0}, u8[0]{0}) custom-call(...)\n",
			"both frameworks are in the process, and each preallocates", text)
		if i%2 == 0 {
			cases = append(cases, withState(c, both, FactFrameworks, idStarves, idMismatch)...)
		}
		text = "UNKNOWN: CUDNN_STATUS_EXECUTION_FAILED"
		cases = append(cases, verdict(VerdictEither, "convolution-failed-"+string(e),
			e.at("W", "xla/service/gpu/gpu_conv_algorithm_picker.cc", 729, "Profiling failure on cuDNN engine 0#TC: "+text)+
				"RuntimeError: UNKNOWN: Failed to determine best cudnn convolution algorithm\n",
			"a failed run of a convolution is no handle refused for memory, and no number is told", []string{idStarves, idMismatch}, text))
	}
	text := "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
	cases = append(cases, verdict(VerdictEither, "torch-cublas", text+"\n",
		"the library is not initialised for want of memory or for a wrong build, and the text does not say", []string{idStarves, idMismatch}, text))
	for i, c := range []card{rtx2070, t4, a100x40, h200, rtx4090, h100} {
		free := part(c.total, []float64{97.4, 98.1, 98.9, 96.2, 93.5, 99.2}[i])
		log, usage := dnnLog(eras[1+i%3], "INTERNAL_ERROR", free, c.total)
		cases = append(cases, verdict(VerdictNotMemory, "cudnn-free-card-"+c.key,
			log+"jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.\n",
			fmt.Sprintf("%s of %s is free, so a handle of some hundred MiB fits", xla(free), xla(c.total)), []string{idNotMemory}, usage))
	}
	for i, c := range []card{rtx2070, gtx1080, t4, rtx4090, h100} {
		free := part(c.total, []float64{22.4, 23.1, 23.6, 24.2, 24.6}[i])
		log, usage := dnnLog(eras[1+i%3], "INTERNAL_ERROR", free, c.total)
		cases = append(cases, verdict(VerdictUnknown, "cudnn-healthy-quarter-"+c.key, log,
			fmt.Sprintf("%s of %s is what the default preallocation leaves, and a handle fits in it", xla(free), xla(c.total)), nil, usage))
	}
	log, usage := dnnLog(era2022, "INTERNAL_ERROR", part(gt1000.total, 16.4), gt1000.total)
	c := verdict(VerdictEither, "cudnn-low-but-tried", log, "less than a quarter is free, yet growing instead of preallocating did not help",
		[]string{idMismatch, idStarves}, usage)
	c.State = state{Tried: []stateAttempt{{Env: map[string]string{"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}}}.json()
	return append(cases, c)
}

// solverCases are cuSolver's one text, and what beside it decides.
func solverCases() []Case {
	var cases []Case
	for i, where := range []string{"jaxlib/cusolver_kernels.cc:44", "jaxlib/gpu/solver_handle_pool.cc:37", "jaxlib/gpu/solver_kernels.cc:45"} {
		call := []string{"cusolverDnCreate", "gpusolverDnCreate", "gpusolverDnCreate"}[i]
		text := fmt.Sprintf("RuntimeError: %s: operation %s(&handle) failed: cuSolver internal error", where, call)
		cases = append(cases, verdict(VerdictEither, fmt.Sprintf("cusolver-%d", i), text+"\n",
			"the status names neither memory nor a library, and no number is told", []string{idStarves, idMismatch}, text))
		tried := verdict(VerdictEither, fmt.Sprintf("cusolver-tried-%d", i), text+"\n",
			"a quarter of the card or less for the pool left room enough and did not help", []string{idMismatch, idNotMemory}, text)
		tried.State = state{Tried: []stateAttempt{{Env: map[string]string{"XLA_PYTHON_CLIENT_MEM_FRACTION": fmt.Sprintf(".%d", 25-5*i)}}}}.json()
		cases = append(cases, tried)
		missing := fmt.Sprintf("Could not load dynamic library 'libcusolver.so.%d'", 10+i)
		cases = append(cases, mend(idMismatch, fmt.Sprintf("cusolver-missing-%d", i),
			era2022.at("W", "xla/stream_executor/platform/default/dso_loader.cc", 64, missing+"; dlerror: cannot open shared object file: No such file or directory")+text+"\n",
			"the library itself could not be loaded, so no amount of memory starts it", missing))
	}
	for i, v := range []string{"8.3.2", "8.6.0", "9.1.0"} {
		text := fmt.Sprintf("Loaded runtime CuDNN library: %s but source was compiled with: %s.", v, []string{"8.9.4", "8.9.1", "9.8.0"}[i])
		cases = append(cases, mend(idMismatch, "cudnn-version-"+v, eras[1+i].at("E", dnnFile, 454, text),
			"the loaded version is older than the one compiled for", text))
	}
	return cases
}

// moduleCases are compiled code that the driver would not load.
func moduleCases() []Case {
	var cases []Case
	for i, text := range []string{
		"Failed to load in-memory CUBIN (compiled for a different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		"Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		"Failed to load in-memory CUBIN (compiled for a different GPU?): CUDA_ERROR_OUT_OF_MEMORY",
		"failed to load PTX text as a module: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
	} {
		head := []string{"XlaRuntimeError: INTERNAL: ", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ", "jax.errors.JaxRuntimeError: INTERNAL: ", "jaxlib._jax.XlaRuntimeError: INTERNAL: "}[i]
		cases = append(cases, cause("no_headroom_module_load", fmt.Sprint("module-", i), head+text+"\n",
			"the driver's code is out of memory: the guess of another GPU is the text's, not the driver's", text))
	}
	for i, code := range []string{
		"CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
		"CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid",
	} {
		text := "Failed to load in-memory CUBIN (compiled for a different GPU?).: " + code
		cases = append(cases, mend(idMismatch, fmt.Sprint("module-", i), "XlaRuntimeError: INTERNAL: "+text+"\n",
			"the driver's code names the image, not memory", text))
	}
	return cases
}
