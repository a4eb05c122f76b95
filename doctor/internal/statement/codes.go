package statement

// Codes, the names of errors that a text has by the vocabulary: what each is about, and whether
// later errors follow from it.

import (
	"slices"
	"strings"

	"gpumem/doctor/internal/vocabulary"
)

// refusedArgument is what a status says that many failures have.
const refusedArgument = "an argument that was refused"

// failures are kinds of errors that are none of memory, in words.
var failures = map[vocabulary.Kind]string{
	vocabulary.AboutAddress: "an illegal address", vocabulary.AboutAssert: "an assertion in a kernel",
	vocabulary.AboutTimeout: "a timeout", vocabulary.AboutLaunch: "a failed launch",
	vocabulary.AboutDevice: "a device that is missing, lost or faulty", vocabulary.AboutDriver: "a driver that does not fit",
	vocabulary.AboutDisk:     "a full disk",
	vocabulary.AboutArgument: refusedArgument, vocabulary.AboutLimit: "a limit on something other than memory",
}

// plain are families whose names stand in logs that did not fail for them.
var plain = []vocabulary.Family{"common", "exception", "errno", "signal", "exit status", "Linux", "absl", "Kubernetes", "Slurm",
	"Win32", "NTSTATUS", "NVML"}

// saysBusy are the families by whose names a GPU is in use by others.
var saysBusy = []vocabulary.Family{"cudaError", "CUresult", "hipError", "Kubernetes"}

// used are what runs out besides memory, in words.
var used = map[vocabulary.Resource]string{
	vocabulary.Disk: "a full disk", vocabulary.Files: "too many open files",
	vocabulary.Processes: "too many processes or threads", vocabulary.Sessions: "too many sessions",
	vocabulary.Handles: "too many handles",
}

// readCodes looks the text up.
func (st *Statement) readCodes(text string) {
	st.Codes = vocabulary.Find(text)
	for _, h := range st.Codes {
		name := failures[h.Row.Kind]
		if what := used[h.Row.Resource]; what != "" && h.Row.Kind != vocabulary.AboutMemory && h.Row.Kind != vocabulary.Open {
			name = what
		}
		telling := slices.Contains([]vocabulary.Kind{vocabulary.AboutDevice, vocabulary.AboutTimeout, vocabulary.AboutLaunch,
			vocabulary.AboutDriver}, h.Row.Kind)
		anyone := h.Row.Family == "common" || h.Row.Family == "exception"
		foreign := slices.Contains(plain, h.Row.Family) && used[h.Row.Resource] == "" && !(anyone && telling)
		st.Sticky = st.Sticky || h.Row.Sticky && h.Row.Family != "Xid"
		switch {
		case h.Row.Kind == vocabulary.AboutBusy && h.Row.Family == "Kubernetes" && !strings.Contains(h.Row.Name, "gpu"):
			st.topic("other", "a scheduler that has no node for what the pod requests")
		case h.Row.Kind == vocabulary.AboutBusy && slices.Contains(saysBusy, h.Row.Family):
			st.topic("busy", string(h.Row.Layer))
		case h.Row.Kind == vocabulary.Open && h.Row.Resource == vocabulary.Sessions:
			st.topic("sessions", h.Row.Name)
		case h.Row.Kind == vocabulary.AboutCode && !foreign:
			st.topic("image", h.Row.Name)
		case h.Row.Name == "CUDA_ERROR_NO_DEVICE" || h.Row.Name == "cudaErrorNoDevice":
			st.topic("other", "no GPU")
		case name != "" && !foreign && h.Row.Fatal:
			st.topic("other", name)
		}
	}
	if slices.Contains(killedWords, strings.TrimSpace(st.Text)) {
		st.topic("sigkill", "")
	}
	if t := st.Topic("other"); t != nil && t.Name == "an assertion" {
		st.Sticky = true
	}
}

// killedWords are what shells of other languages print for SIGKILL, alone in its line.
var killedWords = []string{"已杀死", "已杀死 (核心已转储)", "已殺死", "Getötet", "Tué", "Processus arrêté", "Ucciso", "Morto",
	"Terminado (killed)", "Убито", "강제 종료", "強制終了"}

// topic adds a topic that the table did not find.
func (st *Statement) topic(id, name string) {
	if st.Topic(id) == nil {
		st.Topics = append(st.Topics, topic{Id: id, Name: name})
	}
}

// memoryCode reports whether the text names an error that is one of memory.
func (st *Statement) memoryCode() bool {
	return slices.ContainsFunc(st.Codes, func(h vocabulary.Hit) bool {
		return h.Row.Kind == vocabulary.AboutMemory && h.Row.Family != "common"
	})
}

// DeviceCode reports whether the text names an error that is one of the GPU's memory, or, where it
// does not say whose, one that a GPU's interface has.
func (st *Statement) DeviceCode() bool {
	return slices.ContainsFunc(st.Codes, func(h vocabulary.Hit) bool {
		ours := h.Row.Kind == vocabulary.AboutMemory || h.Row.Kind == vocabulary.Open
		return ours && h.Row.Resource != vocabulary.HostMemory && !slices.Contains(plain, h.Row.Family) && h.Row.Family != "NV_STATUS"
	})
}

// openCode reports whether it names an error that may be one of the GPU's memory, and of other resources.
func (st *Statement) openCode() bool {
	return slices.ContainsFunc(st.Codes, func(h vocabulary.Hit) bool {
		return h.Row.Kind == vocabulary.Open && h.Row.Resource == vocabulary.DeviceMemory && !slices.Contains(plain, h.Row.Family)
	})
}

// hostCode reports whether it names one of the host's memory, and none of the GPU's.
func (st *Statement) hostCode() bool {
	host := false
	for _, h := range st.Codes {
		switch {
		case h.Row.Kind != vocabulary.AboutMemory:
		case h.Row.Resource == vocabulary.HostMemory:
			host = true
		case h.Row.Resource == vocabulary.DeviceMemory:
			return false
		}
	}
	return host
}
