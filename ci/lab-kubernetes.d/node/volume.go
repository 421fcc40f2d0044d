package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Arguments in front of a process's command that make this program create its files and then exec
// it.
const inside = "inside"

// Files in which processes read their boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// Mount is a folder that a container sees somewhere else.
type Mount struct {
	From     string `json:"from"`
	To       string `json:"to"`
	ReadOnly bool   `json:"read_only"`
}

// Inside lists the actions before a container's command runs.
type Inside struct {
	// Empty for mounts over folders of this machine.
	Scratch string  `json:"scratch"`
	Mounts  []Mount `json:"mounts"`
}

// enter runs in a separate mount namespace: it mounts volumes at the container's paths and
// executes its command. Folders that this machine lacks are created in a layer that only the
// container sees.
func enter(spec string, words []string) error {
	var about Inside
	if err := json.Unmarshal([]byte(spec), &about); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := syscall.Mount("tmpfs", about.Scratch, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("%s: %w", about.Scratch, err)
	}
	var layered []string
	for number, mount := range about.Mounts {
		if _, err := os.Stat(mount.To); err != nil {
			there := mount.To
			for err != nil && there != "/" {
				there = filepath.Dir(there)
				_, err = os.Stat(there)
			}
			if there, err = filepath.EvalSymlinks(there); err != nil {
				return err
			}
			// A layer over the root would be next to the one in use, not above it.
			if there == "/" {
				return fmt.Errorf("%s: the lab makes no folders in /", mount.To)
			}
			covered := false
			for _, layer := range layered {
				covered = covered || there == layer || strings.HasPrefix(there, layer+"/")
			}
			if !covered {
				upper := filepath.Join(about.Scratch, strconv.Itoa(number))
				if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(upper+".work", 0o755)); err != nil {
					return err
				}
				options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s.work", there, upper, upper)
				if err := syscall.Mount("overlay", there, "overlay", 0, options); err != nil {
					return fmt.Errorf("a layer over %s: %w", there, err)
				}
				layered = append(layered, there)
			}
			if err := os.MkdirAll(mount.To, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Mount(mount.From, mount.To, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return fmt.Errorf("%s at %s: %w", mount.From, mount.To, err)
		}
		if mount.ReadOnly {
			flags := uintptr(syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY)
			if err := syscall.Mount("", mount.To, "", flags, ""); err != nil {
				return fmt.Errorf("%s read-only: %w", mount.To, err)
			}
		}
	}
	return syscall.Exec(words[0], words[1:], os.Environ())
}

// mounted wraps a command so that it finds the container's volumes.
func (r *Run) mounted(ctx context.Context, container *corev1.Container, command *exec.Cmd) error {
	folder := filepath.Join(r.fleet.folder, string(r.uid))
	about := Inside{Scratch: filepath.Join(folder, "layers")}
	for _, mount := range container.VolumeMounts {
		from, err := r.volume(ctx, filepath.Join(folder, "volumes"), mount.Name)
		if err != nil {
			return fmt.Errorf("volume %s: %w", mount.Name, err)
		}
		if from != "" {
			about.Mounts = append(about.Mounts, Mount{
				From: filepath.Join(from, mount.SubPath), To: mount.MountPath, ReadOnly: mount.ReadOnly,
			})
		}
	}
	if os.Geteuid() == 0 {
		// A node's processes see its boot and not this machine's.
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		boot := filepath.Join(folder, "boot_id")
		r.node.mu.Lock()
		id := r.node.boot
		r.node.mu.Unlock()
		if err := os.WriteFile(boot, []byte(id+"\n"), 0o644); err != nil {
			return err
		}
		about.Mounts = append(about.Mounts, Mount{From: boot, To: bootID})
	}
	if len(about.Mounts) == 0 {
		return nil
	}
	if err := os.MkdirAll(about.Scratch, 0o700); err != nil {
		return err
	}
	spec, err := json.Marshal(about)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	command.Args = append([]string{inside, inside, string(spec), command.Path}, command.Args...)
	command.Path = own
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	r.mu.Lock()
	r.isMounted = true
	r.mu.Unlock()
	return nil
}

// settled waits until a process that mounts first has become its command.
func settled(process int) {
	own, err := os.Executable()
	for range 500 {
		became, gone := os.Readlink(fmt.Sprintf("/proc/%d/exe", process))
		if err != nil || gone != nil || became != own {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// volume is the folder of a volume, filled once per pod.
func (r *Run) volume(ctx context.Context, folder, name string) (string, error) {
	pod := r.current()
	for _, volume := range pod.Spec.Volumes {
		if volume.Name != name {
			continue
		}
		// Every pod has this one, and most never read it.
		if os.Geteuid() != 0 && strings.HasPrefix(name, "kube-api-access-") {
			return "", nil
		}
		at := filepath.Join(folder, name)
		switch source := volume.VolumeSource; {
		case source.HostPath != nil:
			return source.HostPath.Path, nil
		case source.PersistentVolumeClaim != nil:
			return r.claimed(ctx, source.PersistentVolumeClaim.ClaimName)
		case source.EmptyDir != nil:
			return at, os.MkdirAll(at, 0o777)
		case source.ConfigMap != nil:
			return at, r.project(ctx, at, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: source.ConfigMap.LocalObjectReference, Items: source.ConfigMap.Items,
			}})
		case source.Secret != nil:
			return at, r.project(ctx, at, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: source.Secret.SecretName},
				Items:                source.Secret.Items,
			}})
		case source.Projected != nil:
			return at, r.project(ctx, at, source.Projected.Sources...)
		}
		return "", errors.New("the lab knows no volume of this kind")
	}
	return "", errors.New("the pod has no such volume")
}

