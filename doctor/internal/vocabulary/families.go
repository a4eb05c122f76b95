package vocabulary

// A family's words: how a line tells that it is this family's.
type told struct {
	family Family
	stem   string // a name's beginning that programs leave out where the family is told
	calls  string // how its functions begin, such as cl; an upper-case letter follows
	words  string // words that tell it; with ! a number may follow at once, as in "errno 12"
	plain  bool   // its names of one case are common words: they count only where it is told
	hex    bool   // its numbers tell it by themselves, written as 0x and eight digits
}

// families are in the order in which an ambiguous text is theirs. The words of CUDA tell
// driver and runtime alike: their numbers have been the same since CUDA 10.1.
var families = []told{
	{family: "common"},
	{family: "engine"},
	{family: "exception"},
	{family: "Linux", words: "kernel dmesg oom memcg", plain: true},
	{family: "cudaError", calls: "cuda", words: "cuda nvidia cuda_error cudaerror! cudaerror_t! cudart thcudacheck gpuassert"},
	{family: "CUresult", stem: "CUDA_", calls: "cu", words: "cuda cuda_error curesult! cudriver drivererror cudaerror_enum!"},
	{family: "hipError", calls: "hip", words: "hip rocm hiperror! hiperror_t! hip_error"},
	{family: "cuBLAS", stem: "CUBLAS_STATUS_", calls: "cublas", words: "cublas cublas_error cublasstatus_t! cublaslt cublasstatus!"},
	{family: "cuDNN", stem: "CUDNN_STATUS_", calls: "cudnn", words: "cudnn cudnnstatus_t! cudnn_error cudnn_fe cudnn_frontend"},
	{family: "cuSolver", stem: "CUSOLVER_STATUS_", calls: "cusolver", words: "cusolver cusolverstatus_t! gpusolver"},
	{family: "cuFFT", stem: "CUFFT_", calls: "cufft", words: "cufft cufftresult! cufftresult_t!"},
	{family: "cuSPARSE", stem: "CUSPARSE_STATUS_", calls: "cusparse", words: "cusparse cusparsestatus_t!"},
	{family: "cuRAND", stem: "CURAND_STATUS_", calls: "curand", words: "curand curandstatus_t!"},
	{family: "NVRTC", stem: "NVRTC_", calls: "nvrtc", words: "nvrtc nvrtcresult!"},
	{family: "NCCL", calls: "nccl", words: "nccl rccl ncclresult_t! ncclresult! processgroupnccl ncclutils"},
	{family: "MIOpen", calls: "miopen", words: "miopen miopenstatus_t!"},
	{family: "rocBLAS", calls: "rocblas", words: "rocblas rocblas_status! rocblas_create_handle"},
	{family: "hipBLAS", stem: "HIPBLAS_STATUS_", calls: "hipblas", words: "hipblas hipblasstatus_t! hipblaslt"},
	{family: "OpenCL", stem: "CL_", calls: "cl", words: "opencl pyopencl cl_int! clerror clblast"},
	{family: "Vulkan", stem: "VK_", calls: "vk", words: "vulkan vk vkresult! ggml_vulkan vma"},
	{family: "Level Zero", stem: "ZE_RESULT_", calls: "ze", words: "level_zero levelzero l0 ze_result_t! xpu"},
	{family: "Unified Runtime", stem: "UR_RESULT_", calls: "ur", words: "level_zero sycl ur ur_result_t! unified_runtime xpu backend"},
	{family: "PI", stem: "PI_", calls: "pi", words: "sycl pi native oneapi pi_result! xpu"},
	{family: "NVENC", stem: "NV_ENC_ERR_", calls: "NvEnc", words: "nvenc nvencstatus! openencodesessionex nvencopenencodesessionex! h264_nvenc hevc_nvenc av1_nvenc"},
	{family: "HRESULT", calls: "D3D", words: "hresult! hr! dxgi d3d d3d9 d3d11 d3d12 direct3d directml dml exit exited exitcode", hex: true},
	{family: "NTSTATUS", words: "ntstatus! exit exited exitcode returncode", hex: true},
	{family: "Win32", words: "winerror! getlasterror! win32 windows os", hex: true},
	{family: "errno", calls: "NvMap", words: "errno! os oserror ioctl mmap strerror"},
	{family: "signal", words: "signal! signals! sig!"},
	{family: "exit status", words: "exit! exited! exitcode! exit_code! exitstatus! returncode! exit_status! return rc! status terminated"},
	{family: "Xid", words: "xid! nvrm"},
	{family: "NV_STATUS", words: "nvrm rminitadapter nvidia rmstatus! nv_status!"},
	{family: "NVML", stem: "NVML_ERROR_", calls: "nvml", words: "nvml pynvml nvmlerror! nvmlreturn_t! smi"},
	{family: "HSA", stem: "HSA_STATUS_", words: "hsa rocr hsa_status_t! queue hsa_init hsa_memory_allocate hsa_queue_create"},
	{family: "Ascend", calls: "acl aclrt rt", words: "acl ascend npu cann acl_error rt torch_npu hccl aclerror! aclrt"},
	{family: "TensorRT", stem: "k", words: "tensorrt trt trtexec"},
	{family: "Metal", stem: "MTLCommandBufferError", words: "metal mtlcommandbuffer mtlcommandbuffererrordomain! ggml_metal mps"},
	{family: "absl", words: "rpc grpc statuscode xlaruntimeerror jaxruntimeerror tensorflow errors_impl", plain: true},
	{family: "Slurm", words: "slurm slurmstepd slurmctld sacct sbatch srun squeue jobstate scontrol jobid step", plain: true},
	{family: "Kubernetes", words: "kubernetes kubectl kubelet pod pods reason container nodes", plain: true},
}

// connectives stand between a family and its number: "CUDA error code = 2".
const connectives = "error errors err code codes status result ret retcode rc return returned returns failed failure with no " +
	"number value is was errno driver runtime api call exited exit by signal non zero got function terminated " +
	"killed died native backend exitcode"

// weakTexts are texts that others write too: they count only where the family is told.
var weakTexts = map[string]bool{
	"unknown error": true, "internal error": true, "invalid usage": true, "timeout": true, "protocol error": true, "bad message": true,
	"initialization error": true, "timer expired": true, "illegal seek": true, "device not ready": true, "file not found": true,
}
