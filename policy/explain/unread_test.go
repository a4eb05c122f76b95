// Tests of what is said of variables that are set in vain: every misspelling is
// found, and no real variable is called one.

package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// corpus are real variables that are not in the table: of shells, Python,
// compilers, schedulers, clouds, and above all of the programs whose own ones
// the table has.
var corpus = strings.Fields(`
HOME PATH PWD OLDPWD SHELL USER LOGNAME LANG LANGUAGE LC_ALL LC_CTYPE LC_TIME TERM COLORTERM EDITOR VISUAL PAGER LESS MANPATH
HOSTNAME HOSTTYPE MACHTYPE OSTYPE SHLVL PS1 IFS TMPDIR TMP TEMP TZ MAIL DISPLAY XAUTHORITY WAYLAND_DISPLAY SSH_AUTH_SOCK SSH_AGENT_PID
SSH_CLIENT SSH_CONNECTION SSH_TTY SUDO_USER SUDO_UID SUDO_GID SUDO_COMMAND XDG_RUNTIME_DIR XDG_SESSION_ID XDG_DATA_DIRS XDG_CONFIG_HOME
XDG_CACHE_HOME DBUS_SESSION_BUS_ADDRESS LS_COLORS HISTSIZE HISTFILE HISTCONTROL PROMPT_COMMAND BASH_ENV ZDOTDIR TMUX TMUX_PANE STY WINDOWID
INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET WATCHDOG_USEC LISTEN_FDS LISTEN_PID MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE SYSTEMD_EXEC_PID
LD_LIBRARY_PATH LD_PRELOAD LD_DEBUG LD_BIND_NOW LIBRARY_PATH CPATH C_INCLUDE_PATH CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS FFLAGS LIBS MAKEFLAGS
PKG_CONFIG_PATH CMAKE_PREFIX_PATH CMAKE_ARGS NVCC NVCC_FLAGS NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS CUDAFLAGS CUDACXX CUDAHOSTCXX
MALLOC_ARENA_MAX MALLOC_TRIM_THRESHOLD_ MALLOC_CHECK_ MALLOC_CONF GLIBC_TUNABLES TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD HEAPPROFILE
GOMEMLIMIT GOGC GOMAXPROCS GOFLAGS GOPATH GOROOT GODEBUG GOTRACEBACK CGO_CFLAGS CGO_LDFLAGS RUST_BACKTRACE CARGO_HOME JAVA_HOME JAVA_OPTS
PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONWARNINGS PYTHONMALLOC PYTHONOPTIMIZE
PYTHONTRACEMALLOC PYTHONSTARTUP VIRTUAL_ENV PIP_CACHE_DIR PIP_INDEX_URL PIP_NO_CACHE_DIR UV_CACHE_DIR POETRY_HOME PYENV_ROOT PYENV_VERSION
CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_SHLVL CONDA_PYTHON_EXE CONDA_PROMPT_MODIFIER CONDA_OVERRIDE_CUDA MAMBA_ROOT_PREFIX
JUPYTER_TOKEN JUPYTER_PATH JUPYTER_CONFIG_DIR JPY_PARENT_PID JPY_SESSION_NAME IPYTHONDIR COLAB_GPU COLAB_RELEASE_TAG KAGGLE_URL_BASE
MPLBACKEND MPLCONFIGDIR NUMBA_CUDA_MEMORY_MANAGER NUMBA_CACHE_DIR NUMBA_NUM_THREADS NUMBA_DISABLE_JIT NUMBA_ENABLE_CUDASIM NUMBA_CUDA_DRIVER
NUMBA_CUDA_LOG_LEVEL NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO NUMBA_CUDA_USE_NVIDIA_BINDING
OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_STACKSIZE OMP_DYNAMIC OMP_TARGET_OFFLOAD OMP_DEFAULT_DEVICE KMP_AFFINITY KMP_BLOCKTIME
MKL_NUM_THREADS MKL_DYNAMIC MKL_THREADING_LAYER MKL_ENABLE_INSTRUCTIONS OPENBLAS_NUM_THREADS GOTO_NUM_THREADS BLIS_NUM_THREADS NUMEXPR_NUM_THREADS
NUMEXPR_MAX_THREADS VECLIB_MAXIMUM_THREADS ONEDNN_VERBOSE DNNL_VERBOSE
CUDA_HOME CUDA_PATH CUDA_ROOT CUDA_VERSION CUDA_TOOLKIT_ROOT_DIR CUDA_CACHE_PATH CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_FORCE_PTX_JIT
CUDA_DISABLE_PTX_JIT CUDA_FORCE_JIT CUDA_DISABLE_JIT CUDA_LAUNCH_BLOCKING CUDA_AUTO_BOOST CUDA_SCALE_LAUNCH_QUEUES CUDA_GRAPHS_USE_NODE_PRIORITY
CUDA_DEVICE_WAITS_ON_EXCEPTION CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT CUDA_ENABLE_COREDUMP_ON_EXCEPTION CUDA_COREDUMP_FILE
CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION CUDA_ENABLE_LIGHTWEIGHT_COREDUMP CUDA_ENABLE_USER_TRIGGERED_COREDUMP CUDA_COREDUMP_SHOW_PROGRESS
CUDA_MODULE_DATA_LOADING CUDA_BINARY_LOADER_THREAD_COUNT CUDA_LOG_FILE CUDA_DISABLE_PERF_BOOST CUDA_DISABLE_CONTEXT_PERSISTENT_L2
CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_CLIENT_PRIORITY CUDA_DEVICE_MEMORY_LIMIT
CUDA_DEVICE_MEMORY_LIMIT_0 CUDA_DEVICE_SM_LIMIT CUDA_DEVICE_MEMORY_SHARED_CACHE CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING
CUDA_INJECTION64_PATH CUDA_GDB_PATH CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM CUDA_ENABLE_CRC_CHECK CUDA_EGL_PRODUCER_RETURN_FRAME_TIMEOUT
NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA NVIDIA_MIG_CONFIG_DEVICES NVIDIA_MIG_MONITOR_DEVICES NVIDIA_DISABLE_REQUIRE NVIDIA_TF32_OVERRIDE
NVIDIA_BUILD_ID NVIDIA_CPU_ONLY NVIDIA_PRODUCT_NAME NVIDIA_PYTORCH_VERSION NVIDIA_TENSORFLOW_VERSION NVIDIA_VISIBLE_IMEX_CHANNELS NVARCH
NV_CUDA_CUDART_VERSION NV_CUDA_LIB_VERSION NV_LIBNCCL_PACKAGE NV_LIBCUBLAS_VERSION NV_CUDNN_VERSION __GLX_VENDOR_LIBRARY_NAME __NV_PRIME_RENDER_OFFLOAD
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_IB_GID_INDEX NCCL_P2P_DISABLE
NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_NET NCCL_NET_GDR_LEVEL NCCL_BUFFSIZE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_NTHREADS NCCL_ALGO NCCL_PROTO
NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_NVLS_ENABLE NCCL_TOPO_FILE NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER NCCL_LAUNCH_MODE NCCL_COMM_ID
NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_MEM_SYNC_DOMAIN NCCL_WIN_ENABLE NVSHMEM_SYMMETRIC_SIZE NVSHMEM_CUDA_LIMIT_STACK_SIZE
CUDNN_LOGINFO_DBG CUDNN_LOGDEST_DBG CUDNN_LOGLEVEL_DBG CUDNN_PATH CUDNN_INCLUDE_DIR CUDNN_ERRATA_JSON_FILE CUBLAS_LOGINFO_DBG CUBLAS_EMULATE_SINGLE_PRECISION
CUBLASLT_LOG_LEVEL CUBLASLT_LOG_FILE CUBLASLT_WORKSPACE_SIZE CUSPARSE_LOG_LEVEL CUTENSOR_LOG_LEVEL CUTENSORNET_LOG_LEVEL CUSOLVERDN_LOG_LEVEL
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL HIP_PATH HIP_PLATFORM HIP_LAUNCH_BLOCKING HIP_FORCE_DEV_KERNEL ROCM_PATH ROCM_HOME
HSA_OVERRIDE_GFX_VERSION HSA_ENABLE_SDMA HSA_XNACK HSA_NO_SCRATCH_RECLAIM AMD_LOG_LEVEL AMD_SERIALIZE_KERNEL GPU_MAX_HW_QUEUES GPU_MAX_HEAP_SIZE
GPU_MAX_ALLOC_PERCENT GPU_SINGLE_ALLOC_PERCENT HIPBLASLT_WORKSPACE_SIZE MIOPEN_USER_DB_PATH MIOPEN_FIND_MODE RCCL_MSCCL_ENABLE
MUSA_VISIBLE_DEVICES PYTORCH_MUSA_ALLOC_CONF ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES PYTORCH_NPU_ALLOC_CONF PYTORCH_NO_NPU_MEMORY_CACHING
HABANA_VISIBLE_DEVICES HABANA_VISIBLE_MODULES MLU_VISIBLE_DEVICES XPU_VISIBLE_DEVICES NEURON_RT_VISIBLE_CORES TPU_VISIBLE_CHIPS TPU_VISIBLE_DEVICES
TPU_NAME TPU_WORKER_ID TPU_PREMAPPED_BUFFER_SIZE LIBTPU_INIT_ARGS ONEAPI_DEVICE_SELECTOR SYCL_DEVICE_FILTER ZE_AFFINITY_MASK ZE_FLAT_DEVICE_HIERARCHY
METAL_DEVICE_WRAPPER_TYPE PYTORCH_MPS_HIGH_WATERMARK_RATIO PYTORCH_MPS_LOW_WATERMARK_RATIO PYTORCH_MPS_FAST_MATH PYTORCH_MPS_PREFER_METAL
TF_CPP_MIN_LOG_LEVEL TF_CPP_MAX_VLOG_LEVEL TF_CPP_VMODULE TF_XLA_FLAGS TF_GPU_THREAD_MODE TF_GPU_THREAD_COUNT TF_ENABLE_ONEDNN_OPTS
TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS TF_DETERMINISTIC_OPS TF_CUDNN_DETERMINISTIC TF_CUDNN_USE_AUTOTUNE TF_CUDNN_USE_FRONTEND
TF_CUDNN_RESET_RND_GEN_STATE TF_CUDNN_RNN_USE_AUTOTUNE TF_CUDNN_USE_RUNTIME_FUSION TF_CUDNN_DISABLE_CONV_1X1_OPTIMIZATION TF_DISABLE_RZ_CHECK
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT TF_ENABLE_AUTO_MIXED_PRECISION TF_AUTOTUNE_THRESHOLD TF_AUTOTUNE_MIN_WARMUP_ITERATIONS TF_USE_CUBLASLT
TF_MATMUL_AUTOTUNE_ENABLE TF_MATMUL_AUTOTUNE_MAX_ALGORITHMS TF_MKL_ALLOC_MAX_BYTES TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE TF_ONEDNN_USE_SYSTEM_ALLOCATOR
TF_CUDA_PLATFORM_GPU_DEVICE_SCHEDULE TF_MIN_GPU_MULTIPROCESSOR_COUNT TF_GPU_CUPTI_USE_STUB_INTERFACE TF_GPU_CUPTI_FORCE_CONCURRENT_KERNEL
TF_GPU_DEBUG_OPS_TO_LOG TF_CPU_DEBUG_OPS_TO_LOG TF_DEBUG_OPS_TO_LOG_NODEDEFS TF_ENABLE_WINOGRAD_NONFUSED TF_ENABLE_MAXPOOL_NANPROP TF_DISABLE_MKL
TF_DUMP_GRAPH_PREFIX TF_DUMP_GRAPH_NAME_FILTER TF_DUMP_GRAPH_GROUPS TF_LOG_XLA_ACTIVITY TF_SYNC_ON_FINISH TF_USE_ROCM_NHWC TF_JIT_CACHE_DIR
TF_CONFIG TF_KERAS TF_USE_LEGACY_KERAS TF_FORCE_UNIFIED_VIRTUAL_MEMORY_SPACE TF_NUM_BATCH_THREADS TF_SEND_AS_PROTOS_WHEN_POSSIBLE
TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING TF_ENABLE_NUMA_AWARE_ALLOCATORS TF_OVERRIDE_GLOBAL_THREADPOOL TF_TABLE_INDEX_CACHE_SIZE_IN_MB
TF_TRT_OP_DENYLIST TF_TRT_ALLOW_ENGINE_NATIVE_SEGMENT_EXECUTION TF_PROFILER_TRACE_VIEWER_MAX_EVENTS TF_RUN_HANDLER_USE_SUB_THREAD_POOL
TF_DATA_EXPERIMENT_OPT_IN TF_GRPC_DEFAULT_OPTIONS TF_REPLAY_LOG_FILE TF_WORKER_NUM_FORWARDED_LOG_MESSAGES TF_FP16_MATMUL_USE_FP32_COMPUTE
TFHUB_CACHE_DIR TFDS_DATA_DIR KERAS_BACKEND KERAS_HOME
XLA_PJRT_GPU_ALLOW_DELETE_BEFORE_FULFILL XLA_ALLOW_GET_DEFAULT_PLATFORM XLA_HLO_DEBUG XLA_IR_DEBUG XLA_USE_BF16 XLA_DOWNCAST_BF16
XLA_PERSISTENT_CACHE_PATH XLA_SAVE_TENSORS_FILE XLA_TARGET XLA_EXTENSION_DIR PJRT_DEVICE PJRT_NPROC PJRT_ALLOCATOR_PREALLOCATE PJRT_ALLOCATOR_FRACTION
PJRT_ALLOCATOR_CUDA_ASYNC PT_XLA_DEBUG XRT_TPU_CONFIG EXLA_TARGET PJRT_PLUGIN_LIBRARY_PATH PJRT_NAMES_AND_LIBRARY_PATHS
JAX_ENABLE_X64 JAX_DEBUG_NANS JAX_DEBUG_INFS JAX_DISABLE_JIT JAX_LOG_COMPILES JAX_COMPILATION_CACHE_DIR JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS
JAX_TRACEBACK_FILTERING JAX_DEFAULT_DTYPE_BITS JAX_DEFAULT_MATMUL_PRECISION JAX_DEFAULT_PRNG_IMPL JAX_DEFAULT_DEVICE JAX_THREEFRY_PARTITIONABLE
JAX_NUM_CPU_DEVICES JAX_ENABLE_COMPILATION_CACHE JAX_ENABLE_PGLE JAX_MOCK_GPU_TOPOLOGY JAX_USE_SHARDY_PARTITIONER JAX_TRANSFER_GUARD
JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT JAX_COORDINATOR_ADDRESS JAX_COORDINATOR_PORT JAX_PROCESS_ID JAX_NUM_PROCESSES JAX_LOCAL_DEVICE_IDS
JAX_BACKEND_TARGET JAX_XLA_BACKEND JAX_LOGGING_LEVEL JAX_DUMP_IR_TO JAX_RAISE_PERSISTENT_CACHE_ERRORS
JAX_CPU_COLLECTIVES_IMPLEMENTATION JAX_PALLAS_USE_MOSAIC_GPU JAX_ENABLE_CUSTOM_PRNG JAX_CHECK_TRACER_LEAKS JAX_SOFTMAX_CUSTOM_JVP JAX_SHARE_BINARY_BETWEEN_HOSTS
JAX_ENABLE_MEMORIES JAX_SKIP_CUDA_CONSTRAINTS_CHECK JAX_EXEC_TIME_OPTIMIZATION_EFFORT JAX_MEMORY_FITTING_EFFORT JAX_MEMORY_FITTING_LEVEL
TORCH_HOME TORCH_LOGS TORCH_TRACE TORCH_CUDA_ARCH_LIST TORCH_EXTENSIONS_DIR TORCH_SHOW_CPP_STACKTRACES TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK
TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT TORCH_CUDNN_V8_API_DISABLED TORCH_BLAS_PREFER_CUBLASLT
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CUBLAS_WORKSPACE_CACHE TORCH_CUBLASLT_UNIFIED_WORKSPACE TORCH_COMPILE_DEBUG TORCH_COMPILE_DISABLE
TORCH_USE_CUDA_DSA TORCH_USE_RTLD_GLOBAL TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES TORCHDYNAMO_DISABLE TORCHDYNAMO_VERBOSE TORCHINDUCTOR_CACHE_DIR
TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_COMPILE_THREADS TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_ERROR_FILE
PYTORCH_JIT PYTORCH_KERNEL_CACHE_PATH PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_VERSION PYTORCH_BUILD_VERSION PYTORCH_NVFUSER_DISABLE
PYTORCH_ENABLE_MPS_FALLBACK PYTORCH_DDP_USE_SIDE_STREAM PYTORCH_TEST_CUDA_MEM_LEAK_CHECK PYTORCH_CUDA_MEMCHECK PYTORCH_TUNABLEOP_ENABLED
PYTORCH_CUDA_FUSER_DISABLE_FALLBACK PYTORCH_FIND_SPACES PYTORCH_TEST_WITH_SLOW PYTORCH_ROCM_ARCH PYTORCH_LIGHTNING_HOME PYTORCH_PRETRAINED_BERT_CACHE
CUPY_CACHE_DIR CUPY_CACHE_SAVE_CUDA_SOURCE CUPY_CACHE_IN_MEMORY CUPY_DUMP_CUDA_SOURCE_ON_ERROR CUPY_CUDA_COMPILE_WITH_DEBUG CUPY_SEED
CUPY_ACCELERATORS CUPY_TF32 CUPY_CUDA_ARRAY_INTERFACE_SYNC CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION CUPY_DLPACK_EXPORT_VERSION CUPY_NUM_BUILD_JOBS
CUPY_CUDA_PER_THREAD_DEFAULT_STREAM CUPY_COMPILE_WITH_PTX CUPY_EXPERIMENTAL_SLICE_COPY CUPY_NVRTC_USE_PCH CUPY_INSTALL_USE_HIP CUPY_NVCC_GENERATE_CODE
RMM_DEBUG_LOG_FILE RMM_LOGGING_LEVEL DASK_RMM__POOL_SIZE LIBCUDF_CUFILE_POLICY LIBCUDF_MEMORY_RESOURCE KVIKIO_NTHREADS UCX_TLS UCX_MEMTYPE_CACHE
UCX_RNDV_SCHEME UCX_NET_DEVICES UCX_CUDA_COPY_MAX_REG_RATIO LEGATE_CONFIG CUNUMERIC_TEST
SLURM_JOB_ID SLURM_JOBID SLURM_NODELIST SLURM_NNODES SLURM_NTASKS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE
SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_JOB_GPUS
SLURM_STEP_GPUS SLURM_SUBMIT_DIR SLURM_ARRAY_TASK_ID SLURM_JOB_PARTITION SLURM_JOB_NAME SLURM_TASKS_PER_NODE SLURM_CONF SLURMD_NODENAME SBATCH_ACCOUNT
PBS_JOBID PBS_NODEFILE PBS_O_WORKDIR LSB_JOBID LSB_HOSTS COBALT_JOBID FLUX_JOB_ID SGE_TASK_ID JOB_ID NSLOTS SGE_GPU
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_MCA_btl OMPI_MCA_pml PMI_RANK PMI_SIZE PMIX_RANK MPICH_GPU_SUPPORT_ENABLED
MPI_LOCALRANKID I_MPI_PIN I_MPI_FABRICS MV2_USE_CUDA MV2_COMM_WORLD_LOCAL_RANK FI_PROVIDER FI_EFA_USE_DEVICE_RDMA
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT
KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT KUBERNETES_SERVICE_PORT_HTTPS KUBERNETES_PORT KUBERNETES_PORT_443_TCP POD_NAME POD_NAMESPACE NODE_NAME
KUBECONFIG DOCKER_HOST DOCKER_BUILDKIT CONTAINER_ID SINGULARITY_NAME SINGULARITYENV_PREPEND_PATH APPTAINER_CONTAINER APPTAINERENV_APPEND_PATH
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION AWS_DEFAULT_REGION AWS_PROFILE GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CLOUD_PROJECT
AZURE_TENANT_ID SM_NUM_GPUS SM_HOSTS SM_MODEL_DIR GPU_MEMORY_LIMIT GPU_MEMORY_REQUEST GPU_CORE_UTILIZATION_POLICY ACTIVE_OOM_KILLER
RAY_ADDRESS RAY_OBJECT_STORE_MEMORY RAY_DEDUP_LOGS RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES RAY_memory_usage_threshold RAY_memory_monitor_refresh_ms
RAY_CGRAPH_get_timeout RAY_JOB_ID RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO DASK_DISTRIBUTED__WORKER__MEMORY__TARGET SPARK_HOME
VLLM_USE_V1 VLLM_ATTENTION_BACKEND VLLM_LOGGING_LEVEL VLLM_WORKER_MULTIPROC_METHOD VLLM_CPU_KVCACHE_SPACE VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_HOST_IP
VLLM_PORT VLLM_CACHE_ROOT VLLM_SERVER_DEV_MODE VLLM_ENABLE_CUDAGRAPH_GC VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS SGLANG_USE_MODELSCOPE OLLAMA_HOST OLLAMA_GPU_OVERHEAD
OLLAMA_MAX_LOADED_MODELS OLLAMA_NUM_PARALLEL OLLAMA_KEEP_ALIVE OLLAMA_FLASH_ATTENTION GGML_CUDA_ENABLE_UNIFIED_MEMORY GGML_CUDA_NO_PINNED
GGML_CUDA_FORCE_MMQ LLAMA_CACHE LLAMA_ARG_N_GPU_LAYERS
HF_HOME HF_TOKEN HF_HUB_CACHE HF_HUB_OFFLINE HF_DATASETS_CACHE HF_HUB_ENABLE_HF_TRANSFER HF_ENDPOINT HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE
TRANSFORMERS_OFFLINE TOKENIZERS_PARALLELISM DIFFUSERS_CACHE ACCELERATE_USE_FSDP ACCELERATE_MIXED_PRECISION DEEPSPEED_TIMEOUT DS_ACCELERATOR
WANDB_API_KEY WANDB_MODE WANDB_PROJECT WANDB_DIR MLFLOW_TRACKING_URI COMET_API_KEY CLEARML_CONFIG_FILE TENSORBOARD_PORT TRITON_CACHE_DIR
TRITON_PTXAS_PATH TRITON_INTERPRET TRITON_PRINT_AUTOTUNING FLASH_ATTENTION_FORCE_BUILD BNB_CUDA_VERSION ORT_TENSORRT_MAX_WORKSPACE_SIZE
ORT_TENSORRT_FP16_ENABLE TENSORRT_HOME MXNET_GPU_MEM_POOL_RESERVE MXNET_GPU_MEM_POOL_TYPE MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE
MXNET_CUDNN_AUTOTUNE_DEFAULT FLAGS_fraction_of_gpu_memory_to_use FLAGS_allocator_strategy FLAGS_gpu_memory_limit_mb FLAGS_selected_gpus
THEANO_FLAGS CHAINER_SEED ARRAYFIRE_CUDA_MAX_JIT_LEN ELECTRON_RUN_AS_NODE NODE_OPTIONS NVM_DIR NPM_CONFIG_CACHE http_proxy https_proxy no_proxy
HTTP_PROXY NO_PROXY CI GITHUB_ACTIONS GITHUB_TOKEN GITLAB_CI BUILDKITE JENKINS_URL _ _CE_CONDA _CE_M DEBIAN_FRONTEND GIT_EDITOR GIT_SSH_COMMAND
`)