// claimed is the folder of this machine behind a claim.
func (r *Run) claimed(ctx context.Context, name string) (string, error) {
	claim, err := r.fleet.client.CoreV1().PersistentVolumeClaims(r.current().Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	volume, err := r.fleet.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if volume.Spec.HostPath == nil {
		return "", errors.New("the lab knows volumes of hostPath only")
	}
	return volume.Spec.HostPath.Path, nil
}

// project writes sources as files.
func (r *Run) project(ctx context.Context, at string, sources ...corev1.VolumeProjection) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	write := func(path, text string) error {
		path = filepath.Join(at, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o600)
	}
	some := func(values map[string]string, items []corev1.KeyToPath) error {
		if len(items) == 0 {
			for key := range values {
				items = append(items, corev1.KeyToPath{Key: key, Path: key})
			}
		}
		for _, item := range items {
			value, known := values[item.Key]
			if !known {
				return fmt.Errorf("there is no key %s", item.Key)
			}
			if err := write(item.Path, value); err != nil {
				return err
			}
		}
		return nil
	}
	for _, source := range sources {
		var values map[string]string
		var err error
		switch {
		case source.ConfigMap != nil:
			if values, err = r.configMap(ctx, source.ConfigMap.Name); err == nil {
				err = some(values, source.ConfigMap.Items)
			}
		case source.Secret != nil:
			if values, err = r.secret(ctx, source.Secret.Name); err == nil {
				err = some(values, source.Secret.Items)
			}
		case source.ServiceAccountToken != nil:
			var token string
			if token, err = r.token(ctx, source.ServiceAccountToken); err == nil {
				err = write(source.ServiceAccountToken.Path, token)
			}
		case source.DownwardAPI != nil:
			for _, item := range source.DownwardAPI.Items {
				if item.FieldRef == nil {
					return errors.New("the lab knows downward fields only")
				}
				var value string
				if value, err = r.field(item.FieldRef.FieldPath); err == nil {
					err = write(item.Path, value)
				}
			}
		default:
			err = errors.New("the lab knows no projection of this kind")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// token requests a token of the pod's account, bound to the pod. It is not renewed: no lab runs
// for so long.
func (r *Run) token(ctx context.Context, wanted *corev1.ServiceAccountTokenProjection) (string, error) {
	pod := r.current()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: wanted.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if wanted.Audience != "" {
		request.Spec.Audiences = []string{wanted.Audience}
	}
	made, err := r.fleet.client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}
