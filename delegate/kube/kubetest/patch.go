package kubetest

import (
	"encoding/json"
	"errors"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// patch returns the object with the patch, nil if that changes nothing. status: the
// patch is one of the subresource, which leaves the spec alone.
func patch(kind types.PatchType, old object, data []byte, res resource, status bool) (object, error) {
	text, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	switch {
	case kind == types.MergePatchType:
		text, err = mergePatch(text, data)
	case kind == types.StrategicMergePatchType && res.typed():
		text, err = strategicpatch.StrategicMergePatch(text, data, res.make())
	default:
		return nil, unsupported(string(kind))
	}
	o := res.make()
	if err == nil {
		err = json.Unmarshal(text, o)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if o.GetResourceVersion() == "" {
		o.SetResourceVersion(old.GetResourceVersion())
	}
	if o.GetResourceVersion() != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(res.GroupResource(), old.GetName(),
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if o.GetUID() == "" {
		o.SetUID(old.GetUID())
	}
	if t := o.GetCreationTimestamp(); t.IsZero() {
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(o, old, field.NewPath("metadata"))
	errs = append(errs, keep(o, old, status)...)
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(res.gvk().GroupKind(), old.GetName(), errs)
	}
	if equality.Semantic.DeepEqual(o, old) {
		return nil, nil //nolint:nilnil // no change, no error
	}
	return o, nil
}

// keep restores what a patch of this kind does not reach, and says what it must not
// reach.
func keep(o, old object, status bool) field.ErrorList {
	switch o := o.(type) {
	case *corev1.Pod:
		old, _ := old.(*corev1.Pod)
		if status {
			o.Spec = *old.Spec.DeepCopy()
			o.OwnerReferences = old.OwnerReferences
			return nil
		}
		o.Status = *old.Status.DeepCopy()
		if !equality.Semantic.DeepEqual(o.Spec, old.Spec) {
			return field.ErrorList{field.Forbidden(field.NewPath("spec"), "kubetest: pod updates may not change the spec")}
		}
	case *eventsv1.Event:
		old, _ := old.(*eventsv1.Event)
		if err := eventErrors(o); err != nil {
			return err
		}
		kept := old.DeepCopy()
		kept.ObjectMeta, kept.Series = o.ObjectMeta, o.Series
		if !equality.Semantic.DeepEqual(o, kept) {
			return field.ErrorList{field.Invalid(field.NewPath(""), "", "field is immutable")}
		}
	}
	return nil
}

// mergePatch applies a merge patch (RFC 7386).
func mergePatch(text, data []byte) ([]byte, error) {
	var old, p any
	if err := errors.Join(json.Unmarshal(text, &old), json.Unmarshal(data, &p)); err != nil {
		return nil, err
	}
	if reflect.TypeOf(p) != reflect.TypeFor[map[string]any]() {
		return nil, errors.New("the patch is not an object")
	}
	return json.Marshal(merge(old, p))
}

func merge(old, p any) any {
	fields, ok := p.(map[string]any)
	if !ok {
		return p
	}
	result, ok := old.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for k, v := range fields {
		if v == nil {
			delete(result, k)
		} else {
			result[k] = merge(result[k], v)
		}
	}
	return result
}

func validateEvent(e *eventsv1.Event) error {
	if errs := eventErrors(e); len(errs) > 0 {
		return apierrors.NewInvalid(eventsv1.SchemeGroupVersion.WithKind("Event").GroupKind(), e.Name, errs)
	}
	return nil
}

// eventErrors are what the real server asks of events of this version.
func eventErrors(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	ns := e.Regarding.Namespace
	if ns == "" {
		ns = "default"
	}
	if ns != e.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), e.Regarding.Namespace, "does not match event.namespace"))
	}
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), e.Type, "has invalid value"))
	}
	for _, f := range []struct {
		name, value string
		limit       int
		optional    bool
	}{
		{"reportingController", e.ReportingController, 128, false},
		{"reportingInstance", e.ReportingInstance, 128, false},
		{"action", e.Action, 128, false},
		{"reason", e.Reason, 128, false},
		{"note", e.Note, 1024, true},
	} {
		if f.value == "" && !f.optional {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > f.limit {
			errs = append(errs, field.TooLong(field.NewPath(f.name), "", f.limit))
		}
	}
	return errs
}
