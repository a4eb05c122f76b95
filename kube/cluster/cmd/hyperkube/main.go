// Command hyperkube is all programs of a Kubernetes cluster in one binary: the store, the
// API server, the scheduler, the controllers and the kubelet. One binary is linked once,
// where five would take five times the minutes and the disk.
//
//	hyperkube etcd FOLDER CLIENT-URL PEER-URL
//	hyperkube apiserver|scheduler|controllers|kubelet [FLAG]...
//
// The flags are Kubernetes' own.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // counts the requests of each
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// commands makes the command of each program. They read os.Args.
var commands = map[string]func() *cobra.Command{
	"apiserver":   apiserver.NewAPIServerCommand,
	"scheduler":   func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"controllers": controllers.NewControllerManagerCommand,
	"kubelet":     func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	name := os.Args[1]
	os.Args = append(os.Args[:1:1], os.Args[2:]...)
	if name == "etcd" {
		if len(os.Args) != 4 {
			usage()
		}
		if err := etcd(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "hyperkube etcd:", err)
			os.Exit(1)
		}
		return
	}
	command, ok := commands[name]
	if !ok {
		usage()
	}
	os.Exit(cli.Run(command()))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: hyperkube etcd FOLDER CLIENT-URL PEER-URL\n       hyperkube apiserver|scheduler|controllers|kubelet [FLAG]...")
	os.Exit(2)
}

// etcd runs a store of one member until it gets SIGTERM or SIGINT. It does not wait for
// the disk: the clusters of tests end with the machine.
func etcd(folder, client, peer string) error {
	c := embed.NewConfig()
	c.Dir, c.UnsafeNoFsync, c.LogLevel = folder, true, "error"
	// A simulation of 10,000 claims writes more than the 2 GiB that are allowed otherwise.
	c.QuotaBackendBytes = 8 << 30
	clientURL, err := url.Parse(client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(peer)
	if err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-stop:
		return nil
	case err := <-e.Err():
		return err
	}
}
