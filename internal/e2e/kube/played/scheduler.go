// Package played plays the scheduler for ResourceClaims, on an API server that has none: it
// allocates a claim and reserves it for a pod. Package dratest plays the kubelet.
package played

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A Scheduler allocates the networks of one driver.
type Scheduler struct {
	Client kubernetes.Interface // of an administrator
	Driver string
}

// Client returns a client that sends and receives protobuf, as those of Kubernetes do.
func Client(c *rest.Config) (kubernetes.Interface, error) {
	c = rest.CopyConfig(c)
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(c)
}

// Opaque returns the configuration of a device that has these parameters for a driver.
func Opaque(driver, parameters string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
		Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
	}}
}

// Claim returns a claim with these requests, each for one device of a class, and a
// configuration of all of them for each of parameters.
func (s Scheduler) Claim(namespace, name, class string, requests []string, parameters ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, r := range requests {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: r, Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
		}})
	}
	for _, p := range parameters {
		c.Spec.Devices.Config = append(c.Spec.Devices.Config, resourcev1.DeviceClaimConfiguration{DeviceConfiguration: Opaque(s.Driver, p)})
	}
	return c
}

// Class creates a DeviceClass of all networks of the driver, with these configurations.
func (s Scheduler) Class(ctx context.Context, name string, parameters ...string) error {
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", s.Driver)}}}
	for _, p := range parameters {
		c.Spec.Config = append(c.Spec.Config, resourcev1.DeviceClassConfiguration{DeviceConfiguration: Opaque(s.Driver, p)})
	}
	_, err := s.Client.ResourceV1().DeviceClasses().Create(ctx, c, metav1.CreateOptions{})
	return err
}

// Create creates a claim.
func (s Scheduler) Create(ctx context.Context, c *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return s.Client.ResourceV1().ResourceClaims(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
}

// Devices returns the devices that the driver has published for a node.
func (s Scheduler) Devices(ctx context.Context, node string) (all []resourcev1.Device, err error) {
	got, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + node})
	if err != nil {
		return nil, err
	}
	for _, slice := range got.Items {
		if slice.Spec.Driver == s.Driver {
			all = append(all, slice.Spec.Devices...)
		}
	}
	return all, nil
}

// Allocate allocates a device of a node, by its name, to each request of a claim, and reserves
// the claim for pods. The node must have published the devices. A device that several claims
// can have is allocated as a share.
func (s Scheduler) Allocate(ctx context.Context, c *resourcev1.ResourceClaim, node string, devices []string, pods ...*corev1.Pod) (*resourcev1.ResourceClaim, error) {
	published, err := s.Devices(ctx, node)
	if err != nil {
		return nil, err
	}
	var results []resourcev1.DeviceRequestAllocationResult
	for i, r := range c.Spec.Devices.Requests {
		at := slices.IndexFunc(published, func(d resourcev1.Device) bool { return d.Name == devices[i] })
		if at < 0 {
			return nil, fmt.Errorf("node %s has not published %q", node, devices[i])
		}
		result := resourcev1.DeviceRequestAllocationResult{Request: r.Name, Driver: s.Driver, Pool: node, Device: devices[i]}
		if shared := published[at].AllowMultipleAllocations; shared != nil && *shared {
			share := uuid.NewUUID()
			result.ShareID = &share
		}
		results = append(results, result)
	}
	return s.Reserve(ctx, c, node, results, pods...)
}

// Reserve allocates devices of a node to a claim, whether they are published or not, and reserves
// the claim for pods. The configurations of the claim are copied.
func (s Scheduler) Reserve(ctx context.Context, c *resourcev1.ResourceClaim, node string, devices []resourcev1.DeviceRequestAllocationResult, pods ...*corev1.Pod) (*resourcev1.ResourceClaim, error) {
	c = c.DeepCopy()
	c.Status = resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
		// The API server looks here for the node whose driver may write the status.
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}}
	to := &c.Status.Allocation.Devices
	to.Results = devices
	for _, config := range c.Spec.Devices.Config {
		to.Config = append(to.Config, resourcev1.DeviceAllocationConfiguration{
			Source: resourcev1.AllocationConfigSourceClaim, Requests: config.Requests, DeviceConfiguration: config.DeviceConfiguration,
		})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	return s.Client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
}
