package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilexec "k8s.io/utils/exec"
)

// Mark of pods' processes, by which they are found in any state.
const podMark = "FABRICGATE_LAB_POD="

func (r *Run) log() string { return filepath.Join(r.fleet.folder, string(r.uid)+".log") }

// process is the first one of the container, 0 where none runs.
func (r *Run) process() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader == nil {
		return 0
	}
	return r.leader.Pid
}

func (r *Run) silent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead && !r.finished
}

// fork starts a process in a new session that dies with this one.
func (f *Fleet) fork(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Setsid, command.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	done := make(chan error)
	f.forks <- func() { done <- command.Start() }
	return <-done
}

// start runs a container's command. Its exit code comes through the channel.
func (r *Run) start(ctx context.Context, container *corev1.Container) (<-chan int, error) {
	environment, err := r.variables(ctx, container)
	if err != nil {
		return nil, err
	}
	words := slices.Concat(container.Command, container.Args)
	if len(container.Command) == 0 {
		words = slices.Concat([]string{r.fleet.entrypoint}, container.Args)
	}
	list := listed(environment)
	for at := range words {
		words[at] = expanded(words[at], environment)
	}
	log, err := os.OpenFile(r.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command, err := program(words, environment["PATH"])
	if err != nil {
		return nil, err
	}
	command.Env, command.Dir, command.Stdout, command.Stderr = list, "/", log, log
	if container.WorkingDir != "" {
		command.Dir = container.WorkingDir
	}
	if err := r.mounted(ctx, container, command); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return nil, errors.New("the node is going down")
	}
	if err := r.fleet.fork(command); err != nil {
		return nil, err
	}
	if command.Args[0] == inside {
		settled(command.Process.Pid)
	}
	r.leader, r.environment = command.Process, list
	ended := make(chan int, 1)
	go func() {
		code := exitCode(command.Wait())
		r.mu.Lock()
		r.leader = nil
		r.mu.Unlock()
		ended <- code
	}()
	return ended, nil
}

// program finds a command as a runtime does: in the container's PATH.
func program(words []string, path string) (*exec.Cmd, error) {
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("no command specified")
	}
	found := words[0]
	if !strings.Contains(found, "/") {
		found = ""
		for _, folder := range filepath.SplitList(path) {
			at := filepath.Join(folder, words[0])
			if about, err := os.Stat(at); err == nil && about.Mode().IsRegular() && about.Mode()&0o111 != 0 {
				found = at
				break
			}
		}
	}
	if found == "" {
		return nil, fmt.Errorf("exec: %q: executable file not found in $PATH: unknown", words[0])
	}
	return &exec.Cmd{Path: found, Args: words}, nil
}

func exitCode(err error) int {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		if err != nil {
			return 255
		}
		return 0
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return ended.ExitCode()
}

// terminate sends SIGTERM, waits for the pod's grace period, and kills.
func (r *Run) terminate(ended <-chan int) int {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	pod := r.current()
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	r.mu.Lock()
	if r.leader != nil {
		_ = r.leader.Signal(syscall.SIGTERM)
	}
	r.mu.Unlock()
	select {
	case code := <-ended:
		return code
	case <-r.gone:
	case <-time.After(time.Duration(grace) * time.Second):
	}
	r.sweep()
	return <-ended
}

// kill ends all processes of the pod, for good.
func (r *Run) kill() {
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
	r.sweep()
}

// sweep kills every process with the pod's mark, in any process group, as a container's end does;
// it repeats until no process is left that could have forked.
func (r *Run) sweep() {
	mark := []byte("\x00" + podMark + string(r.uid) + "\x00")
	for range 20 {
		found := false
		folders, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, folder := range folders {
			environment, err := os.ReadFile(folder)
			if err != nil || !bytes.Contains(slices.Concat([]byte{0}, environment), mark) {
				continue
			}
			if process, err := strconv.Atoi(filepath.Base(filepath.Dir(folder))); err == nil {
				found = true
				_ = syscall.Kill(process, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// exec runs one more command in the container. When the client disconnects it behaves as
// containerd does: standard input ends, output is discarded, the process continues.
func (r *Run) exec(words []string, in io.Reader, out, failed io.WriteCloser) error {
	r.mu.Lock()
	environment, leader, isMounted := r.environment, r.leader, r.isMounted
	r.mu.Unlock()
	if leader == nil {
		return errors.New("the container does not run")
	}
	path := ""
	for _, variable := range environment {
		if found, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = found
		}
	}
	command, err := program(words, path)
	if err != nil {
		return fmt.Errorf("failed to exec in container: %w", err)
	}
	if isMounted {
		words := slices.Concat([]string{"nsenter", "--target", strconv.Itoa(leader.Pid), "--mount", "--", command.Path}, words[1:])
		if command, err = program(words, os.Getenv("PATH")); err != nil {
			return err
		}
	}
	command.Env, command.Dir = environment, "/"
	var copied []chan struct{}
	var ours, theirs []*os.File
	defer func() {
		for _, file := range ours {
			file.Close()
		}
	}()
	output := func(to io.Writer) (*os.File, error) {
		if to == nil {
			return nil, nil
		}
		reads, writes, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ours, theirs = append(ours, reads), append(theirs, writes)
		done := make(chan struct{})
		copied = append(copied, done)
		go func() {
			defer close(done)
			if _, err := io.Copy(to, reads); err != nil {
				_, _ = io.Copy(io.Discard, reads)
			}
		}()
		return writes, nil
	}
	stdout, err := output(writerOrNil(out))
	if err != nil {
		return err
	}
	stderr, err := output(writerOrNil(failed))
	if err != nil {
		return err
	}
	if stdout != nil {
		command.Stdout = stdout
	}
	if stderr != nil {
		command.Stderr = stderr
	}
	var stdin *os.File
	if in != nil {
		reads, writes, err := os.Pipe()
		if err != nil {
			return err
		}
		theirs, stdin = append(theirs, reads), writes
		command.Stdin = reads
	}
	r.mu.Lock()
	err = errors.New("the container does not run")
	if !r.dead && r.leader != nil {
		err = r.fleet.fork(command)
	}
	r.mu.Unlock()
	for _, file := range theirs {
		file.Close()
	}
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, in)
			stdin.Close()
		}()
	}
	if err != nil {
		if stdin != nil {
			stdin.Close()
		}
		return fmt.Errorf("failed to exec in container: %w", err)
	}
	code := exitCode(command.Wait())
	// Its leftover processes may hold its streams open.
	patience := time.After(2 * time.Second)
	for _, done := range copied {
		select {
		case <-done:
		case <-patience:
		}
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: code}
	}
	return nil
}

