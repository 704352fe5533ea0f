package kubetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// eventErrors says what is wrong with a new event. The real server names the fields as
// the core group does: the note is its message.
func eventErrors(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	if e.EventTime.IsZero() {
		return append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	for _, f := range []struct {
		name, value string
		needed      bool
		limit       int
	}{
		{"reportingController", e.ReportingController, true, 317}, // of a qualified name
		{"reportingInstance", e.ReportingInstance, true, 128},
		{"action", e.Action, true, 128},
		{"reason", e.Reason, true, 128},
		{"message", e.Note, false, 1024},
	} {
		if f.needed && f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > f.limit {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %d characters", f.limit)))
		}
	}
	return errs
}
