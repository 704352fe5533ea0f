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

// A subject is an object that is to be reviewed.
type subject struct {
	// of returns the part of an object that judge reads: while it is equal, so is the verdict.
	of func() string

	// judge returns why the object is denied, or a warning about one that is allowed.
	judge func() (warning string, err error)
}

// review returns the answer to a request.
func (h Handler) review(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	answer := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	read := h.reader(r)
	if read == nil {
		return answer
	}
	now := read(r.Object.Raw)
	warning, err := now.judge()
	if err != nil && r.Operation == admissionv1.Update && read(r.OldObject.Raw).of() == now.of() {
		warning, err = err.Error(), nil
	}
	switch {
	case err != nil:
		answer.Allowed, answer.Result = false, result(err)
	case warning != "":
		answer.Warnings = []string{warning}
	}
	return answer
}

// reader returns the function that reads the object of a request, or nil if nothing is to
// be reviewed.
func (h Handler) reader(r *admissionv1.AdmissionRequest) func(object []byte) subject {
	switch {
	case r.Operation != admissionv1.Create && r.Operation != admissionv1.Update, r.SubResource != "":
	case r.Kind.Group == "k8s.cni.cncf.io" && r.Kind.Kind == "NetworkAttachmentDefinition" && h.Definition != nil:
		return h.definition
	case r.Kind.Group == "" && r.Kind.Kind == "Pod" && h.Pod != nil:
		return func(object []byte) subject { return h.pod(r.Namespace, object) }
	}
	return nil
}

// undecodable is an object that cannot be decoded.
func undecodable(object []byte) subject {
	return subject{func() string { return string(object) }, func() (string, error) { return "", errUndecodable }}
}

// definition reads a NetworkAttachmentDefinition.
func (h Handler) definition(object []byte) subject {
	var about struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(object, &about); err != nil {
		return undecodable(object)
	}
	return subject{
		of: func() string { return about.Metadata.Annotations[nad.ResourceAnnotation] + "\x00" + string(about.Spec) },
		judge: func() (string, error) {
			d, err := nad.Parse(object)
			if err == nil {
				err = h.Definition(d)
			}
			if err == nil && strings.TrimSpace(d.Config) == "" {
				return fmt.Sprintf("without spec.config this is the network %q in the CNI configuration files of each node", d.Name), nil
			}
			return "", err
		},
	}
}

// pod reads a pod of a namespace.
func (h Handler) pod(namespace string, object []byte) subject {
	var pod struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			HostNetwork bool `json:"hostNetwork"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &pod); err != nil {
		return undecodable(object)
	}
	annotations := pod.Metadata.Annotations
	networks, primary := annotations[nad.NetworksAnnotation], annotations[nad.DefaultNetworkAnnotation]
	return subject{
		of: func() string { return networks + "\x00" + primary },
		judge: func() (string, error) {
			switch {
			case !pod.Spec.HostNetwork:
				return "", h.Pod(namespace, annotations)
			case selects(networks) || selects(primary):
				return "the pod has the network of its node (hostNetwork): the networks that it selects are ignored", nil
			}
			return "", nil
		},
	}
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
