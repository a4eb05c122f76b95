//go:build linux

package main

import (
	"os"
	"time"
)

// checks are all checks, the most doubtful and the most used first: what is not reached when the time is up
// should be what matters least.
var checks = []check{
	{name: "driver", claim: "The driver answers as the simulated GPU does", doc: "docs/gpu.md", limit: time.Minute, run: driver("^TestReal(Conformance|Sizes|Threads|Refusals|Processes)$")},
	{name: "reset", claim: "A reset by another library is noticed before the next call", doc: "docs/gpu.md", limit: 20 * time.Second, run: driver("^TestRealReset$")},
	{name: "capture", claim: "No call spoils another thread's capture of a graph", doc: "docs/gpu.md", limit: 20 * time.Second, run: driver("^TestRealCapture$")},
	{name: "contents", claim: "Contents survive every policy, alone and beside other programs", doc: "docs/gpu.md", limit: time.Minute, run: contents},
	{name: "pytorch", claim: "PyTorch computes the same to the bit on every pool, and ends with its own error at a limit", doc: "docs/pool-library.md", needs: []string{"torch"}, limit: 80 * time.Second, run: train(torch)},
	{name: "jax", claim: "JAX computes the same to the bit on every pool, and ends with its own error at a limit", doc: "docs/pool-library.md", needs: []string{"jax", "jax-cuda13-plugin"}, limit: 80 * time.Second, run: train(jax)},
	{name: "explain-jax", claim: "JAX takes what gpumem explain says of its settings", doc: "docs/settings.md", needs: []string{"jax", "jax-cuda13-plugin"}, limit: 80 * time.Second, run: explain(jax, "jax", jaxSettings)},
	{name: "explain-pytorch", claim: "PyTorch takes what gpumem explain says of its settings", doc: "docs/settings.md", needs: []string{"torch"}, limit: 60 * time.Second, run: explain(torch, "pytorch", torchSettings)},
	{name: "refusals-jax", claim: "The doctor names the cause and the sizes of JAX's own errors", doc: "docs/doctor.md", needs: []string{"jax", "jax-cuda13-plugin"}, limit: 60 * time.Second, run: refusals(jax, true, jaxRefusals)},
	{name: "refusals-pytorch", claim: "The doctor names the cause and the sizes of PyTorch's own errors", doc: "docs/doctor.md", needs: []string{"torch"}, limit: 60 * time.Second, run: refusals(torch, false, torchRefusals)},
	{name: "cupy", claim: "CuPy computes the same to the bit on every pool, and ends with its own error at a limit", doc: "docs/pool-library.md", needs: []string{"gpu", "cupy"}, limit: 60 * time.Second, run: train(cupy)},
	{name: "pool-library", claim: "The pool library answers a C program as the driver does", doc: "docs/pool-library.md", limit: time.Minute, run: poolLibrary},
	{name: "c-library", claim: "The pools for C programs serve on this GPU", doc: "docs/library.md", limit: 30 * time.Second, run: cLibrary},
	{name: "grants", claim: "A grant takes what is asked, rounded up to 2 MiB; a pool grows by 32 MiB", doc: "docs/gpu.md", limit: 30 * time.Second, run: grants},
	{name: "context", claim: "A context takes 2 KiB a thread and 24 MiB, within 20 %", doc: "docs/sharing.md", limit: 20 * time.Second, run: contextBytes},
	{name: "outside-pytorch", claim: "The estimate of what PyTorch takes outside of its pool is enough", doc: "docs/sharing.md", needs: []string{"torch"}, limit: 60 * time.Second, run: outside("torch", "pytorch")},
	{name: "outside-jax", claim: "The estimate of what JAX takes outside of its pool is enough", doc: "docs/sharing.md", needs: []string{"jax"}, limit: 60 * time.Second, run: outside("jax", "jax")},
	{name: "outside-cupy", claim: "The estimate of what CuPy takes outside of its pool is enough", doc: "docs/sharing.md", needs: []string{"gpu", "cupy"}, limit: 30 * time.Second, run: outside("cupy", "cupy")},
	{name: "fit-jax", claim: "fit predicts what five JAX programs have in use and hold at their peak, and at most what they take outside", doc: "docs/fit.md", needs: []string{"jax"}, limit: 90 * time.Second, run: fits("fit_jax.py", "XLA_PYTHON_CLIENT_PREALLOCATE=false", jaxPrograms)},
	{name: "fit-pytorch", claim: "fit predicts what five PyTorch programs have in use and hold at their peak, and at most what they take outside", doc: "docs/fit.md", needs: []string{"torch"}, limit: 90 * time.Second, run: fits("fit_torch.py", "", torchPrograms)},
	{name: "remat", claim: "run --remat has XLA take the temporaries that it says, with results equal to the bit", doc: "docs/remat.md", needs: []string{"jax"}, limit: 90 * time.Second, run: remat},
	{name: "remat-host", claim: "XLA compiles a plan with copies to the host from its text, with the same results", doc: "docs/remat.md", needs: []string{"jax"}, limit: 60 * time.Second, run: rematHost},
	{name: "views", claim: "ps, devices, top and serve show the same bytes, and what a program took", doc: "docs/sharing.md", limit: 20 * time.Second, run: views},
	{name: "views-smi", claim: "devices shows what nvidia-smi shows, to the MiB", doc: "docs/sharing.md", limit: 20 * time.Second, needs: []string{"gpu"}, run: viewsSMI},
	{name: "limits", claim: "Two programs at their limits are refused there, and a killed one's memory is back", doc: "docs/sharing.md", limit: 40 * time.Second, run: limits},
	{name: "costs", claim: "Calls of the driver cost what the model of time says, within a factor of 2", doc: "device/sim/costs.txt", limit: 90 * time.Second, run: costs},
}

// planted are wrong on purpose: a report must have them and go on.
var planted = []check{
	{name: "planted-hang", claim: "A check that hangs, with a process in a session of its own", doc: "nowhere", limit: 2 * time.Second, run: hang},
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
	_, err := c.exec(process{args: []string{"sh", "-c", "setsid sleep 1000 & sleep 1000"}, limit: time.Hour})
	if err == nil {
		os.Exit(3)
	}
	return err
}
