package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Run is a pod that is bound to one of this process's nodes, from its first sight until it is
// gone. It runs its init containers and then its only other one.
type Run struct {
	fleet *Fleet
	node  *Node
	uid   types.UID
	// Closed when its end is requested, and when the object is gone.
	deleting, gone chan struct{}

	mu       sync.Mutex
	pod      *corev1.Pod
	admitted bool
	finished bool
	// Nothing is started any more.
	dead        bool
	leader      *os.Process
	environment []string
	started     metav1.Time
	restarts    int32
	// It has a mount namespace.
	isMounted bool
	// Its readiness probe succeeded, or it has none.
	ready bool
	// The ComputeDomain it takes part in.
	domain     string
	last       *corev1.ContainerStateTerminated
	conditions map[corev1.PodConditionType]corev1.PodCondition
}

// saw records the API server's state of a pod.
func (f *Fleet) saw(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	node := f.nodes[pod.Spec.NodeName]
	if node == nil {
		return
	}
	run := f.runs[pod.UID]
	if run == nil {
		run = &Run{
			fleet: f, node: node, uid: pod.UID, pod: pod,
			deleting: make(chan struct{}), gone: make(chan struct{}),
			conditions: map[corev1.PodConditionType]corev1.PodCondition{},
		}
		f.runs[pod.UID] = run
		go run.live()
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	run.pod = pod
	if pod.DeletionTimestamp != nil {
		shut(run.deleting)
	}
}

// lost ends the processes of a deleted pod.
func (f *Fleet) lost(pod *corev1.Pod) {
	f.mu.Lock()
	run := f.runs[pod.UID]
	f.mu.Unlock()
	if run != nil {
		shut(run.gone)
	}
}

// shut closes a channel that one caller at a time closes once or more often.
func shut(closed chan struct{}) {
	select {
	case <-closed:
	default:
		close(closed)
	}
}

func (f *Fleet) find(namespace, name string) *Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, run := range f.runs {
		if pod := run.current(); pod.Namespace == namespace && pod.Name == name {
			return run
		}
	}
	return nil
}

func (f *Fleet) running() []Running {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Running
	for _, run := range f.runs {
		if process := run.process(); process != 0 {
			pod := run.current()
			all = append(all, Running{run.node.name, pod.Namespace, pod.Name, process})
		}
	}
	return all
}

func (f *Fleet) killOn(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, run := range f.runs {
		if run.node.name == node {
			run.sweep()
		}
	}
}

func (r *Run) current() *corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pod
}

func (r *Run) container() *corev1.Container { return &r.current().Spec.Containers[0] }

// live runs a pod on a node, to its end.
func (r *Run) live() {
	ctx, done := context.WithCancel(context.Background())
	defer done()
	go func() {
		<-r.gone
		done()
	}()
	defer func() {
		r.kill()
		r.fleet.mu.Lock()
		delete(r.fleet.runs, r.uid)
		r.fleet.mu.Unlock()
		shut(r.gone)
		_ = os.Remove(r.log())
		_ = os.RemoveAll(filepath.Join(r.fleet.folder, string(r.uid)))
	}()
	switch pod := r.current(); {
	case over(pod.Status.Phase):
	case pod.Status.Phase == corev1.PodRunning:
		// It ran under another process of the lab, which is dead, and so is the pod's.
		r.report(ctx, corev1.PodFailed, "", "", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", FinishedAt: metav1.Now(),
		}})
	default:
		r.work(ctx)
	}
	r.mu.Lock()
	r.finished = true
	r.mu.Unlock()
	r.kill()
	r.fleet.unprepare(ctx, r)
	select {
	case <-r.deleting:
		r.remove(ctx)
	case <-r.gone:
	}
}

