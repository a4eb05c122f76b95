package cause

// host_memory: the host's memory ran out, not the GPU's: an allocation of the host, pinned
// memory, /dev/shm, or somebody who killed the process.

import (
	"regexp"
	"slices"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func hostMemory(c *view) found {
	if slices.ContainsFunc(c.message, func(x Explanation) bool { return x.Cause == "host_memory" }) {
		return nil // the numbers of the message go before
	}
	for _, f := range []func(*view) found{hostRefused, hostPinning, hostShared, hostKilled, hostDriver,
		hostCPU} {
		if all := f(c); all != nil {
			return all
		}
	}
	if st := c.About("sigkill"); st != nil && st.Words["worker"] && !c.fatal && c.Library == nil {
		return found{fits(301, "a worker that was killed", c.moreHost(""), seeKernel,
			st.Quoted("a worker was killed from outside (SIGKILL): so the kernel ends one where the host's memory is full")).
			needs(needKernel).only()}
	}
	if l := c.about("sigkill",
		"the process was killed from outside (SIGKILL): most often the kernel, for lack of host memory"); l != nil && !c.fatal &&
		c.Library == nil {
		return found{fits(300, "a SIGKILL", c.moreHost(""), seeKernel, l...).needs(needKernel).only().
			certainly("the program was killed from outside; it did not fail by itself")}
	}
	return nil
}

// hostRefusal is the last refusal of the host's memory. RMM throws std::bad_alloc for the GPU,
// and on MPS there is one memory.
func (c *view) hostRefusal() *account.Refusal {
	r := c.Last(func(r *account.Refusal) bool { return r.Layer == statement.LayerHost && !r.Mild })
	if r == nil || r.St.HasAny("rmm", "mps") || c.Uses("rmm") && r.St.Words["bad"] || c.echoes(r.St) {
		return nil
	}
	return r
}

// echoes reports whether a line with the words of ENOMEM follows from a failure of the GPU right
// before it: ffmpeg passes every one on so.
func (c *view) echoes(st *statement.Statement) bool {
	if st.Amount(statement.RoleWant) != nil {
		return false
	}
	if c.LastError != nil && setsUp.MatchString(st.Text) {
		return true // a device that could not be set up, which ffmpeg tells with the words of ENOMEM
	}
	return c.StatementBefore(st.Line, func(b *statement.Statement) bool {
		return b.Line+12 >= st.Line && (b.Topic("sessions") != nil || b.Refused && b.Layer != statement.LayerHost || b.DeviceCode())
	}) != nil
}

var setsUp = regexp.MustCompile(`(?i)\bdevice (?:setup|creation) failed\b`)

// hostFirst reports whether the host was refused first, with a warning or a size, and the GPU
// only after it; hostLast whether the host's refusal is the program's end.
func (c *view) hostFirst(r *account.Refusal) (first, last bool, gpu *account.Refusal) {
	gpu = c.Last(func(r *account.Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost })
	if gpu == nil {
		return false, true, nil
	}
	warned := r.St.Level == "W" || strings.Contains(strings.ToUpper(r.St.Text), "WARN")
	vague := warned || gpu.Want > 0 && !gpu.St.Words["out"]
	echo := r.St.Words["bfc"] || gpu.St.Library != "" || gpu.St.Words["exhausted"] && gpu.Want == 0
	return vague && !echo && gpu.St.Line > r.St.Line, !c.TorchLike(gpu) || gpu.St.Line < r.St.Line, gpu
}

// fewBytes are no shortage by themselves: whoever is refused so little is refused anything.
const fewBytes = 4 << 10

func hostRefused(c *view) found {
	r := c.hostRefusal()
	if r == nil || c.About("tegra") != nil {
		return nil
	}
	reaped := strings.Contains(r.St.Text, "oom_reaper")
	if reaped && c.About("killed") != nil {
		return nil // hostKilled knows more
	}
	asked := "the memory that was refused is the host's, not the GPU's"
	if reaped {
		asked = "the kernel killed a process for lack of host memory"
	}
	if r.Want > 0 {
		asked = account.Human(r.Want) + " of the host's memory was requested, not of the GPU's"
	}
	if r.HasFree && r.Free < r.Want {
		asked = account.Say("%v of the host's memory was requested, and %v is free: %v is lacking", r.Want, r.Free,
			r.Want-r.Free)
	}
	first, last, gpu := c.hostFirst(r)
	switch {
	case first:
		return found{fits(940, "the host refused first", c.hostRemedy(r), seeBoth, r.St.Quoted(asked))}
	case gpu == nil && r.St.Words["warning"] && r.St.Words["pinned"]:
		return nil // without pinned memory the program goes on: a warning
	case r.Want > 0 && r.Want < fewBytes:
		return found{fits(940, "a few bytes of the host", c.hostRemedy(r), seeBoth, r.St.Quoted(asked))}
	case last:
		return found{sure(940, "the host's memory", c.hostRemedy(r), r.St.Quoted(asked))}
	}
	return nil
}

func hostPinning(c *view) found {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild && r.Pinning && r.Want == 0 && r.Total == 0 })
	if r == nil {
		return nil
	}
	return found{sure(930, "pinning host memory", c.hostRemedy(r),
		c.about("pinning", "host memory was to be pinned")...).and(r.St.Quoted("and the driver refused: no memory of the GPU was requested"))}
}

