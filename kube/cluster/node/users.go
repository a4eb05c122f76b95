package node

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// User is who asks the API server.
type User string

// The users of the cluster. Agent is the service account of the agent, with the rights that
// its manifests give it.
const (
	Admin User = "admin"
	Agent User = "agent"
)

// AgentAccount is the service account that Agent is, as namespace and name.
const (
	AgentNamespace = "gpumem"
	AgentName      = "gpumem-kube"
)

// users are the names and groups by which the API server knows them.
var users = []struct {
	user         User
	name, groups string
}{
	{Admin, "admin", "system:masters"},
	{Agent, "system:serviceaccount:" + AgentNamespace + ":" + AgentName, "system:serviceaccounts,system:serviceaccounts:" + AgentNamespace + ",system:authenticated"},
	{"kubelet", "system:node:" + Name, "system:nodes"},
	{"scheduler", "system:kube-scheduler", ""},
	{"controllers", "system:kube-controller-manager", ""},
}

// Kubeconfig returns the file with which a user reaches the API server: a User, or a
// program of the node.
func Kubeconfig(user string) string { return file(user + ".conf") }

// Config returns how a user reaches the API server.
func (n *Node) Config(u User) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(string(u)))
	if err != nil {
		return nil, err
	}
	c.QPS = -1 // tests do not wait for themselves
	return c, nil
}

// Client returns a client for a user.
func (n *Node) Client(u User) (*kubernetes.Clientset, error) {
	c, err := n.Config(u)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(c)
}

// writeUsers writes the list of users for the API server and a file for each of them.
func writeUsers() error {
	var list string
	for i, u := range users {
		list += fmt.Sprintf("%s-token,%s,%d,%q\n", u.user, u.name, i+1, u.groups)
		config := clientcmdapi.NewConfig()
		config.Clusters["node"] = &clientcmdapi.Cluster{Server: server, InsecureSkipTLSVerify: true}
		config.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: string(u.user) + "-token"}
		config.Contexts["node"] = &clientcmdapi.Context{Cluster: "node", AuthInfo: "user"}
		config.CurrentContext = "node"
		if err := clientcmd.WriteToFile(*config, Kubeconfig(string(u.user))); err != nil {
			return err
		}
	}
	return os.WriteFile(file("tokens.csv"), []byte(list), 0o600)
}

// writeKeys writes the keys that sign the tokens of service accounts, once.
func writeKeys() error {
	private, public := file("accounts.key"), file("accounts.pub")
	if _, err := os.Stat(private); err == nil {
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	for path, block := range map[string]*pem.Block{
		private: {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
		public:  {Type: "PUBLIC KEY", Bytes: der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("keys in %s: %w", filepath.Dir(path), err)
		}
	}
	return nil
}
