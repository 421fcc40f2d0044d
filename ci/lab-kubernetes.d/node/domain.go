package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// The visible part of NVIDIA's driver for dynamic resource allocation: the devices of a node, the
// template that a ComputeDomain requests, its nodes' label and its status. Every process of the
// lab does it, and doing it twice is harmless.

const (
	gpuDriver     = "gpu.nvidia.com"
	domainDriver  = "compute-domain.nvidia.com"
	channelClass  = "compute-domain-default-channel.nvidia.com"
	domainLabel   = "resource.nvidia.com/computeDomain"
	domainVersion = "resource.nvidia.com/v1beta1"
	cliqueLabel   = "nvidia.com/gpu.clique"
)

var domains = schema.GroupVersionResource{
	Group: "resource.nvidia.com", Version: "v1beta1", Resource: "computedomains",
}

// publish announces the devices of a node to the scheduler.
func (f *Fleet) publish(ctx context.Context, node *Node) error {
	text := func(value string) resourcev1.DeviceAttribute { return resourcev1.DeviceAttribute{StringValue: &value} }
	number := func(value int64) resourcev1.DeviceAttribute { return resourcev1.DeviceAttribute{IntValue: &value} }
	offered := map[string][]resourcev1.Device{}
	if node.gpus > 0 {
		offered[domainDriver] = []resourcev1.Device{{
			Name:       "channel-0",
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": text("channel"), "id": number(0)},
		}}
	}
	for index := range node.gpus {
		if node.spec.DRA {
			offered[gpuDriver] = append(offered[gpuDriver], resourcev1.Device{
				Name: fmt.Sprintf("gpu-%d", index),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"type": text("gpu"), "productName": text("NVIDIA GB200"), "index": number(int64(index)),
					"uuid": text(fmt.Sprintf("GPU-%s-%d", node.name, index)),
				},
			})
		}
	}
	slices := f.client.ResourceV1().ResourceSlices()
	for driver, devices := range offered {
		slice := &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: node.name + "-" + driver,
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "Node", Name: node.name, UID: node.uid},
				},
			},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driver, NodeName: &node.name, Devices: devices,
				Pool: resourcev1.ResourcePool{Name: node.name, Generation: 1, ResourceSliceCount: 1},
			},
		}
		_, err := slices.Create(ctx, slice, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			if err = slices.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err == nil || apierrors.IsNotFound(err) {
				_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare reports why the claims of a pod are not usable, and prepares the usable ones as a
// driver does: a node takes part in one ComputeDomain at most.
func (f *Fleet) prepare(ctx context.Context, run *Run) string {
	pod := run.current()
	for _, wanted := range pod.Spec.ResourceClaims {
		name := wanted.ResourceClaimName
		for _, made := range pod.Status.ResourceClaimStatuses {
			if made.Name == wanted.Name {
				name = made.ResourceClaimName
			}
		}
		if name == nil {
			return fmt.Sprintf("waiting for the resource claim %q to be made", wanted.Name)
		}
		claim, err := f.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		reserved := slices.ContainsFunc(claim.Status.ReservedFor, func(by resourcev1.ResourceClaimConsumerReference) bool {
			return by.UID == pod.UID
		})
		if claim.Status.Allocation == nil || !reserved {
			return fmt.Sprintf("resource claim %s is not allocated to this pod", *name)
		}
		for _, config := range claim.Status.Allocation.Devices.Config {
			if config.Opaque == nil || config.Opaque.Driver != domainDriver {
				continue
			}
			var parameters struct {
				DomainID string `json:"domainID"`
			}
			if err := json.Unmarshal(config.Opaque.Parameters.Raw, &parameters); err != nil {
				return err.Error()
			}
			if err := f.join(ctx, run, pod.Namespace, parameters.DomainID); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// unprepare releases nothing: a node leaves a ComputeDomain when that is deleted.
func (f *Fleet) unprepare(context.Context, *Run) {}

// join makes the node a part of a ComputeDomain.
func (f *Fleet) join(ctx context.Context, run *Run, namespace, uid string) error {
	listed, err := f.dynamic.Resource(domains).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(listed.Items, func(domain unstructured.Unstructured) bool { return string(domain.GetUID()) == uid })
	if at < 0 || listed.Items[at].GetDeletionTimestamp() != nil {
		return fmt.Errorf("ComputeDomain %s is not there", uid)
	}
	node, err := f.client.CoreV1().Nodes().Get(ctx, run.node.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if other := node.Labels[domainLabel]; other != "" && other != uid {
		return fmt.Errorf("node %s is part of ComputeDomain %s", node.Name, other)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{domainLabel: uid}, "resourceVersion": node.ResourceVersion,
	}})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: domainDriver})
	if err != nil {
		return err
	}
	run.mu.Lock()
	run.domain = uid
	run.mu.Unlock()
	return f.list(ctx, namespace, listed.Items[at].GetName(), node.Name, run.node.address, node.Labels[cliqueLabel])
}

// list puts a node into the status of a ComputeDomain.
func (f *Fleet) list(ctx context.Context, namespace, name, node, address, clique string) error {
	all := f.dynamic.Resource(domains).Namespace(namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		domain, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		members, _, _ := unstructured.NestedSlice(domain.Object, "status", "nodes")
		index := int64(0)
		for _, member := range members {
			if known, ok := member.(map[string]any); ok {
				if known["name"] == node {
					return nil
				}
				if known["cliqueID"] == clique {
					index++
				}
			}
		}
		members = append(members, map[string]any{
			"name": node, "ipAddress": address, "cliqueID": clique, "index": index, "status": "Ready",
		})
		wanted, _, _ := unstructured.NestedInt64(domain.Object, "spec", "numNodes")
		status := map[string]any{"nodes": members, "status": "NotReady"}
		if int64(len(members)) >= wanted {
			status["status"] = "Ready"
		}
		domain.Object["status"] = status
		_, err = all.UpdateStatus(ctx, domain, metav1.UpdateOptions{FieldManager: domainDriver})
		return err
	})
}

// drive follows ComputeDomains, where they are defined.
func (f *Fleet) drive(ctx context.Context) error {
	_, err := f.dynamic.Resource(domains).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(f.dynamic, 0)
	changed := func(seen any) {
		domain, ok := seen.(*unstructured.Unstructured)
		for attempt := 0; ok && attempt < 20 && ctx.Err() == nil; attempt++ {
			err := f.settle(ctx, domain)
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return
			}
			fmt.Fprintf(os.Stderr, "lab node: ComputeDomain %s: %v\n", domain.GetName(), err)
			time.Sleep(500 * time.Millisecond)
		}
	}
	informer := factory.ForResource(domains).Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, seen any) { changed(seen) },
	})
	if err == nil {
		factory.Start(ctx.Done())
	}
	return err
}