func TestCorpus(t *testing.T) {
	if len(corpus) < 400 {
		t.Fatalf("only %d names", len(corpus))
	}
	seen := map[string]bool{}
	for _, name := range corpus {
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if _, ok := frameworks.Lookup(name); ok {
			t.Errorf("%s is in the table", name)
		}
		for _, f := range frameworks.All {
			if v, ok := nearest(name, f.Name, f.Newest); ok {
				t.Errorf("%s is a real variable, and called a typo of %s", name, v.Name)
			}
		}
	}
}

// TestNoTypoOfAnother: what one framework reads is not another's misspelt.
func TestNoTypoOfAnother(t *testing.T) {
	for _, f := range frameworks.All {
		for _, v := range frameworks.Variables() {
			if v.About == frameworks.AboutOther && v.Name != "XLA_FLAGS" {
				if got, ok := nearest(v.Name, f.Name, f.Newest); ok {
					t.Errorf("%s is called a typo of %s", v.Name, got.Name)
				}
			}
			for _, w := range unread(policy.Environ([]string{v.Name + "=1"}), f, f.Newest, policy.Reading{}) {
				if strings.Contains(w.Text, "did you mean") {
					t.Errorf("%s: %s", v.Name, w.Text)
				}
			}
		}
	}
}

// suspects are the variables whose misspellings are looked for.
func suspects() []frameworks.Variable {
	return slices.DeleteFunc(slices.Clone(frameworks.Variables()), func(v frameworks.Variable) bool { return likelihood(v, "jax", policy.Newest) == 0 })
}

