package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

var errUndecodable = errors.New("the object cannot be decoded")

// A finding is what a review says about an object.
type finding struct {
	of      string // what was reviewed: if it does not change, neither does the rest
	err     error  // why the object is denied
	warning string // about an object that is allowed
}

// review returns the answer to a request.
func (h Handler) review(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	answer := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	check := h.check(r)
	if check == nil {
		return answer
	}
	now := check(r.Object.Raw)
	if now.err != nil && r.Operation == admissionv1.Update && check(r.OldObject.Raw).of == now.of {
		now.warning, now.err = now.err.Error(), nil
	}
	switch {
	case now.err != nil:
		answer.Allowed, answer.Result = false, result(now.err)
	case now.warning != "":
		answer.Warnings = []string{now.warning}
	}
	return answer
}

// check returns the function that reviews the object of a request, or nil if nothing is to
// be reviewed.
func (h Handler) check(r *admissionv1.AdmissionRequest) func(object []byte) finding {
	switch {
	case r.Operation != admissionv1.Create && r.Operation != admissionv1.Update, r.SubResource != "":
	case r.Kind.Group == "k8s.cni.cncf.io" && r.Kind.Kind == "NetworkAttachmentDefinition" && h.Definition != nil:
		return h.definition
	case r.Kind.Group == "" && r.Kind.Kind == "Pod" && h.Pod != nil:
		return func(object []byte) finding { return h.pod(r.Namespace, object) }
	}
	return nil
}

// definition reviews a NetworkAttachmentDefinition.
func (h Handler) definition(object []byte) finding {
	var raw struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(object, &raw); err != nil {
		return finding{string(object), errUndecodable, ""}
	}
	f := finding{of: raw.Metadata.Annotations[nad.ResourceAnnotation] + "\x00" + string(raw.Spec)}
	d, err := nad.Parse(object)
	if err == nil {
		err = h.Definition(d)
	}
	switch {
	case err != nil:
		f.err = err
	case strings.TrimSpace(d.Config) == "":
		f.warning = fmt.Sprintf("without spec.config this is the network %q in the CNI configuration files of each node", d.Name)
	}
	return f
}

// pod reviews a pod of a namespace.
func (h Handler) pod(namespace string, object []byte) finding {
	var pod struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			HostNetwork bool `json:"hostNetwork"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &pod); err != nil {
		return finding{string(object), errUndecodable, ""}
	}
	annotations := pod.Metadata.Annotations
	networks, primary := annotations[nad.NetworksAnnotation], annotations[nad.DefaultNetworkAnnotation]
	f := finding{of: networks + "\x00" + primary}
	switch {
	case !pod.Spec.HostNetwork:
		f.err = h.Pod(Pod{Namespace: namespace, Annotations: annotations})
	case selects(networks) || selects(primary):
		f.warning = "the pod has the network of its node (hostNetwork): the networks that it selects are ignored"
	}
	return f
}

// selects reports whether an annotation selects a network, or tries to.
func selects(annotation string) bool {
	selected, err := netconf.ParseSelection(annotation)
	return err != nil || len(selected) > 0
}

// result returns what a client is told about err.
func result(err error) *metav1.Status {
	s := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: err.Error()}
	if errors.Is(err, nad.ErrForbidden) {
		s.Code, s.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	}
	return s
}
