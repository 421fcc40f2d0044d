// The test node of the Kubernetes lab: one process that simulates many nodes against a real API
// server. It registers them, keeps them alive, runs the pods bound to them as processes of this
// machine, and serves the part of a kubelet's API that the API server requests when a user
// executes a command in a pod or reads a log: through the code of Kubernetes itself
// (k8s.io/cri-streaming, and the stream translation of k8s.io/apiserver).
//
// It isolates nothing: pods see this machine's files, processes and network, and are root if this
// process is. Each node has a separate loopback address, which its pods share. Volumes are
// mounted for the pod alone, which only root can.
//
// It reads commands as lines of JSON on standard input and answers each with one line on standard
// output, in order:
//
//	{"do":"add","node":{"name":"a1","gpus":4,"labels":{},"taints":[],...}}
//	{"do":"reboot","node":{"name":"a1"}}      its processes die, it has another boot ID
//	{"do":"set","node":{"name":"a1",...}}     GPUs, boot, ready: what is named changes
//	{"do":"remove","node":{"name":"a1"}}      its processes die, the Node object goes
//	{"do":"pods"}                             what runs: node, pod, process
//
// When standard input ends, it ends with all its child processes; the Node objects stay and fall
// silent, as those of a machine without power. With -stay it ends by a signal only.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/cri-streaming/pkg/streaming"
)

// Fleet is the set of simulated nodes.
type Fleet struct {
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	// Folder of the pods' logs, and the mark of the lab in every process's environment.
	folder, mark string
	// In front of the PATH of pods; the default command of an image.
	path, entrypoint string
	certificate      *tls.Config
	streams          streaming.Server
	// Only one thread forks, and it never ends: children die with their thread.
	forks chan func()

	// All pods of the cluster, as last seen.
	pods cache.Store

	mu    sync.Mutex
	nodes map[string]*Node
	runs  map[types.UID]*Run
}

// Order is one line of standard input.
type Order struct {
	Do   string   `json:"do"`
	Node NodeSpec `json:"node"`
}

// Answer is one line of standard output.
type Answer struct {
	OK      bool      `json:"ok"`
	Error   string    `json:"error,omitempty"`
	Address string    `json:"address,omitempty"`
	Boot    string    `json:"boot,omitempty"`
	Pods    []Running `json:"pods,omitempty"`
}

// Running is a pod with its process.
type Running struct {
	Node      string `json:"node"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Process   int    `json:"process"`
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == inside {
		fmt.Fprintf(os.Stderr, "lab node: %v\n", enter(os.Args[2], os.Args[3:]))
		os.Exit(128)
	}
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of an administrator")
	clients := flag.String("clients", "", "certificate of the client that may use the kubelet's API: the API server's")
	folder := flag.String("folder", "", "where logs of pods go")
	mark := flag.String("mark", "", "value of FABRICGATE_LAB_AT in the environment of all processes")
	path := flag.String("path", "", "folders in front of the PATH of pods")
	entrypoint := flag.String("entrypoint", "", "program of images, for containers without a command")
	stay := flag.Bool("stay", false, "go on when standard input ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	fleet, err := start(ctx, *kubeconfig, *clients, *folder, *mark, *path, *entrypoint)
	if err != nil {
		fmt.Fprintf(os.Stderr, "lab node: %v\n", err)
		os.Exit(1)
	}
	go func() {
		fleet.obey(ctx)
		if !*stay {
			stop()
		}
	}()
	<-ctx.Done()
	fleet.end()
}

func start(ctx context.Context, kubeconfig, clients, folder, mark, path, entrypoint string) (*Fleet, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	// Many nodes send requests concurrently, each of which would have its own limit.
	config.QPS, config.Burst = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	fleet := &Fleet{
		config: config, client: client, dynamic: untyped,
		folder: folder, mark: mark, path: path, entrypoint: entrypoint,
		forks: make(chan func()),
		nodes: map[string]*Node{}, runs: map[types.UID]*Run{},
	}
	if fleet.certificate, err = certificate(clients); err != nil {
		return nil, err
	}
	if fleet.streams, err = streams(fleet); err != nil {
		return nil, err
	}
	go func() {
		runtime.LockOSThread()
		for fork := range fleet.forks {
			fork()
		}
	}()
	if err := fleet.watch(ctx); err != nil {
		return nil, err
	}
	return fleet, fleet.drive(ctx)
}

// watch follows all pods: their node's name identifies those of this process.
func (f *Fleet) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(f.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(seen any) { f.saw(seen.(*corev1.Pod)) },
		UpdateFunc: func(_, seen any) { f.saw(seen.(*corev1.Pod)) },
		DeleteFunc: func(seen any) {
			if unknown, ok := seen.(cache.DeletedFinalStateUnknown); ok {
				seen = unknown.Obj
			}
			if pod, ok := seen.(*corev1.Pod); ok {
				f.lost(pod)
			}
		},
	})
	if err != nil {
		return err
	}
	f.pods = informer.GetStore()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("the API server does not list its pods")
	}
	return nil
}

func (f *Fleet) obey(ctx context.Context) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var order Order
		answer, err := Answer{}, json.Unmarshal(lines.Bytes(), &order)
		if err == nil {
			answer, err = f.carryOut(ctx, order)
		}
		if err != nil {
			answer = Answer{Error: err.Error()}
		} else {
			answer.OK = true
		}
		if answers.Encode(answer) != nil {
			return
		}
	}
}

func (f *Fleet) carryOut(ctx context.Context, order Order) (Answer, error) {
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	switch order.Do {
	case "add":
		return f.add(ctx, order.Node)
	case "pods":
		return Answer{Pods: f.running()}, nil
	}
	f.mu.Lock()
	node := f.nodes[order.Node.Name]
	f.mu.Unlock()
	if node == nil {
		return Answer{}, fmt.Errorf("no node %q here", order.Node.Name)
	}
	switch order.Do {
	case "reboot":
		return f.reboot(ctx, node, order.Node)
	case "set":
		return f.set(ctx, node, order.Node)
	case "remove":
		return f.remove(ctx, node)
	}
	return Answer{}, fmt.Errorf("cannot %q", order.Do)
}

// end kills the running pods. The API server's record is left to other parts.
func (f *Fleet) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, run := range f.runs {
		run.kill()
	}
}