func hostShared(c *view) found {
	l := c.about("shm",
		"processes hand tensors to each other in /dev/shm, which is memory of the host with a limit: "+
			"64 MiB in a container of Docker by default")
	if l == nil || c.fatal {
		return nil
	}
	return found{sure(920, "a full /dev/shm", largerShm, l...)}
}

var largerShm = steps(
	"make it larger: docker run --shm-size 8g (or --ipc host); in Kubernetes an emptyDir with medium: Memory at /dev/shm",
	"or use fewer loader workers: none at all shows whether that is it")

// killers are those that end a process for memory, by a word of their lines.
var killers = []struct{ word, name string }{
	{"oomd", "systemd-oomd"}, {"earlyoom", "earlyoom"}, {"raylet", "Ray's memory monitor"}, {"ray", "Ray's memory monitor"},
	{"The node was low on resource", "the kubelet"}, {"(tasks / actors)", "Ray's memory monitor"}, {"evicted", "the kubelet"},
	{"kubelet", "the kubelet"}, {"slurmstepd", "Slurm"},
}

// hostKilled finds who killed the process, and whether a container's limit or the machine was
// the wall. The kernel says so by its constraint, or by the words before "Killed process".
func hostKilled(c *view) found {
	killer, raise := "the kernel", ""
	container, machine := false, false
	var mine *statement.Statement
	for _, st := range c.Statements() {
		if st.Topic("killed") == nil || c.killOfAnother(st) {
			continue
		}
		mine = st
		if _, after, ok := strings.Cut(st.Text, "constraint="); ok {
			group := strings.HasPrefix(after, "CONSTRAINT_MEMCG")
			container, machine = container || group, machine || !group
		} else {
			container = container || st.HasAny("oomkilled", "cgroup") || strings.Contains(st.Text, "OOMKilled")
			machine = machine || strings.HasPrefix(st.Text, "Out of memory: Kill")
		}
		switch {
		case st.HasAny("oomkilled", "kubepods", "kubelet", "evicted") || strings.Contains(st.Text, "OOMKilled"):
			raise = "resources.limits.memory of the pod"
		case st.HasAny("slurmstepd", "slurm"):
			raise = "--mem of the job (sbatch, srun)"
		case strings.Contains(st.Text, "/docker"):
			raise = "docker run --memory"
		}
		for _, k := range killers {
			if st.Words[k.word] || strings.Contains(st.Text, k.word) {
				killer = k.name
				break
			}
		}
	}
	reading, remedy := killer+" killed the process for lack of host memory", c.moreHost(raise)
	switch {
	case container && !machine && killer == "the kernel":
		reading = killer + " killed the process at its container's limit of host memory"
	case killer == "Ray's memory monitor":
		reading = killer + " killed the process because the node's memory passed the monitor's threshold"
		remedy = steps("run fewer tasks at a time on the node, or ask for more of it for each: @ray.remote(num_cpus=..., memory=BYTES)",
			"the monitor kills at RAY_memory_usage_threshold, 0.95 of the node's memory by default; above it the kernel kills instead")
	case machine || killer == "the kubelet" || killer == "systemd-oomd" || killer == "earlyoom":
		reading, remedy = killer+" killed the process because the machine had no memory left", c.moreMachine()
		if killer == "the kubelet" {
			remedy = steps(
				"let the pod request what it uses (resources.requests.memory), so that it comes to a node that has it; " +
					"those that use more than they request are evicted first").step(remedy.Steps...)
		}
	}
	if mine == nil {
		return nil
	}
	x := sure(910, killer+" killed it", remedy, mine.Quoted(reading))
	if limit, st := c.podLimit(mine); container && st != nil {
		return found{x.and(quote(st, "the limit is %v", limit))}
	}
	if killer == "Ray's memory monitor" {
		return found{c.onNode(x)}
	}
	return found{x}
}