// writerOrNil keeps a nil stream nil when it becomes an io.Writer.
func writerOrNil(stream io.WriteCloser) io.Writer {
	if stream == nil {
		return nil
	}
	return stream
}

// variables is the environment of the container, and only PATH of this process's.
func (r *Run) variables(ctx context.Context, container *corev1.Container) (map[string]string, error) {
	pod := r.current()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(r.fleet.config.Host, "https://"))
	if err != nil {
		return nil, err
	}
	path := os.Getenv("PATH")
	if r.fleet.path != "" {
		path = r.fleet.path + ":" + path
	}
	all := map[string]string{
		"PATH": path, "HOME": "/", "HOSTNAME": pod.Name,
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port,
		// Not set by a kubelet: a simulated fabric reads it in pods without other settings.
		"FABRICGATE_LAB_NODE": pod.Spec.NodeName,
		"FABRICGATE_LAB_AT":   r.fleet.mark,
	}
	for _, from := range container.EnvFrom {
		var values map[string]string
		switch {
		case from.ConfigMapRef != nil:
			values, err = r.configMap(ctx, from.ConfigMapRef.Name)
		case from.SecretRef != nil:
			values, err = r.secret(ctx, from.SecretRef.Name)
		}
		if err != nil {
			return nil, err
		}
		for key, value := range values {
			all[from.Prefix+key] = value
		}
	}
	for _, variable := range container.Env {
		value := expanded(variable.Value, all)
		if from := variable.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil:
				value, err = r.field(from.FieldRef.FieldPath)
			case from.ConfigMapKeyRef != nil:
				var values map[string]string
				values, err = r.configMap(ctx, from.ConfigMapKeyRef.Name)
				value = values[from.ConfigMapKeyRef.Key]
			case from.SecretKeyRef != nil:
				var values map[string]string
				values, err = r.secret(ctx, from.SecretKeyRef.Name)
				value = values[from.SecretKeyRef.Key]
			default:
				err = fmt.Errorf("environment variable %s: the lab knows no such source", variable.Name)
			}
			if err != nil {
				return nil, err
			}
		}
		all[variable.Name] = value
	}
	all[strings.TrimSuffix(podMark, "=")] = string(r.uid)
	return all, nil
}

func (r *Run) configMap(ctx context.Context, name string) (map[string]string, error) {
	found, err := r.fleet.client.CoreV1().ConfigMaps(r.current().Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return found.Data, nil
}

func (r *Run) secret(ctx context.Context, name string) (map[string]string, error) {
	found, err := r.fleet.client.CoreV1().Secrets(r.current().Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for key, value := range found.Data {
		values[key] = string(value)
	}
	return values, nil
}

func (r *Run) field(path string) (string, error) {
	pod := r.current()
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP", "status.podIPs", "status.hostIPs":
		return r.node.address, nil
	}
	for prefix, values := range map[string]map[string]string{
		"metadata.labels": pod.Labels, "metadata.annotations": pod.Annotations,
	} {
		if key, ok := strings.CutPrefix(path, prefix+"['"); ok {
			return values[strings.TrimSuffix(key, "']")], nil
		}
	}
	return "", fmt.Errorf("the lab knows no field %s", path)
}

func listed(environment map[string]string) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		list = append(list, name+"="+environment[name])
	}
	return list
}

// expanded replaces $(NAME) by its value; $$ is a dollar, and unknown names stay.
func expanded(text string, values map[string]string) string {
	var out strings.Builder
	for text != "" {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			break
		}
		if strings.HasPrefix(rest, "$") {
			out.WriteByte('$')
			text = rest[1:]
			continue
		}
		if name, after, closed := strings.Cut(rest, ")"); closed && strings.HasPrefix(name, "(") {
			if value, known := values[name[1:]]; known {
				out.WriteString(value)
				text = after
				continue
			}
		}
		out.WriteByte('$')
		text = rest
	}
	return out.String()
}