// letters are some of those that are typed by mistake.
const letters = "AEILNORSTX_0"

// oneEdit calls use with every word one edit away from s, a swap of two
// neighbours among them.
func oneEdit(s string, use func(string)) {
	for i := range len(s) + 1 {
		for _, c := range letters {
			use(s[:i] + string(c) + s[i:])
			if i < len(s) {
				use(s[:i] + string(c) + s[i+1:])
			}
		}
		if i < len(s) {
			use(s[:i] + s[i+1:])
		}
		if i+1 < len(s) && len(s) >= 10 { // a swap counts as two edits
			use(s[:i] + s[i+1:i+2] + s[i:i+1] + s[i+2:])
		}
	}
}

// known says whether a misspelling is itself a real name.
func known(name string) bool {
	_, ok := frameworks.Lookup(name)
	return ok || slices.Contains(namesakes, name)
}

// finds checks that a misspelling is found and leads to v or to one as near.
func finds(t interface{ Fatalf(string, ...any) }, wrong string, v frameworks.Variable) {
	got, ok := nearest(wrong, "jax", policy.Newest)
	if !ok {
		t.Fatalf("%s is not found to be %s", wrong, v.Name)
	}
	if a, b := spelling.Distance(strings.ToUpper(wrong), got.Name), spelling.Distance(strings.ToUpper(wrong), v.Name); a > b {
		t.Fatalf("%s is said to be %s (%d edits), and is %s (%d)", wrong, got.Name, a, v.Name, b)
	}
}

