package cluster

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"gpumem/kube/cluster/node"
)

// auditFlags has the API server write down every request of the agent.
func auditFlags(t *testing.T) []string {
	t.Helper()
	policy := `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ["system:serviceaccount:` + node.AgentNamespace + `:` + node.AgentName + `"]}
- {level: None}
`
	if err := os.WriteFile(at("audit.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--audit-policy-file=" + at("audit.yaml"), "--audit-log-path=" + at("log", "audit.log")}
}

// requests returns what the agent has asked of the API server so far, as "VERB RESOURCE".
func requests(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(at("log", "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		var e struct {
			Verb      string
			ObjectRef struct{ Resource, Subresource string }
		}
		if json.Unmarshal([]byte(line), &e) == nil {
			list = append(list, strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/"))
		}
	}
	return list
}

// idle counts what the agent asks of the API server in a minute in which a pod runs and
// nothing changes.
func idle(l *lab, _ int) {
	l.create(labPod{name: "steady", requests: one(3 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/never"}}})
	l.waitLine("steady", "c0", "await")
	// What the start of the pod caused is written by then.
	before := len(requests(l.T))
	pause(l, 10*time.Second)
	settled := len(requests(l.T))
	pause(l, time.Minute)
	after := requests(l.T)
	writes := map[string]int{}
	for _, r := range after[settled:] {
		writes[r]++
		if verb, _, _ := strings.Cut(r, " "); verb != "get" && verb != "list" && verb != "watch" {
			l.Errorf("the agent wrote while nothing changed: %s", r)
		}
	}
	all := map[string]int{}
	for _, r := range after {
		all[r]++
	}
	l.Logf("requests of the agent: %d in the 10 s after a pod's start, then in a minute %v; since the cluster's start %v", settled-before, writes, all)
}

// pause lets time pass that is measured.
func pause(l *lab, d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
		l.Fatal(l.ctx.Err())
	}
}
