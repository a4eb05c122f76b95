package account

// The place: what of the system and the kind of program the log shows, for advice that fits it.

import (
	"regexp"
	"strconv"
	"strings"

	"gpumem/doctor/internal/statement"
)

// Place is where, and as what, the program ran. What the log does not show is false.
type Place struct {
	Windows, WSL, NVIDIA, TPU    bool
	Kubernetes, Slurm, Container bool
	Python, Loader               bool // Loader: worker processes that load data
	Training, Inference          bool
	Year                         int // of the first date; 0 if there is none
	seen                         int
}

// signs are the words that show a place.
var signs = []struct {
	of    func(*Place) *bool
	words []string
}{
	{func(p *Place) *bool { return &p.Windows }, []string{"winerror", "dll", "exe", "dxgi", "d3d11", "d3d12", "logd3d12rhi", "logd3d11rhi",
		"hresult"}},
	{func(p *Place) *bool { return &p.WSL }, []string{"wsl", "wsl2", "dxgkio", "microsoft-standard"}},
	{func(p *Place) *bool { return &p.NVIDIA }, []string{"cuda", "nvidia", "cudnn", "cublas", "nvml", "nvrm", "geforce", "cudamalloc",
		"cumemalloc", "nvenc"}},
	{func(p *Place) *bool { return &p.TPU }, []string{"tpu"}},
	{func(p *Place) *bool { return &p.Kubernetes }, []string{"kubectl", "kubelet", "pod", "pods", "oomkilled", "kubepods"}},
	{func(p *Place) *bool { return &p.Slurm }, []string{"slurm", "slurmstepd", "srun", "sbatch"}},
	{func(p *Place) *bool { return &p.Container }, []string{"docker", "containerd", "cgroup"}},
	{func(p *Place) *bool { return &p.Python }, []string{"py", "traceback", "python", "torch", "pytorch"}},
	{func(p *Place) *bool { return &p.Loader }, []string{"dataloader", "loader", "workers"}},
	{func(p *Place) *bool { return &p.Training }, []string{"backward", "optimizer", "epoch", "loss", "trainer", "autograd", "train",
		"training", "finetune", "finetuning", "lora", "gradient", "gradients"}},
	{func(p *Place) *bool { return &p.Inference }, []string{"inference", "infer", "generate", "generation", "ksampler", "sampling",
		"pipeline", "webui", "prompt", "serving",
		"diffusion", "diffusers", "denoise", "decode", "predict", "prediction", "detect", "transcribe"}},
}

// datedWithin is how many texts a date is looked for in: a log that has dates has them on every line.
const datedWithin = 50

var date = regexp.MustCompile(`\b(20[12]\d)-[01]\d-[0-3]\d(?:\D|$)`)

// drive begins a path of Windows; the end of a line that was written as \n may stand behind a colon, too.
var drive = regexp.MustCompile(`(?:^|[^A-Za-z])[A-Za-z]:\\`)

// see adds what a text shows.
func (p *Place) see(st *statement.Statement) {
	before := p.TPU
	if p.seen++; p.Year == 0 && p.seen <= datedWithin {
		if m := date.FindStringSubmatch(statement.Clipped64(st.Head() + st.Text)); m != nil {
			p.Year, _ = strconv.Atoi(m[1])
		}
	}
	for _, s := range signs {
		if is := s.of(p); !*is {
			*is = st.HasAny(s.words...)
		}
	}
	if st.Words["available"] { // "TPU available: False, using: 0 TPU cores"
		p.TPU = before
	}
	p.Windows = p.Windows || strings.Contains(st.Text, `:\`) && drive.MatchString(statement.Clipped64(st.Text))
	p.TPU = p.TPU || st.Topic("tpu") != nil
}