func over(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// work runs the container as often as its restart policy requires.
func (r *Run) work(ctx context.Context) {
	if reason, message := r.admit(); reason != "" {
		r.report(ctx, corev1.PodFailed, reason, message, corev1.ContainerState{})
		return
	}
	r.started = metav1.Now()
	var deadline <-chan time.Time
	if seconds := r.current().Spec.ActiveDeadlineSeconds; seconds != nil {
		deadline = time.After(time.Duration(*seconds) * time.Second)
	}
	late := func(state corev1.ContainerState) {
		r.report(ctx, corev1.PodFailed, "DeadlineExceeded",
			"Pod was active on the node longer than the specified deadline", state)
	}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	// Until all requirements of the container exist; checked again every time.
	reported := ""
	for begin := time.Now(); ; {
		reason, message := r.wants(ctx, time.Since(begin))
		if reason == "" {
			break
		}
		if now := reason + message; now != reported {
			reported = now
			r.report(ctx, corev1.PodPending, "", "", waiting(reason, message))
		}
		select {
		case <-time.After(250 * time.Millisecond):
			continue
		case <-deadline:
			late(waiting(reason, message))
		case <-r.deleting:
			r.report(ctx, corev1.PodFailed, "", "", waiting(reason, message))
		case <-r.gone:
		}
		return
	}
	for index := range r.current().Spec.InitContainers {
		r.report(ctx, corev1.PodPending, "", "", waiting("PodInitializing", ""))
		ended, err := r.start(ctx, &r.current().Spec.InitContainers[index])
		code := 128
		if err != nil {
			fmt.Fprintf(os.Stderr, "lab node: %s: %v\n", r.current().Name, err)
		} else {
			select {
			case code = <-ended:
			case <-deadline:
				r.terminate(ended)
				late(waiting("PodInitializing", ""))
				return
			case <-r.deleting:
				code = r.terminate(ended)
			case <-r.gone:
				return
			}
		}
		r.sweep()
		// A real node retries as the policy requires.
		if code != 0 {
			r.report(ctx, corev1.PodFailed, "", fmt.Sprintf("initialisation ended with %d", code), waiting("PodInitializing", ""))
			return
		}
	}
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		begun := metav1.Now()
		asking, enough := context.WithCancel(ctx)
		ended, err := r.start(ctx, r.container())
		if err == nil {
			probe := r.container().ReadinessProbe
			probes := probe != nil && probe.HTTPGet != nil
			running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: begun}}
			r.setReady(!probes)
			r.report(ctx, corev1.PodRunning, "", "", running)
			if probes {
				go r.ask(asking, probe, running)
			}
		}
		expired, asked := false, false
		code := 128
		if err == nil {
			select {
			case code = <-ended:
			case <-deadline:
				expired = true
				code = r.terminate(ended)
			case <-r.deleting:
				asked = true
				code = r.terminate(ended)
			case <-r.gone:
			}
		}
		enough()
		r.sweep()
		if ctx.Err() != nil {
			return
		}
		last := &corev1.ContainerStateTerminated{
			ExitCode: int32(code), Reason: "Completed", StartedAt: begun, FinishedAt: metav1.Now(),
			ContainerID: "lab://" + string(r.uid),
		}
		if code != 0 {
			last.Reason = "Error"
		}
		if err != nil {
			last.Reason, last.Message = "StartError", err.Error()
		}
		state := corev1.ContainerState{Terminated: last}
		policy := r.current().Spec.RestartPolicy
		switch {
		case expired:
			late(state)
			return
		case asked || policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && code == 0:
			phase := corev1.PodSucceeded
			if code != 0 {
				phase = corev1.PodFailed
			}
			r.report(ctx, phase, "", "", state)
			return
		}
		r.last, r.restarts = last, r.restarts+1
		state = waiting("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container", pause))
		r.report(ctx, corev1.PodRunning, "", "", state)
		select {
		case <-time.After(pause):
		case <-deadline:
			late(state)
			return
		case <-r.deleting:
			r.report(ctx, corev1.PodFailed, "", "", corev1.ContainerState{Terminated: last})
			return
		case <-r.gone:
			return
		}
	}
}

// admit is a kubelet's own check of a pod that the scheduler, or another client,
// bound here: GPUs that do not exist are not assigned.
func (r *Run) admit() (string, string) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	used := int64(0)
	for _, other := range r.fleet.runs {
		other.mu.Lock()
		if other != r && other.node == r.node && other.admitted && !other.finished {
			used += requested(other.pod)
		}
		other.mu.Unlock()
	}
	r.node.mu.Lock()
	there := int64(r.node.gpus)
	r.node.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pod.Spec.Containers) > 1 {
		return "LabRunsOneContainer", "the lab's test node runs one container of a pod, after those that initialise it"
	}
	if wanted := requested(r.pod); wanted > 0 && wanted+used > there {
		return "OutOf" + string(gpus), fmt.Sprintf(
			"Pod was rejected: Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			gpus, wanted, used, there)
	}
	r.admitted = true
	return "", ""
}

func requested(pod *corev1.Pod) int64 {
	sum := int64(0)
	for _, container := range pod.Spec.Containers {
		amount := container.Resources.Requests[gpus]
		sum += amount.Value()
	}
	return sum
}

