package account

// The place: what of the system and the kind of program the log shows, for advice that fits it.

import (
	"strings"

	"gpumem/doctor/internal/statement"
)

// Place is where, and as what, the program ran. What the log does not show is false.
type Place struct {
	Windows, WSL, Mac, TPU       bool
	Kubernetes, Slurm, Container bool
	Python, Training, Loader     bool // Loader: worker processes that load data
	Inference                    bool
}

// see adds what a text shows.
func (p *Place) see(st *statement.Statement) {
	for _, s := range []struct {
		is    *bool
		words []string
	}{
		{&p.Windows, []string{"winerror", "dll", "exe", "dxgi"}}, {&p.WSL, []string{"wsl", "dxgkio"}}, {&p.Mac, []string{"mps", "metal", "macos", "darwin"}},
		{&p.Kubernetes, []string{"kubectl", "kubelet", "pod", "pods", "oomkilled", "kubepods"}}, {&p.Slurm, []string{"slurm", "slurmstepd", "srun", "sbatch"}},
		{&p.Container, []string{"docker", "containerd", "cgroup"}}, {&p.Python, []string{"py", "traceback", "python"}},
		{&p.Training, []string{"backward", "optimizer", "epoch", "loss", "trainer", "autograd", "train", "training",
			"finetune"}}, {&p.Inference, []string{"inference", "infer", "generate", "generation", "sampler", "sampling",
			"pipeline", "webui", "prompt", "serving", "diffusion", "diffusers", "denoise", "decode"}}, {&p.Loader, []string{"dataloader", "loader", "workers"}},
	} {
		*s.is = *s.is || st.HasAny(s.words...)
	}
	p.Windows = p.Windows || strings.Contains(st.Text, `:\`)
	p.TPU = p.TPU || st.Topic("tpu") != nil || st.Words["tpu"]
}