func TestOneEdit(t *testing.T) {
	for _, v := range suspects() {
		t.Run(v.Name, func(t *testing.T) {
			oneEdit(v.Name, func(wrong string) {
				if !known(wrong) {
					finds(t, wrong, v)
				}
			})
			finds(t, strings.ToLower(v.Name), v)
			finds(t, v.Name[:1]+strings.ToLower(v.Name[1:]), v)
		})
	}
}

func TestTwoEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom(suspects()).Draw(t, "variable")
		wrong := v.Name
		for i := range 2 {
			if i == 1 && len(v.Name) < 10 {
				break // of XLA_FLAGS
			}
			at := rapid.IntRange(0, len(wrong)-1).Draw(t, "at")
			c := string(rapid.SampledFrom([]rune(letters)).Draw(t, "letter"))
			switch rapid.SampledFrom([]string{"insert", "delete", "replace"}).Draw(t, "edit") {
			case "insert":
				wrong = wrong[:at] + c + wrong[at:]
			case "delete":
				wrong = wrong[:at] + wrong[at+1:]
			default:
				wrong = wrong[:at] + c + wrong[at+1:]
			}
		}
		if rapid.Bool().Draw(t, "lower case") {
			wrong = strings.ToLower(wrong)
		}
		if !known(strings.ToUpper(wrong)) {
			finds(t, wrong, v)
		}
	})
}