// wants returns the container's missing requirement, or nothing when all exist. The name of an
// image decides its fate: missing:* cannot be pulled, slow:N takes N seconds.
func (r *Run) wants(ctx context.Context, waited time.Duration) (string, string) {
	image := r.container().Image
	name, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	switch name {
	case "missing":
		if waited < 2*time.Second {
			return "ErrImagePull", fmt.Sprintf("failed to pull and unpack image %q: not found", image)
		}
		return "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q: not found", image)
	case "slow":
		seconds, err := strconv.Atoi(tag)
		if err != nil {
			seconds = 3
		}
		if waited < time.Duration(seconds)*time.Second {
			return "ContainerCreating", ""
		}
	}
	if reason := r.fleet.prepare(ctx, r); reason != "" {
		return "ContainerCreating", reason
	}
	return "", ""
}

// report writes the status, and retries while the server cannot accept it.
func (r *Run) report(ctx context.Context, phase corev1.PodPhase, reason, message string, state corev1.ContainerState) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": r.uid},
		"status":   r.status(phase, reason, message, state),
	})
	if err != nil {
		panic(err)
	}
	pod := r.current()
	for ctx.Err() == nil {
		if r.silent() {
			return
		}
		_, err := r.fleet.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{FieldManager: "lab-node"}, "status")
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		fmt.Fprintf(os.Stderr, "lab node: status of pod %s/%s: %v\n", pod.Namespace, pod.Name, err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		if apierrors.IsInvalid(err) {
			return
		}
	}
}

func (r *Run) status(phase corev1.PodPhase, reason, message string, state corev1.ContainerState) corev1.PodStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	up := phase == corev1.PodRunning && state.Running != nil && r.ready
	cause := ""
	if phase == corev1.PodSucceeded {
		cause = "PodCompleted"
	} else if !up {
		cause = "ContainersNotReady"
	}
	now := metav1.Now()
	var conditions []corev1.PodCondition
	note := func(kind corev1.PodConditionType, holds bool, cause string) {
		status := corev1.ConditionFalse
		if holds {
			status = corev1.ConditionTrue
		}
		before, known := r.conditions[kind]
		if !known || before.Status != status {
			before.LastTransitionTime = now
		}
		before.Type, before.Status, before.Reason = kind, status, cause
		r.conditions[kind] = before
		conditions = append(conditions, before)
	}
	note(corev1.PodReadyToStartContainers, state.Running != nil || state.Terminated != nil && !over(phase), "")
	note(corev1.PodInitialized, true, "")
	note(corev1.ContainersReady, up, cause)
	note(corev1.PodReady, up, cause)
	status := corev1.PodStatus{Phase: phase, Reason: reason, Message: message, Conditions: conditions,
		HostIP: r.node.address, HostIPs: []corev1.HostIP{{IP: r.node.address}}}
	if !r.started.IsZero() {
		status.StartTime = &r.started
	}
	if state != (corev1.ContainerState{}) {
		container := r.pod.Spec.Containers[0]
		isUp := state.Running != nil
		one := corev1.ContainerStatus{Name: container.Name, Image: container.Image, State: state,
			Ready: up, Started: &isUp, RestartCount: r.restarts}
		if isUp || state.Terminated != nil {
			one.ImageID, one.ContainerID = "lab://"+container.Image, "lab://"+string(r.uid)
			status.PodIP, status.PodIPs = r.node.address, []corev1.PodIP{{IP: r.node.address}}
		}
		if r.last != nil {
			one.LastTerminationState.Terminated = r.last
		}
		status.ContainerStatuses = []corev1.ContainerStatus{one}
	}
	return status
}

func (r *Run) setReady(ready bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.ready != ready
	r.ready = ready
	return changed
}

// ask is a readiness probe over HTTP, for as long as the container runs.
func (r *Run) ask(ctx context.Context, probe *corev1.Probe, running corev1.ContainerState) {
	port := probe.HTTPGet.Port.IntValue()
	for _, named := range r.container().Ports {
		if named.Name == probe.HTTPGet.Port.StrVal && named.Name != "" {
			port = int(named.ContainerPort)
		}
	}
	address := fmt.Sprintf("http://%s/%s", net.JoinHostPort(r.node.address, strconv.Itoa(port)),
		strings.TrimPrefix(probe.HTTPGet.Path, "/"))
	client := &http.Client{Timeout: time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(max(probe.PeriodSeconds, 1)) * time.Second):
		}
		answer, err := client.Get(address)
		good := err == nil && answer.StatusCode >= 200 && answer.StatusCode < 400
		if err == nil {
			answer.Body.Close()
		}
		if r.process() == 0 || ctx.Err() != nil {
			return
		}
		if r.setReady(good) {
			r.report(ctx, corev1.PodRunning, "", "", running)
		}
	}
}

// remove is the last report on a pod: the kubelet's, when no process of it is left on the node.
func (r *Run) remove(ctx context.Context) {
	pod, zero := r.current(), int64(0)
	for ctx.Err() == nil && !r.silent() {
		err := r.fleet.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &r.uid},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
