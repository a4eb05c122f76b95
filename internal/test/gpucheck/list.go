//go:build linux

package main

import (
	"time"
)

// checks are all checks: first what is of the driver and most in doubt, then what frameworks, settings and
// predictions rest on it. What is not reached when the time is up should be what matters least.
var checks = []check{
	{
		name: "driver", doc: "docs/gpu.md", limit: time.Minute,
		claim: "The driver answers as the simulated GPU does",
		run:   driver("TestRealConformance", "TestRealSizes", "TestRealThreads", "TestRealRefusals", "TestRealProcesses"),
	},
	{
		name: "reset", doc: "docs/gpu.md", limit: 20 * time.Second,
		claim: "A reset by another library is noticed before the next call",
		run:   driver("TestRealReset"),
	},
	{
		name: "capture", doc: "docs/gpu.md", limit: 20 * time.Second,
		claim: "No call spoils another thread's capture of a graph",
		run:   driver("TestRealCapture"),
	},
	{
		name: "grants", doc: "docs/gpu.md", limit: 30 * time.Second,
		claim: "A grant takes what is asked, rounded up to 2 MiB; a pool grows by 32 MiB",
		run:   grants,
	},
	{
		name: "context", doc: "docs/sharing.md", limit: 20 * time.Second,
		claim: "A context takes 2 KiB a thread and 24 MiB, within 20 %",
		run:   contextBytes,
	},
	{
		name: "costs", doc: "device/sim/costs.txt", limit: 90 * time.Second,
		claim: "Calls of the driver cost what the model of time says, within a factor of 2",
		run:   costs,
	},
	{
		name: "contents", doc: "docs/gpu.md", limit: time.Minute,
		claim: "Contents survive every policy, alone and beside other programs",
		run:   contents,
	},
	{
		name: "limits", doc: "docs/sharing.md", limit: 40 * time.Second,
		claim: "Two programs at their limits are refused there, and a killed one's memory is back",
		run:   limits,
	},
	{
		name: "python", doc: "docs/gpu.md", limit: 65 * time.Second,
		claim: "JAX, PyTorch and CuPy are imported within 20 s each",
		needs: []string{"python"},
		run:   imports,
	},
	{
		name: "pytorch", doc: "docs/pool-library.md", limit: 80 * time.Second,
		claim: "PyTorch computes the same to the bit on every pool, and ends with its own error at a limit",
		needs: []string{"torch"},
		run:   with(train(torch)),
	},
	{
		name: "jax", doc: "docs/pool-library.md", limit: 80 * time.Second,
		claim: "JAX computes the same to the bit on every pool, and ends with its own error at a limit",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(train(jax)),
	},
	{
		name: "cupy", doc: "docs/pool-library.md", limit: 60 * time.Second,
		claim: "CuPy computes the same to the bit on every pool, and ends with its own error at a limit",
		needs: []string{"gpu", "cupy"},
		run:   with(train(cupy)),
	},
	{
		name: "pool-library", doc: "docs/pool-library.md", limit: time.Minute,
		claim: "The pool library answers a C program as the driver does",
		run:   poolLibrary,
	},
	{
		name: "turns", doc: "docs/pool-library.md", limit: 80 * time.Second,
		claim: "Memory that leaves the GPU is free there, and comes back with its contents, to kernels, copies and fills of graphs",
		run:   swaps,
	},
	{
		name: "c-library", doc: "docs/library.md", limit: 30 * time.Second,
		claim: "The pools for C programs serve on this GPU",
		run:   cLibrary,
	},
	{
		name: "explain-jax", doc: "docs/settings.md", limit: 80 * time.Second,
		claim: "JAX takes what gpumem explain says of its settings",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(explain(jax, "jax", jaxSettings)),
	},
	{
		name: "explain-pytorch", doc: "docs/settings.md", limit: 60 * time.Second,
		claim: "PyTorch takes what gpumem explain says of its settings",
		needs: []string{"torch"},
		run:   with(explain(torch, "pytorch", torchSettings)),
	},
	{
		name: "outside-pytorch", doc: "docs/sharing.md", limit: 60 * time.Second,
		claim: "The estimate of what PyTorch takes outside of its pool is enough",
		needs: []string{"torch"},
		run:   with(outside("torch", "pytorch")),
	},
	{
		name: "outside-jax", doc: "docs/sharing.md", limit: 60 * time.Second,
		claim: "The estimate of what JAX takes outside of its pool is enough",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(outside("jax", "jax")),
	},
	{
		name: "outside-cupy", doc: "docs/sharing.md", limit: 30 * time.Second,
		claim: "The estimate of what CuPy takes outside of its pool is enough",
		needs: []string{"gpu", "cupy"},
		run:   with(outside("cupy", "cupy")),
	},
	{
		name: "fit-jax", doc: "docs/fit.md", limit: 90 * time.Second,
		claim: "fit predicts what five JAX programs have in use and hold at their peak, and at most what they take outside",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(fits("fit_jax.py", "XLA_PYTHON_CLIENT_PREALLOCATE=false", jaxPrograms)),
	},
	{
		name: "fit-pytorch", doc: "docs/fit.md", limit: 90 * time.Second,
		claim: "fit predicts what five PyTorch programs have in use and hold at their peak, and at most what they take outside",
		needs: []string{"torch"},
		run:   with(fits("fit_torch.py", "", torchPrograms)),
	},
	{
		name: "remat", doc: "docs/remat.md", limit: 90 * time.Second,
		claim: "run --remat has XLA take the temporaries that it says, with results equal to the bit",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(remat),
	},
	{
		name: "remat-host", doc: "docs/remat.md", limit: 60 * time.Second,
		claim: "XLA compiles a plan with copies to the host from its text, with the same results",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(rematHost),
	},
	{
		name: "refusals-jax", doc: "docs/doctor.md", limit: 60 * time.Second,
		claim: "The doctor names the cause and the sizes of JAX's own errors",
		needs: []string{"jax", "jax-cuda13-plugin"},
		run:   with(refusals(jax, true, jaxRefusals)),
	},
	{
		name: "refusals-pytorch", doc: "docs/doctor.md", limit: 60 * time.Second,
		claim: "The doctor names the cause and the sizes of PyTorch's own errors",
		needs: []string{"torch"},
		run:   with(refusals(torch, false, torchRefusals)),
	},
	{
		name: "views", doc: "docs/sharing.md", limit: 20 * time.Second,
		claim: "ps, devices, top and serve show the same bytes, and what a program took",
		run:   views,
	},
	{
		name: "views-smi", doc: "docs/sharing.md", limit: 20 * time.Second,
		claim: "devices shows what nvidia-smi shows, to the MiB",
		needs: []string{"gpu"},
		run:   viewsSMI,
	},
}

// planted are wrong on purpose: a report must have them and go on.
var planted = []check{
	{name: "planted-hang", claim: "A check that hangs, with a process in a session of its own",
		doc: "nowhere", limit: 2 * time.Second, run: hang},
	{name: "planted-crash", claim: "A check that crashes", doc: "nowhere", limit: 10 * time.Second, run: func(c *call) error {
		c.figure("before the crash", 1, "")
		panic("planted")
	}},
	{name: "planted-wrong", claim: "A figure that is wrong", doc: "nowhere", limit: 10 * time.Second, run: func(c *call) error {
		c.compare("figure", 3, 2, "bytes", .1)
		return nil
	}},
}

// hang starts a process that leaves its group and its parent, and never ends.
func hang(c *call) error {
	c.figure("before the hang", 1, "")
	r, err := c.begin(process{args: []string{"sh", "-c", "echo the hang begins; setsid sleep 1000 & sleep 1000"}}) // with no limit of its own
	if err == nil {
		r.within(time.Hour)
	}
	return err
}