// podLimit is the container's limit of memory, which kubectl describe shows below the state, and its line.
func (c *view) podLimit(killed *statement.Statement) (uint64, *statement.Statement) {
	for _, st := range c.Statements() {
		near := st.Line > killed.Line && st.Line <= killed.Line+12
		if near && len(st.Amounts) == 1 && strings.HasPrefix(strings.TrimSpace(st.Text), "memory:") {
			return st.Amounts[0].N, st
		}
	}
	return 0, nil
}

// rayNode is what Ray says of a node's memory, in GiB that it calls GB, and of the task that it killed.
var rayNode = regexp.MustCompile(`memory used=([\d.]+) ?GB\) was running was ([\d.]+) ?GB / ([\d.]+) ?GB`)

// onNode adds what Ray says of the node. A task that holds little of what is in use is not who fills it.
func (c *view) onNode(x Explanation) Explanation {
	for _, st := range c.Statements() {
		m := rayNode.FindStringSubmatch(statement.Clipped64(st.Text))
		if m == nil {
			continue
		}
		task, used, total := statement.SizeOf(m[1]+" GiB"), statement.SizeOf(m[2]+" GiB"), statement.SizeOf(m[3]+" GiB")
		x = x.and(quote(st, "the node had %v of %v in use, and the task that was killed %v", used, total, task))
		if task < used/4 {
			x.Remedy = steps("see who has the rest: the list below that line (Top 10 memory users). What is no task of Ray's no setting " +
				"of Ray's makes smaller: end it, or keep it on another node").step(x.Remedy.Steps...)
		}
		break
	}
	return x
}

// killed is the name of a process that the kernel killed.
var killed = regexp.MustCompile(`[Kk]illed process \d+,? \(([^)]+)\)`)

// killOfAnother reports whether a line tells the end of another program: this one failed by an exception of
// Python's after it, and it is no Python that was killed.
func (c *view) killOfAnother(st *statement.Statement) bool {
	m, e := killed.FindStringSubmatch(st.Text), c.LastError
	if m == nil || strings.Contains(m[1], "python") || e == nil {
		return false
	}
	return e.Line > st.Line && e.Weight() == 3
}

func hostDriver(c *view) found {
	l := c.about("nvrm", "the driver's kernel module could not get memory, of the host as far as the line says")
	if l == nil {
		return nil
	}
	return found{sure(904, "the kernel's driver",
		c.moreMachine().step("if the host has memory left, update the driver: dmesg says who was refused"),
		l...)}
}

func hostCPU(c *view) found {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	if r == nil {
		return nil
	}
	var l []statement.Evidence
	switch {
	case c.About("cpu") != nil:
		l = append(c.about("cpu", "the device is the CPU, and its memory the host's"),
			r.St.Quoted("the memory was refused there"))
	case strings.EqualFold(c.Env["JAX_PLATFORMS"], "cpu") || strings.EqualFold(c.Env["JAX_PLATFORM_NAME"], "cpu"):
		l = one(r.St, "JAX_PLATFORMS=cpu: the device is the CPU, and its memory the host's")
	default:
		return nil
	}
	x := sure(900, "JAX on the CPU", c.moreHost(""), l...)
	x.Alone = true
	return found{x}
}