// Names that people write who remember only half of one.
func TestWords(t *testing.T) {
	for wrong, want := range map[string]string{
		"XLA_MEM_FRACTION":                           "XLA_CLIENT_MEM_FRACTION",
		"XLA_MEMORY_FRACTION":                        "XLA_CLIENT_MEM_FRACTION",
		"XLA_GPU_MEMORY_FRACTION":                    "XLA_CLIENT_MEM_FRACTION",
		"XLA_PYTHON_MEM_FRACTION":                    "XLA_CLIENT_MEM_FRACTION",
		"XLA_CLIENT_MEMORY_FRACTION":                 "XLA_CLIENT_MEM_FRACTION",
		"XLA_PYTHON_CLIENT_MEMORY_FRACTION":          "XLA_CLIENT_MEM_FRACTION",
		"XLA_PYTHON_CLIENT_GPU_MEM_FRACTION":         "XLA_CLIENT_MEM_FRACTION",
		"JAX_MEM_FRACTION":                           "XLA_CLIENT_MEM_FRACTION",
		"JAX_GPU_MEMORY_FRACTION":                    "XLA_CLIENT_MEM_FRACTION",
		"jax_mem_fraction":                           "XLA_CLIENT_MEM_FRACTION",
		"XLA_CLIENT_PREALLOCATE":                     "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_PREALLOCATE":                            "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_PYTHON_PREALLOCATE":                     "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_GPU_PREALLOCATE":                        "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_PYTHON_CLIENT_PREALLOCATION":            "XLA_PYTHON_CLIENT_PREALLOCATE",
		"JAX_PREALLOCATE":                            "XLA_PYTHON_CLIENT_PREALLOCATE",
		"JAX_GPU_PREALLOCATION":                      "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_CLIENT_ALLOCATOR":                       "XLA_PYTHON_CLIENT_ALLOCATOR",
		"XLA_GPU_ALLOCATOR":                          "XLA_PYTHON_CLIENT_ALLOCATOR",
		"JAX_ALLOCATOR":                              "XLA_PYTHON_CLIENT_ALLOCATOR",
		"XLA_CLIENT_COLLECTIVE_MEMORY_SIZE_MB":       "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB",
		"XLA_GPU_HOST_MEMORY_LIMIT_GB":               "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB",
		"JAX_VISIBLE_DEVICES":                        "JAX_CUDA_VISIBLE_DEVICES",
		"CUDA_DEVICES_VISIBLE":                       "CUDA_VISIBLE_DEVICES",
		"CUDA_VISIBLE_DEVICE":                        "CUDA_VISIBLE_DEVICES",
		"TF_ALLOW_GROWTH":                            "TF_FORCE_GPU_ALLOW_GROWTH",
		"TF_GPU_ALLOW_GROWTH":                        "TF_FORCE_GPU_ALLOW_GROWTH",
		"TF_FORCE_ALLOW_GROWTH":                      "TF_FORCE_GPU_ALLOW_GROWTH",
		"TENSORFLOW_FORCE_GPU_ALLOW_GROWTH":          "TF_FORCE_GPU_ALLOW_GROWTH",
		"TF_ALLOCATOR":                               "TF_GPU_ALLOCATOR",
		"TF_CUDA_ALLOCATOR":                          "TF_GPU_ALLOCATOR",
		"TF_UNIFIED_MEMORY":                          "TF_FORCE_UNIFIED_MEMORY",
		"TF_CUDA_HOST_MEM_LIMIT_IN_MB":               "TF_GPU_HOST_MEM_LIMIT_IN_MB", // TensorFlow's own until 1.13
		"TF_MALLOC_ASYNC_SUPPORTED_PREALLOCATION":    "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC",
		"PYTORCH_CUDA_ALLOC_CONFIG":                  "PYTORCH_CUDA_ALLOC_CONF",
		"TORCH_CUDA_ALLOC_CONF":                      "PYTORCH_CUDA_ALLOC_CONF",
		"TORCH_CUDA_ALLOC_CONFIG":                    "PYTORCH_ALLOC_CONF",
		"PYTORCH_NO_GPU_MEMORY_CACHING":              "PYTORCH_NO_CUDA_MEMORY_CACHING",
		"CUPY_MEMORY_LIMIT":                          "CUPY_GPU_MEMORY_LIMIT",
		"CUPY_GPU_MEM_LIMIT":                         "CUPY_GPU_MEMORY_LIMIT",
		"XLA_FLAG":                                   "XLA_FLAGS",
		"xla_flags":                                  "XLA_FLAGS",
		"XLA_FALGS":                                  "", // two edits are too much of so short a name
		"XLA_GPU_FLAGS":                              "",
		"XLA_CLIENT":                                 "",
		"XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENTS":     "", // near one that is not about memory
		"xla_python_client_use_tfrt_gpu_client":      "",
		"":                                           "",
		"_":                                          "",
		"XLA_":                                       "",
		"GPUMEM_LIMT":                                "GPUMEM_LIMIT",
		"GPUMEM_LEASE_ID":                            "", // of those that gpumem run sets
		"MUSA_VISIBLE_DEVICES":                       "",
		"musa_visible_devices":                       "",
		"MY_MEM_FRACTION":                            "",
		"PREALLOCATE":                                "",
		strings.Repeat("XLA_PYTHON_CLIENT_", 1000):   "",
		"XLA_PYTHON_CLIENT_MEM_FRACTION\x00\xff\xfe": "",
	} {
		got, ok := nearest(wrong, "jax", policy.Newest)
		if ok != (want != "") || ok && got.Name != want {
			t.Errorf("%.60q: %q, want %q", wrong, got.Name, want)
		}
	}
}

