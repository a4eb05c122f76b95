// Package cluster has the tests of gpumem/kube on a real container runtime and on a real
// cluster of one node, and a simulation of a cluster of thousands of GPUs under the real
// scheduler.
//
//   - build: the programs of the cluster, in the versions of go.mod
//   - node: runs them in private namespaces and leaves nothing behind
//   - image: images without a registry
//   - probe: the program of the test containers, which takes GPU memory as it is ordered
//   - cri: the calls of a kubelet to the runtime
//   - standin: an API server that has what the agent reads, for tests without a cluster
//   - schedule: the simulation
//
// It is a module apart, because its dependencies are all of Kubernetes, containerd and etcd.
// It imports nothing of gpumem: the programs under test are run, not linked, and what they
// did is read by code of its own.
//
// go test here runs what needs no cluster and TestRuntime, which needs root, runc and the
// programs of build. go test -run TestCluster -cluster runs the real cluster.
package cluster
