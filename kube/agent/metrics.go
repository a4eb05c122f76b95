// Figures for Prometheus.

package agent

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are what has happened since the agent's start.
type counts struct {
	given, refused, ignored, outOfLease, past atomic.Uint64
}

var (
	labels       = []string{"namespace", "pod", "container", "uuid", "share"}
	leaseDesc    = prometheus.NewDesc("gpumem_lease_bytes", "Bytes of GPU memory that the container's lease has, together with all containers of the share.", labels, nil)
	heldDesc     = prometheus.NewDesc("gpumem_held_bytes", "Bytes of GPU memory that the container's processes hold of its lease.", labels, nil)
	useDesc      = prometheus.NewDesc("gpumem_in_use_bytes", "Bytes that its programs use, of what its processes' pools hold.", labels, nil)
	peakDesc     = prometheus.NewDesc("gpumem_peak_held_bytes", "Sum over its processes of the most that each has held.", labels, nil)
	procDesc     = prometheus.NewDesc("gpumem_processes", "Processes of the container that have joined the lease.", labels, nil)
	shareDesc    = prometheus.NewDesc("gpumem_share_held_bytes", "Bytes that all containers of the share hold together.", []string{"uuid", "share"}, nil)
	totalDesc    = prometheus.NewDesc("gpumem_gpu_memory_bytes", "Bytes of memory of a GPU that has leases or is published here.", []string{"uuid"}, nil)
	leasedDesc   = prometheus.NewDesc("gpumem_gpu_leased_bytes", "Bytes of the GPU's memory that its leases have.", []string{"uuid"}, nil)
	deniedDesc   = prometheus.NewDesc("gpumem_share_refused_requests_total", "Requests for memory that the share's ledger has refused.", []string{"uuid", "share"}, nil)
	givenDesc    = prometheus.NewDesc("gpumem_containers_leased_total", "Containers that were created with a lease.", nil, nil)
	refusedDesc  = prometheus.NewDesc("gpumem_containers_refused_total", "Containers that were not created.", nil, nil)
	ignoredDesc  = prometheus.NewDesc("gpumem_containers_without_lease_total", "Containers that were found running without the lease of their claim.", nil, nil)
	pastDesc     = prometheus.NewDesc("gpumem_programs_past_library_total", "Programs that were found using a GPU without the library, in containers with a lease.", nil, nil)
	enforcedDesc = prometheus.NewDesc("gpumem_enforced", "1 if claims are enforced on this node, as its condition GPUMemoryEnforced says.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (a *Agent) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leaseDesc, heldDesc, useDesc, peakDesc, procDesc, shareDesc, totalDesc, leasedDesc, deniedDesc, givenDesc, refusedDesc, ignoredDesc, pastDesc, enforcedDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v uint64, values ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), values...)
	}
	counter := func(d *prometheus.Desc, v uint64, values ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), values...)
	}
	ids := map[string]bool{}
	a.books.all(func(acc *account) {
		for id := range acc.members {
			ids[id] = true
		}
	})
	in := byInside(processes(a.cfg.Proc, ids))
	totals, leased := map[string]uint64{}, map[string]uint64{}
	for _, g := range a.cfg.GPUs {
		if st, err := g.Meter.Status(); err == nil {
			totals[g.UUID] = st.Total
		}
	}
	a.books.all(func(acc *account) {
		share := strings.Join(acc.Shares, "+")
		totals[acc.UUID] = acc.Total
		leased[acc.UUID] += acc.Bytes
		if acc.ledger == nil {
			return
		}
		gauge(shareDesc, acc.holds(), acc.UUID, share)
		n, _ := acc.ledger.Refusals()
		counter(deniedDesc, n, acc.UUID, share)
		type sum struct{ held, use, peak, processes uint64 }
		of := map[string]sum{}
		for _, f := range acc.ledger.Members() {
			k := inside{f.PID, f.Start}
			i := slices.IndexFunc(in[k], func(p process) bool { _, ok := acc.members[p.container]; return ok })
			id := ""
			if i >= 0 { // and the next one that is like it is another of the account's
				id = in[k][i].container
				in[k] = slices.Delete(in[k], i, i+1)
			}
			s := of[id]
			of[id] = sum{s.held + f.Sum(), s.use + f.InUse, s.peak + f.PeakHeld, s.processes + 1}
		}
		// Two containers have the same labels where a pod was made again under its name and
		// the old one is not gone yet.
		byLabels := map[[3]string]sum{}
		for _, m := range acc.sortedMembers() {
			l := [3]string{m.pod.namespace, m.pod.name, m.Name}
			s, t := of[m.ID], byLabels[l]
			byLabels[l] = sum{s.held + t.held, s.use + t.use, s.peak + t.peak, s.processes + t.processes}
		}
		for k, s := range byLabels {
			l := []string{k[0], k[1], k[2], acc.UUID, share}
			gauge(leaseDesc, acc.Bytes, l...)
			gauge(heldDesc, s.held, l...)
			gauge(useDesc, s.use, l...)
			gauge(peakDesc, s.peak, l...)
			gauge(procDesc, s.processes, l...)
		}
	})
	for uuid, total := range totals {
		gauge(totalDesc, total, uuid)
		gauge(leasedDesc, leased[uuid], uuid)
	}
	counter(givenDesc, a.counts.given.Load())
	counter(refusedDesc, a.counts.refused.Load())
	counter(ignoredDesc, a.counts.ignored.Load())
	counter(pastDesc, a.counts.past.Load())
	enforced := uint64(0)
	if a.status.enforced() {
		enforced = 1
	}
	gauge(enforcedDesc, enforced)
}
