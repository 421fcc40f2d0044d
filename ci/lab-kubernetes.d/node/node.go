package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	gpus = corev1.ResourceName("nvidia.com/gpu")
	// How often a kubelet renews its lease.
	heartbeat = 10 * time.Second
	// The feature that the API server of 1.36 checks before it forwards a websocket instead of
	// translating it (pkg/registry/core/pod/rest/subresources.go).
	websockets = "ExtendWebSocketsToKubelet"
)

// NodeSpec is the wanted state of a node.
type NodeSpec struct {
	Name string `json:"name"`
	// GPUs as a device plugin offers them, or, with DRA, as a driver does.
	GPUs *int `json:"gpus"`
	DRA  bool `json:"dra"`
	// In addition to those that a kubelet and the feature discovery write.
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	// As `kubelet --register-with-taints`: present from the first moment.
	Taints []corev1.Taint `json:"taints"`
	Boot   string         `json:"boot"`
	Ready  *bool          `json:"ready"`
	// As a kubelet before 1.36: the API server translates websockets for it.
	OldKubelet bool `json:"old_kubelet"`
}

// Node is a node that this process simulates.
type Node struct {
	name, address string
	port          int32
	listener      net.Listener
	stop          context.CancelFunc

	mu    sync.Mutex
	uid   types.UID
	spec  NodeSpec
	gpus  int
	boot  string
	ready bool
}

// addressOf is a loopback address derived from the name: pods on different nodes can distinguish
// and find each other by it.
func addressOf(name string) string {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	sum := hash.Sum32()
	// Not 127.0.x.x, where other programs are.
	return fmt.Sprintf("127.%d.%d.%d", 16+sum%224, (sum>>8)%256, 1+(sum>>16)%254)
}

func (f *Fleet) add(ctx context.Context, spec NodeSpec) (Answer, error) {
	if spec.Name == "" {
		return Answer{}, fmt.Errorf("a node needs a name")
	}
	f.mu.Lock()
	taken := f.nodes[spec.Name] != nil
	f.mu.Unlock()
	if taken {
		return Answer{}, fmt.Errorf("node %s is here already", spec.Name)
	}
	node := &Node{name: spec.Name, address: addressOf(spec.Name), spec: spec, ready: true, boot: spec.Boot}
	if spec.GPUs != nil {
		node.gpus = *spec.GPUs
	}
	if spec.Ready != nil {
		node.ready = *spec.Ready
	}
	// Only root can show the pods of a node another boot than this machine's.
	if node.boot == "" && os.Geteuid() != 0 {
		if boot, err := os.ReadFile(bootID); err == nil {
			node.boot = strings.TrimSpace(string(boot))
		}
	}
	if node.boot == "" {
		node.boot = string(uuid.NewUUID())
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(node.address, "0"))
	if err != nil {
		return Answer{}, err
	}
	node.listener = listener
	node.port = int32(listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Handler: f.kubelet(), TLSConfig: f.certificate}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	if err := f.register(ctx, node); err != nil {
		listener.Close()
		return Answer{}, err
	}
	alive, stop := context.WithCancel(context.Background())
	node.stop = stop
	f.mu.Lock()
	f.nodes[spec.Name] = node
	f.mu.Unlock()
	// Pods that were bound to it before this process started.
	for _, seen := range f.pods.List() {
		if pod := seen.(*corev1.Pod); pod.Spec.NodeName == node.name {
			f.saw(pod)
		}
	}
	go f.keepAlive(alive, node)
	return Answer{Address: node.address, Boot: node.boot}, nil
}