// TestUnread: the warning and the fix, in each framework.
func TestUnread(t *testing.T) {
	for _, tc := range []struct {
		name string
		as   frameworks.Release
		env  []string
		want []string // "NAME: text [fix]"
	}{
		{"nothing", frameworks.Release{Name: "jax"}, []string{"HOME=/", "PATH="}, nil},
		{"own variables have their notes elsewhere", frameworks.Release{Name: "jax"}, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_CLIENT_MEM_FRACTION=.5"}, nil},
		{"empty", frameworks.Release{Name: "jax"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=", "XLA_MEM_FRACTION="}, nil},
		{"the driver's", frameworks.Release{Name: "jax"}, []string{"CUDA_VISIBLE_DEVICES=0", "CUBLAS_WORKSPACE_CONFIG=:16:8"}, nil},
		{"about devices", frameworks.Release{Name: "gpumem"}, []string{"JAX_PLATFORMS=cuda", "JAX_CUDA_VISIBLE_DEVICES=0"}, nil},
		{"the pool library's", frameworks.Release{Name: "jax"}, []string{"GPUMEM_POOL=elastic", "GPUMEM_LIMIT=3", "GPUMEM_OFF=1", "GPUMEM_LEDGER=/l", "GPUMEM_LEDGER_PARTS=7=1", "GPUMEM_OUTSIDE=3", "GPUMEM_CONTEXT=3"}, nil},
		{"not about memory", frameworks.Release{Name: "jax"}, []string{"TF_CPU_ALLOCATOR_USE_BFC=1"}, nil},

		{"TensorFlow's allocator in JAX", frameworks.Release{Name: "jax"}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"},
			[]string{"TF_GPU_ALLOCATOR: only TensorFlow reads it; in JAX write XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async [XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async]"}},
		{"growth", frameworks.Release{Name: "jax"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: only TensorFlow reads it; in JAX write XLA_PYTHON_CLIENT_PREALLOCATE=false [XLA_PYTHON_CLIENT_PREALLOCATE=false]"}},
		{"growth for our runtime", frameworks.Release{Name: "gpumem"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: only TensorFlow reads it; in gpumem write XLA_PYTHON_CLIENT_PREALLOCATE=false [XLA_PYTHON_CLIENT_PREALLOCATE=false]"}},
		{"no growth", frameworks.Release{Name: "jax"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=false"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: only TensorFlow reads it; JAX takes all at once by default []"}},
		{"said already", frameworks.Release{Name: "jax"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true", "XLA_PYTHON_CLIENT_PREALLOCATE=true"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: only TensorFlow reads it; JAX goes by XLA_PYTHON_CLIENT_PREALLOCATE, which is set []"}},
		{"a value that says nothing", frameworks.Release{Name: "jax"}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=perhaps"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: only TensorFlow reads it []"}},
		{"PyTorch's list", frameworks.Release{Name: "jax"}, []string{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64, per_process_memory_fraction : .5,backend:cudaMallocAsync"},
			[]string{"PYTORCH_CUDA_ALLOC_CONF: only PyTorch reads it; in JAX write XLA_CLIENT_MEM_FRACTION=0.5 XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async [XLA_CLIENT_MEM_FRACTION=0.5 XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async]"}},
		{"an older JAX", frameworks.Release{Name: "jax", Version: "0.4.31"}, []string{"CUPY_GPU_MEMORY_LIMIT=30%"},
			[]string{"CUPY_GPU_MEMORY_LIMIT: only CuPy reads it; in JAX write XLA_PYTHON_CLIENT_MEM_FRACTION=0.3 [XLA_PYTHON_CLIENT_MEM_FRACTION=0.3]"}},
		{"the other name is set", frameworks.Release{Name: "jax"}, []string{"CUPY_GPU_MEMORY_LIMIT=30%", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"},
			[]string{"CUPY_GPU_MEMORY_LIMIT: only CuPy reads it; JAX goes by XLA_PYTHON_CLIENT_MEM_FRACTION, which is set []"}},
		{"pinned memory", frameworks.Release{Name: "jax"}, []string{"TF_GPU_HOST_MEM_LIMIT_IN_MB=32768"},
			[]string{"TF_GPU_HOST_MEM_LIMIT_IN_MB: only TensorFlow reads it; in JAX write XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=32 [XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=32]"}},

		{"several for PyTorch's list", frameworks.Release{Name: "pytorch"}, []string{"XLA_CLIENT_MEM_FRACTION=.5", "HOME=/", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=false"}, []string{
			"XLA_CLIENT_MEM_FRACTION: only JAX reads it; in PyTorch write PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5 [PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5,backend:cudaMallocAsync]",
			"XLA_PYTHON_CLIENT_ALLOCATOR: only JAX reads it; in PyTorch write PYTORCH_ALLOC_CONF=backend:cudaMallocAsync [PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5,backend:cudaMallocAsync]",
			"XLA_PYTHON_CLIENT_PREALLOCATE: only JAX reads it; PyTorch takes what it needs in any case []"}},
		{"JAX's in TensorFlow", frameworks.Release{Name: "tensorflow"}, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5", "XLA_FLAGS=--a"}, []string{
			"XLA_PYTHON_CLIENT_PREALLOCATE: only JAX reads it; in TensorFlow write TF_FORCE_GPU_ALLOW_GROWTH=true [TF_FORCE_GPU_ALLOW_GROWTH=true]",
			"XLA_PYTHON_CLIENT_MEM_FRACTION: only JAX reads it; TensorFlow takes it from the program: tf.config.set_logical_device_configuration []"}},
		{"of two in CuPy", frameworks.Release{Name: "cupy"}, []string{"TF_BFC_MEMORY_DUMP=/tmp/x", "TF_PER_DEVICE_MEMORY_LIMIT_MB=1"}, []string{
			"TF_BFC_MEMORY_DUMP: only TensorFlow or JAX reads it []",
			"TF_PER_DEVICE_MEMORY_LIMIT_MB: only JAX or TensorFlow reads it []"}},

		{"misspelt", frameworks.Release{Name: "jax"}, []string{"XLA_PYTHON_CLIENT_PREALOCATE=false"},
			[]string{"XLA_PYTHON_CLIENT_PREALOCATE: no framework reads this variable; did you mean XLA_PYTHON_CLIENT_PREALLOCATE? [-XLA_PYTHON_CLIENT_PREALOCATE XLA_PYTHON_CLIENT_PREALLOCATE=false]"}},
		{"case", frameworks.Release{Name: "jax"}, []string{"xla_python_client_mem_fraction=.5"},
			[]string{"xla_python_client_mem_fraction: no framework reads this variable, for case counts; did you mean XLA_PYTHON_CLIENT_MEM_FRACTION? [-xla_python_client_mem_fraction XLA_PYTHON_CLIENT_MEM_FRACTION=.5]"}},
		{"misspelt, and the value is not recognised", frameworks.Release{Name: "jax"}, []string{"JAX_PREALLOCATE=no"},
			[]string{"JAX_PREALLOCATE: no framework reads this variable; did you mean XLA_PYTHON_CLIENT_PREALLOCATE? [-JAX_PREALLOCATE XLA_PYTHON_CLIENT_PREALLOCATE=false]"}},
		{"misspelt, a percentage", frameworks.Release{Name: "jax"}, []string{"XLA_MEM_FRACTION=30"},
			[]string{"XLA_MEM_FRACTION: no framework reads this variable; did you mean XLA_CLIENT_MEM_FRACTION? [-XLA_MEM_FRACTION XLA_CLIENT_MEM_FRACTION=.3]"}},
		{"misspelt, and the value would be refused", frameworks.Release{Name: "jax"}, []string{"XLA_MEM_FRACTION=half"},
			[]string{"XLA_MEM_FRACTION: no framework reads this variable; did you mean XLA_CLIENT_MEM_FRACTION? [-XLA_MEM_FRACTION]"}},
		{"both names, misspelt", frameworks.Release{Name: "jax"}, []string{"XLA_CLIENT_MEM_FRACTIO=.3", "XLA_PYTHON_CLIENT_MEM_FRACTIO=.5"}, []string{
			"XLA_CLIENT_MEM_FRACTIO: no framework reads this variable; did you mean XLA_CLIENT_MEM_FRACTION? [-XLA_CLIENT_MEM_FRACTIO XLA_CLIENT_MEM_FRACTION=.3]",
			"XLA_PYTHON_CLIENT_MEM_FRACTIO: no framework reads this variable; did you mean XLA_PYTHON_CLIENT_MEM_FRACTION? [-XLA_PYTHON_CLIENT_MEM_FRACTIO]"}},
		{"half of PyTorch's list is said", frameworks.Release{Name: "jax"}, []string{"PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:.5,backend:cudaMallocAsync", "XLA_PYTHON_CLIENT_MEM_FRACTION=.4"},
			[]string{"PYTORCH_CUDA_ALLOC_CONF: only PyTorch reads it; in JAX write XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async [XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async]"}},
		{"misspelt beside the right one", frameworks.Release{Name: "jax"}, []string{"XLA_MEM_FRACTION=.3", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"},
			[]string{"XLA_MEM_FRACTION: no framework reads this variable; did you mean XLA_CLIENT_MEM_FRACTION? It is ignored, and XLA_PYTHON_CLIENT_MEM_FRACTION is set [-XLA_MEM_FRACTION]"}},
		{"misspelt, of an older JAX", frameworks.Release{Name: "jax", Version: "0.4.30"}, []string{"XLA_CLIENT_MEM_FRACTIO=.3"},
			[]string{"XLA_CLIENT_MEM_FRACTIO: no framework reads this variable; did you mean XLA_CLIENT_MEM_FRACTION? This release does not read that; in JAX write XLA_PYTHON_CLIENT_MEM_FRACTION=0.3 [-XLA_CLIENT_MEM_FRACTIO XLA_PYTHON_CLIENT_MEM_FRACTION=0.3]"}},
		{"words, of an older JAX", frameworks.Release{Name: "jax", Version: "0.4.30"}, []string{"JAX_MEM_FRACTION=.3"},
			[]string{"JAX_MEM_FRACTION: no framework reads this variable; did you mean XLA_PYTHON_CLIENT_MEM_FRACTION? [-JAX_MEM_FRACTION XLA_PYTHON_CLIENT_MEM_FRACTION=.3]"}},
		{"another framework's, misspelt", frameworks.Release{Name: "jax"}, []string{"TF_ALLOW_GROWTH=true"},
			[]string{"TF_ALLOW_GROWTH: no framework reads this variable; did you mean TF_FORCE_GPU_ALLOW_GROWTH? Only TensorFlow reads that; in JAX write XLA_PYTHON_CLIENT_PREALLOCATE=false [-TF_ALLOW_GROWTH TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false]"}},
		{"devices, misspelt", frameworks.Release{Name: "jax"}, []string{"CUDA_VISIBLE_DEVICE=1"},
			[]string{"CUDA_VISIBLE_DEVICE: no framework reads this variable; did you mean CUDA_VISIBLE_DEVICES? [-CUDA_VISIBLE_DEVICE CUDA_VISIBLE_DEVICES=1]"}},
		{"a value with blanks", frameworks.Release{Name: "jax"}, []string{"XLA_FLAG=--a=1 --b=2"},
			[]string{"XLA_FLAG: no framework reads this variable; did you mean XLA_FLAGS? [-XLA_FLAG]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, v, err := tc.as.Find()
			if err != nil {
				t.Fatal(err)
			}
			e := policy.Environ(tc.env)
			r, raised := f.Read(e, v)
			if raised != nil {
				t.Fatal(raised)
			}
			var got []string
			for _, w := range unread(e, f, v, r) {
				got = append(got, fmt.Sprintf("%s: %s [%s]", w.Name, w.Text, w.Fix))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestCounterpart(t *testing.T) {
	for _, tc := range []struct {
		variable  string // NAME=value
		as        frameworks.Release
		set, text string
	}{
		{"XLA_PYTHON_CLIENT_PREALLOCATE=false", frameworks.Release{Name: "tensorflow"}, "TF_FORCE_GPU_ALLOW_GROWTH=true", "; in TensorFlow write TF_FORCE_GPU_ALLOW_GROWTH=true"},
		{"XLA_PYTHON_CLIENT_PREALLOCATE=off", frameworks.Release{Name: "tensorflow"}, "TF_FORCE_GPU_ALLOW_GROWTH=true", "; in TensorFlow write TF_FORCE_GPU_ALLOW_GROWTH=true"},
		{"XLA_PYTHON_CLIENT_PREALLOCATE=true", frameworks.Release{Name: "tensorflow"}, "", "; TensorFlow takes all at once by default"},
		{"XLA_PYTHON_CLIENT_PREALLOCATE=false", frameworks.Release{Name: "pytorch"}, "", "; PyTorch takes what it needs in any case"},
		{"XLA_CLIENT_MEM_FRACTION=.5", frameworks.Release{Name: "pytorch"}, "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5", "; in PyTorch write PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"},
		{"XLA_CLIENT_MEM_FRACTION=.5", frameworks.Release{Name: "pytorch", Version: "2.9"}, "", "; PyTorch takes it from the program: torch.cuda.set_per_process_memory_fraction"},
		{"XLA_PYTHON_CLIENT_MEM_FRACTION=.07", frameworks.Release{Name: "cupy"}, "CUPY_GPU_MEMORY_LIMIT=7%", "; in CuPy write CUPY_GPU_MEMORY_LIMIT=7%"},
		{"XLA_CLIENT_MEM_FRACTION=.5", frameworks.Release{Name: "tensorflow"}, "", "; TensorFlow takes it from the program: tf.config.set_logical_device_configuration"},
		{"XLA_CLIENT_MEM_FRACTION=50", frameworks.Release{Name: "cupy"}, "", ""},
		{"XLA_CLIENT_MEM_FRACTION=nan", frameworks.Release{Name: "cupy"}, "", ""},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=CUDA_ASYNC", frameworks.Release{Name: "pytorch", Version: "2.8"}, "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "; in PyTorch write PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", frameworks.Release{Name: "tensorflow", Version: "2.4"}, "", "; TensorFlow has none before 2.5"},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=platform", frameworks.Release{Name: "tensorflow"}, "TF_GPU_ALLOCATOR=cuda_malloc", "; in TensorFlow write TF_GPU_ALLOCATOR=cuda_malloc"},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=default", frameworks.Release{Name: "tensorflow"}, "", ""},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm", frameworks.Release{Name: "pytorch"}, "PYTORCH_ALLOC_CONF=expandable_segments:True", "; in PyTorch write PYTORCH_ALLOC_CONF=expandable_segments:True"},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm", frameworks.Release{Name: "tensorflow"}, "", "; TensorFlow has nothing like it"},
		{"PYTORCH_NO_CUDA_MEMORY_CACHING=0", frameworks.Release{Name: "jax"}, "XLA_PYTHON_CLIENT_ALLOCATOR=platform", "; in JAX write XLA_PYTHON_CLIENT_ALLOCATOR=platform"},
		{"PYTORCH_ALLOC_CONF=expandable_segments:True", frameworks.Release{Name: "jax", Version: "0.9.2"}, "", "; JAX has none before 0.10.0"},
		{"PYTORCH_ALLOC_CONF=expandable_segments:True,backend:native", frameworks.Release{Name: "gpumem"}, "XLA_PYTHON_CLIENT_ALLOCATOR=vmm", "; in gpumem write XLA_PYTHON_CLIENT_ALLOCATOR=vmm"},
		{"PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5,backend:cudaMallocAsync", frameworks.Release{Name: "cupy"}, "CUPY_GPU_MEMORY_LIMIT=50%", "; in CuPy write CUPY_GPU_MEMORY_LIMIT=50%; CuPy takes it from the program: cupy.cuda.MemoryAsyncPool"},
		{"CUPY_GPU_MEMORY_LIMIT=50%", frameworks.Release{Name: "jax"}, "XLA_CLIENT_MEM_FRACTION=0.5", "; in JAX write XLA_CLIENT_MEM_FRACTION=0.5"},
		{"CUPY_GPU_MEMORY_LIMIT=1073741824", frameworks.Release{Name: "jax"}, "", ""},
		{"CUPY_GPU_MEMORY_LIMIT=120%", frameworks.Release{Name: "jax"}, "", ""},
		{"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=64", frameworks.Release{Name: "tensorflow"}, "TF_GPU_HOST_MEM_LIMIT_IN_MB=65536", "; in TensorFlow write TF_GPU_HOST_MEM_LIMIT_IN_MB=65536"},
		{"TF_GPU_HOST_MEM_LIMIT_IN_MB=100", frameworks.Release{Name: "jax"}, "", ""},
		{"TF_GPU_ALLOCATOR=memory_guard", frameworks.Release{Name: "jax"}, "", ""},
		{"HOME=/", frameworks.Release{Name: "jax"}, "", ""},
		{"TF_FORCE_GPU_ALLOW_GROWTH=true", frameworks.Release{Name: "mxnet"}, "", ""},
		{"TF_FORCE_GPU_ALLOW_GROWTH=true", frameworks.Release{Name: "jax", Version: "no version"}, "XLA_PYTHON_CLIENT_PREALLOCATE=false", "; in JAX write XLA_PYTHON_CLIENT_PREALLOCATE=false"},
	} {
		t.Run(tc.variable+" in "+tc.as.Name+tc.as.Version, func(t *testing.T) {
			name, value, _ := strings.Cut(tc.variable, "=")
			if set, text := counterpart(name, value, tc.as); set != tc.set || text != tc.text {
				t.Errorf("%q, %q, want %q, %q", set, text, tc.set, tc.text)
			}
		})
	}
}

// TestGoalsAreRead: what is recommended is a variable that the framework reads.
func TestGoalsAreRead(t *testing.T) {
	for _, g := range goals() {
		for name, ways := range g.ways {
			for _, w := range ways {
				if (w.set == "") == (w.instead == "") {
					t.Errorf("%s in %s: both or neither of an assignment and a text", g.title, name)
				}
				if w.set == "" {
					continue
				}
				variableName, _, _ := strings.Cut(w.set, "=")
				v, ok := frameworks.Lookup(variableName)
				since, err := policy.ParseVersion(w.since, "", "")
				if w.since == "" {
					since, err = policy.Newest, nil
				}
				if err != nil || !ok || !v.ReadAt(name, since) {
					t.Errorf("%s in %s: %s since %q: %v", g.title, name, w.set, w.since, err)
				}
			}
		}
	}
}

// TestFixesWork: an environment as its fix has it draws no warning of a name,
// and has no two names for the same.
func TestFixesWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(frameworks.All).Draw(t, "framework")
		var lines []string
		for range rapid.IntRange(1, 4).Draw(t, "variables") {
			name := rapid.SampledFrom(suspects()).Draw(t, "variable").Name
			if rapid.Bool().Draw(t, "misspelt") {
				at := rapid.IntRange(0, len(name)-1).Draw(t, "at")
				name = name[:at] + name[at+1:]
			}
			value := rapid.SampledFrom([]string{"true", "false", "0.5", "50", "50%", "cuda_malloc_async", "platform", "64", "backend:cudaMallocAsync"}).Draw(t, "value")
			lines = append(lines, name+"="+value)
		}
		e := policy.Environ(lines)
		a, err := Environment(e, frameworks.Release{Name: f.Name}, policy.Device{Total: 80 << 30, Free: 80 << 30, CCMajor: 9})
		if err != nil || len(a.Errors) > 0 {
			return
		}
		for _, word := range a.Set {
			if name, ok := strings.CutPrefix(word, "-"); ok {
				e = e.Without(name)
			} else {
				name, value, _ := strings.Cut(word, "=")
				e = e.With(name, value)
			}
		}
		b, err := Environment(e, frameworks.Release{Name: f.Name}, policy.Device{Total: 80 << 30, Free: 80 << 30, CCMajor: 9})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range b.Warnings {
			if strings.Contains(w.Text, "did you mean") {
				t.Fatalf("%v becomes %v, which draws %s: %s", lines, e.Names(), w.Name, w.Text)
			}
		}
		for _, refused := range b.Errors { // a bad value of the user's own may come to light
			if strings.Contains(refused.Text, "specified together") {
				t.Fatalf("%v becomes %v, which is refused: %s", lines, e.Names(), refused.Text)
			}
		}
	})
}

// FuzzTypos: any environment is answered, and real names draw no warning in it.
func FuzzTypos(f *testing.F) {
	f.Add("XLA_MEM_FRACTION=.5\nxla_flags=--a\nTF_FORCE_GPU_ALLOW_GROWTH=true", 0)
	f.Add("=\n\n==\nA=\x00\nPYTORCH_ALLOC_CONF=backend:cudaMallocAsync,,:,per_process_memory_fraction:1e-400\nCUPY_GPU_MEMORY_LIMIT=%", 1)
	f.Add("TF_GPU_HOST_MEM_LIMIT_IN_MB=9223372036854775807\nXLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=9223372036854775807\nXLA_CLIENT_MEM_FRACTION=1e-300", 7)
	f.Fuzz(func(t *testing.T, text string, pick int) {
		e := policy.Environ(append(strings.Split(text, "\n"), corpus[uint(pick)%uint(len(corpus))]+"=1"))
		for _, as := range frameworks.All {
			for _, w := range unread(e, as, as.Newest, policy.Reading{}) {
				if slices.Contains(corpus, w.Name) {
					t.Errorf("%s: %s", w.Name, w.Text)
				}
				if _, set := e.Lookup(w.Name); !set || strings.TrimSpace(w.Text) == "" {
					t.Errorf("a warning of nothing: %q", w)
				}
			}
		}
	})
}