// whatTookIt is how to see who took the host's memory.
func (c *view) whatTookIt() string {
	if c.Place.Windows && !c.Place.WSL {
		return "see what took it: Task Manager, Details, Commit size"
	}
	switch {
	case c.Place.Slurm:
		return "see how much it took: seff JOBID, or sacct -j JOBID -o JobID,MaxRSS,ReqMem,State"
	case c.Place.Kubernetes:
		return "see how much it took, and its limit: kubectl describe pod POD; kubectl top pod POD --containers"
	}
	return "see what took it: dmesg | grep -i -A20 oom" + when(c.Place.Training || c.Place.Loader,
		"; the number of loader workers, and whole datasets in memory, are the usual ones")
}

// moreMachine is for a machine that was full.
func (c *view) moreMachine() Remedy {
	return steps(when(c.Place.Loader, "use fewer loader workers: none at all shows whether that is it"),
		"run less beside it, or use a machine with more memory: the whole machine was full, and not a container's share", c.whatTookIt())
}

// moreHost raises the limit of host memory, where the log shows that there is one.
func (c *view) moreHost(raise string) Remedy {
	p := c.Place
	switch {
	case raise != "":
	case p.Slurm:
		raise = "--mem of the job (sbatch, srun)"
	case p.Kubernetes:
		raise = "resources.limits.memory of the pod"
	case p.Container:
		raise = "docker run --memory"
	}
	first := "see what the host has left while it runs: free -h. Let the program take less of it, or use a machine with more, or swap; a " +
		"container or a job may have a limit of its own"
	switch {
	case raise != "":
		first = "raise the limit of host memory: " + raise + "; or use a machine with more"
	case p.WSL:
		first = "give WSL more of the host's memory (memory= in .wslconfig, then wsl --shutdown), or let the program take less"
	case p.Windows:
		first = "make Windows' paging file larger, or end other programs: System, Advanced system settings, Performance, Advanced, Virtual memory"
	}
	var less []string
	if c.Uses("deepspeed") {
		less = c.advise("host").Steps
	}
	return steps(when(p.Loader, "use fewer loader workers: none at all shows whether that is it")).step(less...).step(first, c.whatTookIt())
}

// hostRemedy is what to do about a refusal of the host's memory, by what was asked for.
func (c *view) hostRemedy(r *account.Refusal) Remedy {
	st := r.St
	pinned := r.Pinning || st.HasAny("pinned", "pin", "bfc", "alloc", "malloc", "register") && st.HasAny("pinned", "bfc", "host", "register")
	switch {
	case st.Topic("shm") != nil:
		return largerShm
	case st.Words["heap"]:
		return steps("raise the limit of the heap: -Xmx for Java, NODE_OPTIONS=--max-old-space-size=MIB for JavaScript",
			"keep that below the memory of the machine, and of its container if it has a limit")
	case st.Words["paging"]:
		return steps("make Windows' paging file larger: System, Advanced system settings, Performance, Advanced, Virtual memory",
			"start fewer processes"+when(c.Place.Loader || c.Place.Training, ", loader workers among them")+": each loads the libraries once more")
	case st.HasAny("locked", "ibv"):
		return steps(
			"raise the limit of locked memory, which InfiniBand pins: ulimit -l unlimited; docker run --ulimit memlock=-1; " +
				"in Slurm PropagateResourceLimitsExcept=MEMLOCK")
	case pinned:
		remedy := steps("look at the host's memory, not at the GPU's: free -h; ulimit -l; in WSL also .wslconfig",
			"keep less on the host: smaller prefetch buffers, fewer loader workers, no pinned copies of whole datasets")
		if c.Uses("tensorflow") && st.Words["bfc"] {
			remedy = remedy.set("TF_GPU_HOST_MEM_LIMIT_IN_MB", "131072",
				"TensorFlow's limit on pinned host memory; up to TensorFlow 1.13 its name is TF_CUDA_HOST_MEM_LIMIT_IN_MB")
		}
		if xla := c.Uses("jax") && st.Words["out"] && st.Words["host"]; xla && !st.Words["cuda"] && !(c.Uses("tensorflow") && st.Words["bfc"]) {
			remedy = remedy.set("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "128",
				"XLA's limit on pinned host memory for each GPU; the default is 64")
		}
		return remedy
	}
	if r := c.advise("host"); len(r.Steps) > 0 {
		return r
	}
	return c.moreHost("")
}