// register creates the Node, or adopts an existing one, as a kubelet does.
func (f *Fleet) register(ctx context.Context, node *Node) error {
	labels := map[string]string{
		"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
	}
	if node.gpus > 0 {
		labels["nvidia.com/gpu.present"] = "true"
		labels["nvidia.com/gpu.count"] = strconv.Itoa(node.gpus)
		labels["nvidia.com/gpu.product"] = "NVIDIA-GB200"
	}
	maps.Copy(labels, node.spec.Labels)
	made, err := f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.name, Labels: labels, Annotations: node.spec.Annotations},
		Spec:       corev1.NodeSpec{Taints: node.spec.Taints, ProviderID: "lab:///" + node.name},
	}, metav1.CreateOptions{FieldManager: "lab-node"})
	if apierrors.IsAlreadyExists(err) {
		made, err = f.client.CoreV1().Nodes().Get(ctx, node.name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	node.uid = made.UID
	if err := f.report(ctx, node); err != nil {
		return err
	}
	return f.publish(ctx, node)
}

// report writes the status of a node, without the conditions of others.
func (f *Fleet) report(ctx context.Context, node *Node) error {
	node.mu.Lock()
	status := node.status()
	node.mu.Unlock()
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Nodes().Patch(ctx, node.name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{FieldManager: "lab-node"}, "status")
	return err
}

func (n *Node) status() corev1.NodeStatus {
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason,
			LastHeartbeatTime: now, LastTransitionTime: now}
	}
	ready := condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")
	if !n.ready {
		ready = condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady")
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	if n.gpus > 0 && !n.spec.DRA {
		capacity[gpus] = *resource.NewQuantity(int64(n.gpus), resource.DecimalSI)
	}
	status := corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		// No Hostname, which the API server would have to resolve.
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: n.port}},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
			ready,
		},
		NodeInfo: corev1.NodeSystemInfo{
			BootID: n.boot, MachineID: "lab-" + n.name, SystemUUID: "lab-" + n.name,
			KernelVersion: "lab", OSImage: "lab", OperatingSystem: "linux", Architecture: "amd64",
			ContainerRuntimeVersion: "lab://1", KubeletVersion: "v1.36.4", KubeProxyVersion: "",
		},
	}
	if !n.spec.OldKubelet {
		status.DeclaredFeatures = []string{websockets}
	}
	return status
}

// keepAlive renews the node's lease until its context ends.
func (f *Fleet) keepAlive(ctx context.Context, node *Node) {
	holder, seconds := node.name, int32(40)
	leases := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for {
		now := metav1.NewMicroTime(time.Now())
		lease, err := leases.Get(ctx, node.name, metav1.GetOptions{})
		switch {
		case err == nil:
			lease.Spec.RenewTime = &now
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		case apierrors.IsNotFound(err):
			owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.name, UID: node.uid}
			_, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: node.name, OwnerReferences: []metav1.OwnerReference{owner}},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds,
					RenewTime: &now},
			}, metav1.CreateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "lab node: lease of %s: %v\n", node.name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(heartbeat):
		}
	}
}

func (f *Fleet) set(ctx context.Context, node *Node, spec NodeSpec) (Answer, error) {
	node.mu.Lock()
	if spec.GPUs != nil {
		node.gpus = *spec.GPUs
	}
	if spec.Ready != nil {
		node.ready = *spec.Ready
	}
	if spec.Boot != "" {
		node.boot = spec.Boot
	}
	boot := node.boot
	node.mu.Unlock()
	return Answer{Address: node.address, Boot: boot}, f.report(ctx, node)
}

func (f *Fleet) reboot(ctx context.Context, node *Node, spec NodeSpec) (Answer, error) {
	f.killOn(node.name)
	if spec.Boot == "" {
		spec.Boot = string(uuid.NewUUID())
	}
	return f.set(ctx, node, spec)
}

func (f *Fleet) remove(ctx context.Context, node *Node) (Answer, error) {
	f.mu.Lock()
	delete(f.nodes, node.name)
	f.mu.Unlock()
	node.stop()
	node.listener.Close()
	f.killOn(node.name)
	err := f.client.CoreV1().Nodes().Delete(ctx, node.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return Answer{}, err
}