// settle gives a ComputeDomain its template, or takes all of it away.
func (f *Fleet) settle(ctx context.Context, seen *unstructured.Unstructured) error {
	all := f.dynamic.Resource(domains).Namespace(seen.GetNamespace())
	templates := f.client.ResourceV1().ResourceClaimTemplates(seen.GetNamespace())
	name, _, _ := unstructured.NestedString(seen.Object, "spec", "channel", "resourceClaimTemplate", "name")
	uid := string(seen.GetUID())
	domain := seen.DeepCopy()
	if domain.GetDeletionTimestamp() == nil {
		if !slices.Contains(domain.GetFinalizers(), domainLabel) {
			domain.SetFinalizers(append(domain.GetFinalizers(), domainLabel))
			if _, err := all.Update(ctx, domain, metav1.UpdateOptions{FieldManager: domainDriver}); err != nil {
				return err
			}
		}
		_, err := templates.Create(ctx, template(name, uid), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return err
	}
	if !slices.Contains(domain.GetFinalizers(), domainLabel) {
		return nil
	}
	// Processes that still run there lose access to the memory of others.
	f.mu.Lock()
	for _, run := range f.runs {
		run.mu.Lock()
		is := run.domain == uid && !run.finished
		run.mu.Unlock()
		if is {
			run.sweep()
		}
	}
	f.mu.Unlock()
	err := templates.Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	nodes, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: domainLabel + "=" + uid})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{domainLabel: nil}}})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		_, err := f.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: domainDriver})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	domain.SetFinalizers(slices.DeleteFunc(domain.GetFinalizers(), func(held string) bool { return held == domainLabel }))
	_, err = all.Update(ctx, domain, metav1.UpdateOptions{FieldManager: domainDriver})
	return err
}

// template makes claims of one channel in a ComputeDomain.
func template(name, uid string) *resourcev1.ResourceClaimTemplate {
	parameters := fmt.Sprintf(`{"apiVersion":%q,"kind":"ComputeDomainChannelConfig","domainID":%q,"allocationMode":"Single"}`,
		domainVersion, uid)
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{domainLabel: uid}},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{
				Name: "channel", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: channelClass},
			}},
			Config: []resourcev1.DeviceClaimConfiguration{{
				Requests: []string{"channel"},
				DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
					Driver: domainDriver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
				}},
			}},
		}}},
	}
}
