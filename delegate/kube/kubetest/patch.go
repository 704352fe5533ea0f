package kubetest

import (
	"encoding/json"
	"errors"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// patch sets o, a new object, to old with the patch, and reports whether that changes
// anything. status: the patch is for the subresource, which leaves the spec alone.
func patch(o, old object, kind types.PatchType, data []byte, res resource, status bool) (bool, error) {
	if err := apply(o, old, kind, data, res); err != nil {
		return false, err
	}
	return admit(o, old, res, status)
}

// update sets o, a new object, to the body of an update of old, as patch does.
func update(o, old object, contentType string, body []byte, res resource, status bool) (bool, error) {
	if err := decode(o, contentType, body, res); err != nil {
		return false, err
	}
	return admit(o, old, res, status)
}

// admit checks o, which is to replace old, gives it what the client cannot change, and
// reports whether that changes anything.
func admit(o, old object, res resource, status bool) (bool, error) {
	if o.GetResourceVersion() == "" {
		o.SetResourceVersion(old.GetResourceVersion())
	}
	if o.GetResourceVersion() != old.GetResourceVersion() {
		return false, apierrors.NewConflict(res.GroupResource(), old.GetName(), errModified)
	}
	if o.GetUID() == "" {
		o.SetUID(old.GetUID())
	}
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(o, old, field.NewPath("metadata"))
	errs = append(errs, keep(o, old, status)...)
	if len(errs) > 0 {
		return false, apierrors.NewInvalid(res.gvk().GroupKind(), old.GetName(), errs)
	}
	return !equality.Semantic.DeepEqual(o, old), nil
}

// apply sets o to what the patch makes of old, without any check of its metadata.
func apply(o, old object, kind types.PatchType, data []byte, res resource) error {
	text, err := json.Marshal(old)
	if err != nil {
		return err
	}
	switch kind {
	case types.MergePatchType:
		text, err = mergePatch(text, data)
	case types.JSONPatchType:
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(data); err != nil {
			break
		}
		if text, err = p.Apply(text); err != nil {
			return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	default:
		return unsupported(string(kind))
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	err = json.Unmarshal(text, o)
	if err != nil {
		return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(text), err.Error())})
	}
	return nil
}

// keep restores the part of old that the patch cannot change, and returns errors for the
// parts that it must not change.
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
	case *corev1.Node:
		old, _ := old.(*corev1.Node)
		o.Status = *old.Status.DeepCopy()
	case *resourcev1.ResourceClaim:
		old, _ := old.(*resourcev1.ResourceClaim)
		return keepClaim(o, old)
	}
	return nil
}

// mergePatch applies a merge patch (RFC 7386).
func mergePatch(text, data []byte) ([]byte, error) {
	var old, p map[string]any
	if err := errors.Join(json.Unmarshal(text, &old), json.Unmarshal(data, &p)); err != nil {
		return nil, err
	}
	return json.Marshal(merge(old, p))
}

func merge(old, p any) any { //nolint:ireturn // any JSON value
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
